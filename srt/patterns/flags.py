"""Inline flags: their meaning, and how `(?flags)` and `(?flags-flags:` are read."""

from typing import NamedTuple

from srt.patterns.errors import PatternError
from srt.patterns.source import PatternSource


class Flags(NamedTuple):
    """The flags in force. Without `unicode`, classes and case folding are those of re.ASCII."""

    ignore_case: bool = False  # i
    multi_line: bool = False  # m
    dot_all: bool = False  # s
    verbose: bool = False  # x
    unicode: bool = False  # u; a turns it off


class FlagGroup(NamedTuple):
    """The flags that hold from here: to the end of the group if `scoped`."""

    flags: Flags
    scoped: bool


_FIELDS = {"i": "ignore_case", "m": "multi_line", "s": "dot_all", "x": "verbose"}
_TYPES = {"a": False, "u": True}
_LETTERS = "aiLmsux"


def parse_flags(source: PatternSource, current: Flags) -> FlagGroup:
    """Read flags after `(?`, up to and including the `)` or `:` after them."""
    on = _letters(source, allow_none=source.peek() == "-")
    types = sorted(set(on) & set(_TYPES))
    if len(types) > 1:
        raise PatternError("bad inline flags: flags 'a' and 'u' are incompatible", source.pos)
    off = ""
    if source.skip("-"):
        off = _letters(source, allow_none=False)
        if set(off) & set(_TYPES):
            raise PatternError("bad inline flags: cannot turn off flags 'a' and 'u'", source.pos)
        if set(on) & set(off):
            raise PatternError("bad inline flags: flag turned on and off", source.pos)
    scoped = _end_of_flags(source, must_be_scoped=off != "")
    changes = {_FIELDS[letter]: True for letter in on if letter in _FIELDS}
    changes |= {_FIELDS[letter]: False for letter in off}
    if types:
        changes["unicode"] = _TYPES[types[0]]
    return FlagGroup(current._replace(**changes), scoped)


def _letters(source: PatternSource, *, allow_none: bool) -> str:
    start = source.pos
    letters = source.take_while(_LETTERS, len(source.text))
    if "L" in letters:
        at = start + letters.index("L")
        raise PatternError("bad inline flags: 'L' is for patterns of bytes", at)
    if not letters and not allow_none:
        raise PatternError("missing flag", start)
    if source.peek().isalpha():
        raise PatternError(f"unknown flag {source.peek()}", source.pos)
    return letters


def _end_of_flags(source: PatternSource, *, must_be_scoped: bool) -> bool:
    """Whether the flags hold for a group only."""
    if source.skip(":"):
        return True
    if must_be_scoped:
        raise PatternError("missing : after flags", source.pos)
    if not source.skip(")"):
        raise PatternError("missing -, : or ) after flags", source.pos)
    return False
