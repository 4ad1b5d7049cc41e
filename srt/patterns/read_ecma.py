"""Reads the patterns of JSON Schema, which are ECMA-262 regular expressions (Unicode mode).

The result matches whole strings: arbitrary text is added where the pattern is not anchored. What a
finite automaton cannot do, or where ECMA's meaning differs and cannot be kept, is refused with its
position; nothing is passed on without being parsed.
"""

from functools import lru_cache
from typing import NamedTuple

from srt.patterns.assertions import whole
from srt.patterns.assertions.split import has_assertion
from srt.patterns.classes import general_category
from srt.patterns.ranges import (
    ANY,
    MAX_CODE_POINT,
    Range,
    Ranges,
    characters,
    complement,
    union,
    without_surrogates,
)
from srt.patterns.tree import (
    ANY_TEXT,
    EMPTY,
    Anchor,
    AnchorKind,
    Choice,
    Concat,
    Node,
    character,
    choice,
    concat,
    repeat,
)
from srt.patterns.unicode.emoji import emoji_property
from srt.wire.constraint import GrammarError

MAX_PATTERN_CHARS = 32_768
MAX_NESTING = 64
MAX_COUNT = 10_000
MAX_BRANCHES = 4096

# ECMA-262's WhiteSpace and LineTerminator.
_LINE_END = characters("\n\r\u2028\u2029")
_SPACE = union(
    (*characters("\t\v\f \u00a0\u1680\u202f\u205f\u3000\ufeff"), *_LINE_END, (0x2000, 0x200A))
)
_CLASSES: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": _SPACE,
}
_CATEGORIES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S",
    "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip
_EMOJI = {
    "EComp": "Emoji_Component", "EMod": "Emoji_Modifier", "EBase": "Emoji_Modifier_Base",
    "EPres": "Emoji_Presentation", "ExtPict": "Extended_Pictographic",
}  # fmt: skip
_PROPERTIES: dict[str, Ranges] = {"Any": ANY, "ASCII": ((0x00, 0x7F),)}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")
_START, _END = Anchor(AnchorKind.START), Anchor(AnchorKind.END)
_BOUNDARY, _NO_BOUNDARY = Anchor(AnchorKind.BOUNDARY), Anchor(AnchorKind.NO_BOUNDARY)


class EcmaConditions(NamedTuple):
    """Conditions on a string: it matches all of `wanted` and none of `without`."""

    wanted: tuple[Node, ...]
    without: tuple[Node, ...] = ()


@lru_cache(1024)
def read_ecma(source: str) -> EcmaConditions:
    """The trees of an ECMA-262 regular expression, with look-aheads after `^` as conditions of
    their own: `^(?!a)b` is `^b` and not `^a`. Raises GrammarError with the position."""
    parser = _EcmaParser(source)
    found: dict[str, list[Node]] = {"(?=": [], "(?!": []}
    parser.take("^")
    while (mark := source[parser.at : parser.at + 3]) in found and source[0] == "^":
        start, parser.at = parser.at, parser.at + 3
        inner = parser.choice(1)
        if not parser.take(")"):
            raise parser.error("unterminated group", start)
        found[mark].append(_whole(concat([_START, inner])))
    if not any(found.values()):
        return EcmaConditions((_whole(_EcmaParser(source).whole()),))
    tree = parser.sequence(0)
    if parser.peek("|"):
        raise parser.error("look-ahead is not supported beside '|'", 1)
    parser.check_end()
    wanted = (_whole(concat([_START, tree])), *found["(?="])
    return EcmaConditions(wanted, tuple(found["(?!"]))


def _whole(tree: Node) -> Node:
    """A tree without assertions for the texts in which `tree` matches somewhere."""
    return whole(choice(_unanchored(branch) for branch in _branches(tree)))


def _branches(tree: Node) -> list[list[Node]]:
    """The alternatives of a tree, each a list of items; groups that hold anchors and begin or end
    an alternative are expanded, as long as they are few."""
    found: list[list[Node]] = []
    for branch in tree.items if isinstance(tree, Choice) else (tree,):
        items: list[Node] = [*branch.items] if isinstance(branch, Concat) else [branch]
        for at in sorted({0, len(items) - 1}):
            if isinstance(items[at], Choice | Concat) and has_assertion(items[at]):
                inner = _branches(items[at])
                found += _branches(
                    choice(concat([*items[:at], *option, *items[at + 1 :]]) for option in inner)
                )
                break
        else:
            found.append(items)
        if len(found) > MAX_BRANCHES:
            raise GrammarError("has too many alternatives with anchors")
    return found


def _unanchored(items: list[Node]) -> Node:
    """An alternative, changed to match the whole string; assertions may be left in the middle."""
    head: Node = ANY_TEXT
    tail: Node = ANY_TEXT
    while items and items[0] == _START:
        head, items = EMPTY, items[1:]
    while items and items[-1] == _END:
        tail, items = EMPTY, items[:-1]
    return concat([head, *items, tail])


# ---- Parser ----------------------------------------------------------------------------------


class _EcmaParser:
    """Recursive descent over one pattern; `at` is the next character."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_PATTERN_CHARS:
            raise GrammarError(f"is longer than {MAX_PATTERN_CHARS} characters")
        self.source = source
        self.at = 0

    def whole(self) -> Node:
        tree = self.choice(0)
        self.check_end()
        return tree

    def check_end(self) -> None:
        if self.at < len(self.source):
            raise self.error("unmatched ')'")

    def error(self, what: str, at: int | None = None) -> GrammarError:
        return GrammarError(f"{what} at position {self.at if at is None else at}")

    def peek(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) if found else 0
        return found

    def next_char(self) -> str:
        if self.at >= len(self.source):
            raise self.error("the pattern ends too early")
        self.at += 1
        return self.source[self.at - 1]

    def choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise self.error(f"groups are nested deeper than {MAX_NESTING}")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return choice(options)

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            items.append(self.repeated(depth))
        return concat(items)

    def repeated(self, depth: int) -> Node:
        start = self.at
        item = self.atom(depth)
        count = self.count()
        if count is None:
            return item
        if isinstance(item, Anchor) and self.source[start] != "(":
            raise self.error("nothing to repeat", start)
        self.take("?")  # lazy or greedy: the same strings match
        if self.at < len(self.source) and self.source[self.at] in "*+?":
            raise self.error("multiple repeat")
        return repeat(item, *count)

    def count(self) -> tuple[int, int | None] | None:
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return count
        if not self.peek("{"):
            return None
        start = self.at
        end = self.source.find("}", start)
        least, comma, most = self.source[start + 1 : max(end, start + 1)].partition(",")
        if end < 0 or not _is_number(least) or not (most == "" or _is_number(most)):
            raise self.error("a '{' that is no repetition must be escaped", start)
        self.at = end + 1
        low = int(least)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > MAX_COUNT or (high is not None and high < low):
            raise self.error(f"a repetition must be ordered and at most {MAX_COUNT}", start)
        return low, high

    def atom(self, depth: int) -> Node:
        start = self.at
        char = self.next_char()
        if char in "^$":
            return _START if char == "^" else _END
        if char == ".":
            return character(complement(_LINE_END))
        if char == "(":
            return self.group(depth, start)
        if char == "[":
            return character(self.char_class(start))
        if char == "\\":
            if self.peek("b") or self.peek("B"):
                return _BOUNDARY if self.next_char() == "b" else _NO_BOUNDARY
            return character(self.escape(start, in_class=False))
        if char in "*+?":
            raise self.error("nothing to repeat", start)
        return character(characters(char))

    def group(self, depth: int, start: int) -> Node:
        if self.take("?"):
            if self.source.startswith(("=", "!", "<=", "<!"), self.at):
                name = "look-behind" if self.peek("<") else "look-ahead"
                raise self.error(f"{name} is not supported", start)
            if self.take("<"):
                self.at = self.source.find(">", self.at) + 1
                if not self.at:
                    self.at = len(self.source)
                    raise self.error("unterminated group name", start)
            elif not self.take(":"):
                raise self.error("this kind of group is not supported", start)
        inner = self.choice(depth + 1)
        if not self.take(")"):
            raise self.error("unterminated group", start)
        return inner

    def char_class(self, start: int) -> Ranges:
        negated = self.take("^")
        found: list[Range] = []
        while not self.take("]"):
            if self.at >= len(self.source):
                raise self.error("unterminated character class", start)
            found += self.class_range()
        ranges = union(found)
        return complement(ranges) if negated else without_surrogates(ranges)

    def class_range(self) -> Ranges:
        start = self.at
        low = self.class_char()
        if not self.peek("-") or self.source[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.take("-")
        high = self.class_char()
        if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
            return union((*low, *characters("-"), *high))
        if high[0][0] < low[0][0]:
            raise self.error("a range of characters is out of order", start)
        return ((low[0][0], high[0][0]),)

    def class_char(self) -> Ranges:
        start = self.at
        char = self.next_char()
        return self.escape(start, in_class=True) if char == "\\" else characters(char)

    def escape(self, start: int, in_class: bool) -> Ranges:
        char = self.next_char()
        if char in "dws":
            return _CLASSES[char]
        if char in "DWS":
            return complement(_CLASSES[char.lower()])
        if char in "pP":
            return self.property(start, negated=char == "P")
        if char == "b" and in_class:
            return characters("\b")
        if (char.isdigit() and char != "0") or char == "k":
            raise self.error("a back-reference is not supported", start)
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in "xu":
            return self.hexadecimal(char, start)
        if char == "c":
            letter = self.next_char()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error("a control escape needs a letter", start)
            return characters(chr(ord(letter) % 32))
        if char in _SYNTAX or not char.isalnum():
            return characters(char)
        raise self.error(f"the escape '\\{char}' is not known", start)

    def hexadecimal(self, kind: str, start: int) -> Ranges:
        point = self.hex_digits(2 if kind == "x" else 4, start)
        if 0xD800 <= point <= 0xDBFF and self.take("\\u"):
            low = self.hex_digits(4, start)
            if 0xDC00 <= low <= 0xDFFF:
                point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
        if point > MAX_CODE_POINT or 0xD800 <= point <= 0xDFFF:
            raise self.error("this is not a character", start)
        return ((point, point),)

    def hex_digits(self, width: int, start: int) -> int:
        if width == 4 and self.take("{"):
            end = self.source.find("}", self.at)
            digits, self.at = self.source[self.at : max(end, self.at)], max(end, self.at) + 1
        else:
            digits = self.source[self.at : self.at + width]
            self.at += width
            if len(digits) != width:
                raise self.error("too few hexadecimal digits", start)
        if not 0 < len(digits) <= 6 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.error("hexadecimal digits expected", start)
        return int(digits, 16)

    def property(self, start: int, negated: bool) -> Ranges:
        end = self.source.find("}", self.at)
        if not self.take("{") or end < 0:
            raise self.error("a property escape needs braces", start)
        name = self.source[self.at : end]
        self.at = end + 1
        name_of = name.removeprefix("General_Category=").removeprefix("gc=")
        found = general_category(_CATEGORIES.get(name_of, name_of))
        found = found or emoji_property(_EMOJI.get(name, name)) or _PROPERTIES.get(name)
        if found is None:
            raise self.error(f"the Unicode property {name!r} is not supported", start)
        return complement(found) if negated else found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
