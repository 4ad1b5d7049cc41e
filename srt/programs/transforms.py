"""Transforms and guards: a closed set of pure functions of texts.

No code comes from the wire. What is wrong with one is found at submission; results are bounded
before they are built, and the time of each by the length of its texts.
"""

import string
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from srt.patterns.groups import GroupPattern
from srt.programs.limits import (
    MAX_PARTS,
    MAX_PATTERN_CHARS,
    MAX_PATTERN_NODES,
    MAX_PATTERN_WORK,
    MAX_TEXT_BYTES,
)
from srt.wire.constraint import GrammarError
from srt.wire.errors import RequestError
from srt.wire.programs import (
    Concat,
    Extract,
    First,
    Format,
    Guard,
    Join,
    JsonPointer,
    Majority,
    Op,
    Split,
    Strip,
    Truncate,
)

Texts = Mapping[str, str | None]  # of the inputs, by reference; None: left out
_MATCH = "srt_match"


def inputs_of(op: Op) -> list[str]:
    """The variables that it needs, as it names them."""
    if isinstance(op, Format):
        return list(op.inputs.values())
    return list(op.inputs) if isinstance(op, _LISTED) else [op.input]


def needs_tokens(op: Op) -> bool:
    """Whether it needs the model's tokenizer: `apply` does not do it."""
    return isinstance(op, Truncate) and op.tokens is not None


def apply(op: Op, texts: Texts) -> str:
    """The text that it makes. RequestError if there is none, or if it would be too long."""
    if isinstance(op, First | Majority | Concat | Join):
        return _listed(op, [text for name in op.inputs if (text := texts[name]) is not None])
    if isinstance(op, Format):
        return _formatted(op, texts)
    text = texts[op.input]
    assert text is not None
    match op:
        case Strip(chars=chars):
            return text.strip(chars)
        case Split(separator=separator, index=index):
            return _piece(text, separator, index)
        case JsonPointer(pointer=pointer):
            return _pointed(text, pointer)
        case Extract(pattern=pattern, group=group):
            return _extracted(text, pattern, group)
        case Truncate(chars=most, keep=keep):
            assert most is not None
            return text[:most] if keep == "start" else text[max(0, len(text) - most) :]


def holds(guard: Guard, text: str) -> bool:
    """Whether the condition holds. RequestError if the text is too long for its pattern."""
    if guard.equals is not None:
        is_so = text == guard.equals
    elif guard.matches is not None:
        is_so = _found(text, guard.matches, _MATCH) is not None
    else:
        is_so = text != ""
    return is_so != guard.negate


# ---- checks at submission --------------------------------------------------------------------


def check_op(op: Op, at: str) -> None:
    """Raise RequestError naming the field, below `at`, of what can never work."""
    num_inputs = len(inputs_of(op))
    if num_inputs > MAX_PARTS or (num_inputs == 0 and not isinstance(op, Format)):
        raise RequestError(f" must have 1 to {MAX_PARTS} variables", at=f"{at}.inputs")
    match op:
        case Format():
            _check_template(op, at)
        case Join(separator=separator):
            _check_length(separator, f"{at}.separator")
        case Split(separator=""):
            raise RequestError(" must not be empty", at=f"{at}.separator")
        case JsonPointer(pointer=pointer):
            _check_pointer(pointer, f"{at}.pointer")
        case Extract(pattern=pattern, group=group):
            check_pattern(pattern, f"{at}.pattern")
            if group and group not in _compiled(pattern).names:
                raise RequestError(f": the pattern has no group {group!r}", at=f"{at}.group")
        case Truncate(chars=chars, tokens=tokens):
            if (chars is None) == (tokens is None):
                raise RequestError(": exactly one of chars and tokens must be given", at=at)
            if min(chars or 0, tokens or 0) < 0:
                name = "tokens" if chars is None else "chars"
                raise RequestError(" must be 0 or more", at=f"{at}.{name}")


def check_guard(guard: Guard, at: str) -> None:
    """The same of a guard."""
    if (guard.equals is not None) + (guard.matches is not None) + guard.non_empty != 1:
        raise RequestError(": exactly one of equals, matches and non_empty must be given", at=at)
    _check_length(guard.equals or "", f"{at}.equals")
    if guard.matches is not None:
        check_pattern(guard.matches, f"{at}.matches")


def pattern_of(part: Op | Guard | None) -> str | None:
    """The pattern that it has."""
    if isinstance(part, Guard):
        return part.matches
    return part.pattern if isinstance(part, Extract) else None


def check_pattern(pattern: str, at: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise RequestError(f" must have at most {MAX_PATTERN_CHARS} characters", at=at)
    try:
        _compiled(pattern)
    except GrammarError as error:
        raise RequestError(f": {error}", at=at) from None


def _check_length(text: str, at: str) -> None:
    if len(text) > MAX_TEXT_BYTES:
        raise RequestError(f" must have at most {MAX_TEXT_BYTES} characters", at=at)


def _check_template(op: Format, at: str) -> None:
    _check_length(op.template, f"{at}.template")
    try:
        named = {name for _, name in pieces_of(op.template) if name is not None}
    except ValueError as error:
        raise RequestError(f": {error}", at=f"{at}.template") from None
    for name in named - op.inputs.keys():
        raise RequestError(f" has no {name!r}, which the template names", at=f"{at}.inputs")
    for name in op.inputs.keys() - named:
        raise RequestError(f": the template does not name {name!r}", at=f"{at}.inputs")


def _check_pointer(pointer: str, at: str) -> None:
    if pointer and not pointer.startswith("/"):
        raise RequestError(' must be empty or begin with "/"', at=at)
    if len(pointer) > MAX_PATTERN_CHARS:
        raise RequestError(f" must have at most {MAX_PATTERN_CHARS} characters", at=at)
    if "~" in pointer.replace("~0", "").replace("~1", ""):
        raise RequestError(' has a "~" that is followed by neither 0 nor 1', at=at)


# ---- the functions ---------------------------------------------------------------------------


def _listed(op: First | Majority | Concat | Join, texts: list[str]) -> str:
    if isinstance(op, First):
        return texts[0]
    if isinstance(op, Majority):
        return Counter(texts).most_common(1)[0][0]  # of equal counts the one that was first
    separator = op.separator if isinstance(op, Join) else ""
    _check_sum(sum(map(len, texts)) + len(separator) * (len(texts) - 1))
    return separator.join(texts)


def _formatted(op: Format, texts: Texts) -> str:
    values = {name: texts[var] or "" for name, var in op.inputs.items()}
    pieces = list(pieces_of(op.template))
    _check_sum(sum(len(text) + len(values[name]) if name else len(text) for text, name in pieces))
    return "".join(text + values[name] if name else text for text, name in pieces)


def _check_sum(num_chars: int) -> None:
    if num_chars > MAX_TEXT_BYTES:
        raise RequestError(f"the text would have more than {MAX_TEXT_BYTES} bytes")


def pieces_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Constant texts of a template, each with the name in braces after it, if there is one."""
    for text, name, spec, conversion in string.Formatter().parse(template):
        if name == "" or spec or conversion:
            raise ValueError("what is in braces must be a name")
        yield text, name


def _piece(text: str, separator: str, index: int) -> str:
    count = text.count(separator) + 1
    if not -count <= index < count:
        raise RequestError(f"there is no piece {index}: the text has {count}")
    return text.split(separator)[index]


def _pointed(text: str, pointer: str) -> str:
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the text is not JSON: {error}") from None
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and _is_index(key, len(value)):
            value = value[int(key)]
        else:
            raise RequestError(f"there is nothing at {pointer!r} in the text")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_index(key: str, count: int) -> bool:
    is_number = key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")
    return is_number and len(key) < 10 and int(key) < count


def _extracted(text: str, pattern: str, group: str) -> str:
    found = _found(text, pattern, group or _MATCH)
    if found is None:
        raise RequestError(f"the pattern {pattern!r} matches nothing in the text")
    return found


def _found(text: str, pattern: str, group: str) -> str | None:
    """What `group` matched the last time in the first match; None without one."""
    compiled = _compiled(pattern)
    if len(text) * compiled.num_nodes > MAX_PATTERN_WORK:
        most = MAX_PATTERN_WORK // compiled.num_nodes
        reason = f"the text has {len(text)} characters: this pattern searches at most {most}"
        raise RequestError(reason)
    spans = compiled.whole_spans(text)
    if spans is None:
        return None
    last = max((s for s in spans if s.name == group), key=lambda s: s.end, default=None)
    return None if last is None else text[last.start : last.end]


@lru_cache(256)
def _compiled(pattern: str) -> GroupPattern:
    """The pattern, wherever it matches first in a text."""
    GroupPattern(pattern, MAX_PATTERN_NODES)  # its own errors, at its own positions
    found = rf"(?s:.*?)(?P<{_MATCH}>{pattern})(?s:.*)"
    return GroupPattern(found, 2 * MAX_PATTERN_NODES)


_LISTED = (Concat, Join, Majority, First)
