r"""The parser: a pattern in the syntax of Python's `re` becomes an AST.

All code that accepts patterns of `re` calls `parse`. Everything is read as by
`re.compile(pattern, re.ASCII)` of Python 3.11, except what needs more than a finite automaton
(look-around, back-references, conditionals, atomic groups, possessive quantifiers): that is
refused. `(?u)` at the start has the effect of omitting re.ASCII. Groups are kept on a stack of our
own, so no pattern can exhaust Python's.
"""

from srt.patterns.charset import parse_set
from srt.patterns.classes import category, fold
from srt.patterns.errors import PatternError, StateLimitError
from srt.patterns.flags import Flags, parse_flags
from srt.patterns.ranges import ANY, subtract
from srt.patterns.source import DIGITS, OCTAL_DIGITS, PatternSource, is_surrogate
from srt.patterns.tree import (
    MAX_DEPTH,
    Anchor,
    AnchorKind,
    Literal,
    Node,
    character,
    choice,
    concat,
    repeat,
)

MAX_RANGES = 1_000_000  # a Unicode class has hundreds, and every set with one its own

_NOT_NEWLINE = subtract(ANY, ((0x0A, 0x0A),))
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SPECIAL = frozenset(".^$*+?{[\\|()")
_REFUSED_GROUPS = {
    "?=": "look-ahead is not supported",
    "?!": "look-ahead is not supported",
    "?<=": "look-behind is not supported",
    "?<!": "look-behind is not supported",
    "?>": "atomic groups are not supported",
    "?(": "conditionals are not supported",
    "?P=": "back-references are not supported",
}


def parse(pattern: str, *, groups: bool = False) -> Node:
    """The AST of `pattern`; with `groups`, it records where named groups begin and end, and what is
    lazy.

    Raises PatternError, with the position of what is wrong, or StateLimitError for sets of more
    than MAX_RANGES ranges in all.
    """
    return _ReParser(pattern, groups).parse()


class _Group:
    """A group that is being read; the pattern itself is the outermost one."""

    __slots__ = ("alternatives", "anchored", "flags", "items", "name", "opened", "repeated")

    def __init__(self, opened: int, flags: Flags, name: str = "") -> None:
        self.opened = opened
        self.flags = flags
        self.name = name  # if it is to be reported
        self.alternatives: list[Node] = []
        self.items: list[Node] = []
        self.repeated = False  # whether the last item has its quantifier
        self.anchored = False  # whether the last item is an assertion, not in parentheses

    def add(self, node: Node, *, anchored: bool = False) -> None:
        self.items.append(node)
        self.repeated = False
        self.anchored = anchored

    def next_alternative(self) -> None:
        self.alternatives.append(concat(self.items))
        self.items = []

    def node(self) -> Node:
        node = choice([*self.alternatives, concat(self.items)])
        if not self.name:
            return node
        ends = (Anchor(kind, self.name) for kind in (AnchorKind.GROUP_START, AnchorKind.GROUP_END))
        return concat([next(ends), node, next(ends)])


class _ReParser:
    def __init__(self, pattern: str, groups: bool) -> None:
        self._source = PatternSource(pattern)
        self._tells_groups = groups
        self._name = ""  # of the group that is being opened, if it is to be reported
        self._groups = [_Group(0, Flags())]
        self._num_ranges = 0
        self._names: set[str] = set()
        self._types: set[str] = set()  # of a and u, the flags that the whole pattern has

    def parse(self) -> Node:
        source = self._source
        while char := source.take():
            self._read(char, source.pos - 1)
        group = self._groups[-1]
        if len(self._groups) > 1:
            raise PatternError("missing ), unterminated subpattern", group.opened)
        return group.node()

    def _read(self, char: str, start: int) -> None:
        """Read the item, quantifier or bracket that begins with `char`."""
        group = self._groups[-1]
        if group.flags.verbose and self._is_skipped(char):
            return
        if char not in _SPECIAL:
            self._character(ord(char), start)
        elif char in _REPEATS:
            self._quantify(*_REPEATS[char], start)
        elif char == "{":
            self._open_brace(start)
        elif char == "[":
            group.add(self._set(group.flags))
        elif char == ".":
            group.add(character(ANY if group.flags.dot_all else _NOT_NEWLINE))
        elif char == "\\":
            self._escape(start)
        elif char == "|":
            group.next_alternative()
        elif char == "(":
            self._open_group(start)
        elif char == ")":
            self._close_group(start)
        else:
            group.add(Anchor(_anchor(char, group.flags)), anchored=True)

    def _set(self, flags: Flags) -> Node:
        ranges = parse_set(self._source, unicode=flags.unicode, ignore_case=flags.ignore_case)
        self._num_ranges += len(ranges)
        if self._num_ranges > MAX_RANGES:
            raise StateLimitError(
                f"the sets of the pattern have more than {MAX_RANGES:,} ranges in all, the limit"
            )
        return character(ranges)

    def _is_skipped(self, char: str) -> bool:
        """Whether a verbose pattern ignores this: blanks, and comments, which are then read."""
        if char == "#":
            self._source.skip_comment("\n")
        return char in " \t\n\r\v\f#"

    def _character(self, point: int, start: int) -> None:
        if is_surrogate(point):
            raise PatternError("a surrogate code point, which no text contains,", start)
        group = self._groups[-1]
        if group.flags.ignore_case:
            group.add(character(fold(((point, point),), group.flags.unicode)))
        else:
            group.add(Literal(chr(point)))

    def _escape(self, start: int) -> None:
        source, group = self._source, self._groups[-1]
        letter = source.take()
        if letter and letter in "dDsSwW":
            ranges = category(letter, group.flags.unicode)
            group.add(character(ranges))
        elif letter and letter in "AZ":
            kind = AnchorKind.START if letter == "A" else AnchorKind.END
            group.add(Anchor(kind), anchored=True)
        elif letter and letter in "bB":
            group.add(Anchor(_boundary(letter, group.flags)), anchored=True)
        elif letter and letter in DIGITS:
            self._character(self._octal(letter, start), start)
        else:
            point = source.escaped_character(letter, start)
            if point is None:
                raise source.bad_escape(start)
            self._character(point, start)

    def _octal(self, first: str, start: int) -> int:
        r"""The code point of `\0`, `\01`, `\012` or `\123`; other digits refer to groups."""
        more = self._source.take_while(OCTAL_DIGITS, 2)
        if first != "0" and (first not in OCTAL_DIGITS or len(more) < 2):
            raise PatternError("back-references are not supported", start)
        return self._source.octal(first + more, start)

    def _open_brace(self, start: int) -> None:
        bounds = self._source.take_bounds()
        if bounds is None:
            self._character(ord("{"), start)
        else:
            self._quantify(*bounds, start)

    def _quantify(self, low: int, high: int | None, start: int) -> None:
        group = self._groups[-1]
        if not group.items or group.anchored:
            raise PatternError("nothing to repeat", start)
        if group.repeated:
            raise PatternError("multiple repeat", start)
        if self._source.peek() == "+":
            raise PatternError("possessive quantifiers are not supported", self._source.pos)
        lazy = self._source.skip("?")  # a preference; the language is the same
        group.items[-1] = repeat(group.items[-1], low, high, lazy and self._tells_groups)
        group.repeated = True

    def _open_group(self, start: int) -> None:
        source = self._source
        flags = self._groups[-1].flags
        self._name = ""
        if source.peek() == "?":
            extension = self._extension(start)
            if extension is None:
                return
            flags = extension
        if len(self._groups) > MAX_DEPTH:
            raise PatternError(f"groups nested more than {MAX_DEPTH} deep", start)
        self._groups.append(_Group(start, flags, self._name))

    def _extension(self, start: int) -> Flags | None:
        """Read `?...` at the beginning of a group: its flags, or None if there is no group."""
        source = self._source
        for opening, reason in _REFUSED_GROUPS.items():
            if source.text.startswith(opening, source.pos):
                raise PatternError(reason, start)
        if source.skip("?:"):
            return self._groups[-1].flags
        if source.skip("?P<"):
            self._name_group()
            return self._groups[-1].flags
        if source.skip("?#"):
            if not source.skip_comment(")"):
                raise PatternError("missing ), unterminated comment", start)
            return None
        source.take()
        if source.peek() == "" or source.peek() not in "aiLmsux-":
            raise self._unknown_extension()
        return self._flag_group(start)

    def _unknown_extension(self) -> PatternError:
        source = self._source
        if source.peek() == "":
            return PatternError("unexpected end of pattern", source.pos)
        length = 2 if source.peek() in "P<" else 1
        return PatternError(
            f"unknown extension ?{source.text[source.pos : source.pos + length]}", source.pos - 1
        )

    def _name_group(self) -> None:
        position = self._source.pos
        name = self._source.take_until(">", "group name")
        if not name.isidentifier():
            raise PatternError(f"bad character in group name {name!r}", position)
        if name in self._names:
            raise PatternError(f"redefinition of group name {name!r}", position)
        self._names.add(name)
        self._name = name if self._tells_groups else ""

    def _flag_group(self, start: int) -> Flags | None:
        """The flags of a scoped group; flags for the whole pattern take effect at once."""
        group = self._groups[-1]
        flags, scoped = parse_flags(self._source, group.flags)
        if scoped:
            return flags
        if len(self._groups) > 1 or group.items or group.alternatives:
            raise PatternError("global flags not at the start of the expression", start)
        self._types |= set(self._source.text[start : self._source.pos]) & {"a", "u"}
        if len(self._types) > 1:
            raise PatternError("bad inline flags: flags 'a' and 'u' are incompatible", start)
        group.flags = flags
        return None

    def _close_group(self, start: int) -> None:
        if len(self._groups) == 1:
            raise PatternError("unbalanced parenthesis", start)
        node = self._groups.pop().node()
        self._groups[-1].add(node)


def _boundary(letter: str, flags: Flags) -> AnchorKind:
    if letter == "b":
        return AnchorKind.UNICODE_BOUNDARY if flags.unicode else AnchorKind.BOUNDARY
    return AnchorKind.NO_UNICODE_BOUNDARY if flags.unicode else AnchorKind.NO_BOUNDARY


def _anchor(char: str, flags: Flags) -> AnchorKind:
    if char == "^":
        return AnchorKind.LINE_START if flags.multi_line else AnchorKind.START
    return AnchorKind.LINE_END if flags.multi_line else AnchorKind.FINAL_END
