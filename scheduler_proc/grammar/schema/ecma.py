"""Parse the patterns of JSON Schema, which are ECMA-262 regular expressions (Unicode mode).

Called for `pattern` and `patternProperties`. The result matches whole strings: free text is added
where the pattern is not anchored. What a finite automaton cannot do, or where ECMA's meaning
differs and cannot be kept, is refused with its position; nothing is passed through unread.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import charset
from scheduler_proc.grammar.schema.charset import CharSet
from scheduler_proc.grammar.schema.pattern import (
    ANY_TEXT,
    Chars,
    Choice,
    Node,
    Pattern,
    Repeat,
    Sequence,
    pattern_of,
)
from scheduler_proc.grammar.schema.shapes import Strings

MAX_PATTERN_CHARS = 32_768
MAX_NESTING = 64
MAX_COUNT = 10_000
MAX_BRANCHES = 4096

_CLASSES = {"d": charset.DIGIT, "w": charset.WORD, "s": charset.SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")


@dataclass(frozen=True)
class _Anchor:
    """`^` or `$`, with the position where it stands."""

    start: bool
    position: int


_START: Any = _Anchor(start=True, position=0)


@lru_cache(1024)
def parse_ecma(source: str) -> Pattern:
    """The pattern of an ECMA-262 regex. Raises GrammarError with the position."""
    return _whole(_Parser(source).rest())


@lru_cache(1024)
def ecma_strings(source: str) -> Strings:
    """What a regex matches, with look-aheads behind `^` as conditions of their own: `^(?!a)b` is
    `^b` and not `^a`. Raises GrammarError as `parse_ecma` does."""
    parser = _Parser(source)
    found: dict[str, list[Pattern]] = {"(?=": [], "(?!": []}
    parser.take("^")
    while (mark := source[parser.at : parser.at + 3]) in found and source[0] == "^":
        start, parser.at = parser.at, parser.at + 3
        inner = parser.choice(1)
        if not parser.take(")"):
            raise parser.error("unterminated group", start)
        found[mark].append(_whole(Sequence((_START, inner))))
    if not any(found.values()):
        return Strings(patterns=(parse_ecma(source),))
    tree = parser.rest()
    if isinstance(tree, Choice):
        raise parser.error("look-ahead is not supported beside '|'", 1)
    wanted = (_whole(Sequence((_START, tree))), *found["(?="])
    return Strings(patterns=wanted, without=tuple(found["(?!"]))


def _whole(tree: Node) -> Pattern:
    return pattern_of(Choice(tuple(_unanchored(branch) for branch in _branches(tree))))


# ---- Anchors ---------------------------------------------------------------------------------


def _branches(tree: object) -> "list[list[object]]":
    """The alternatives of a tree, each a list of items, with those groups spread out that begin
    or end an alternative and hold anchors."""
    found: list[list[object]] = []
    for branch in tree.items if isinstance(tree, Choice) else (tree,):
        items: list[object] = list(branch.items) if isinstance(branch, Sequence) else [branch]
        for at in sorted({0, len(items) - 1} & set(range(len(items)))):
            if isinstance(items[at], Choice | Sequence) and _first_anchor(items[at]):
                inner = _branches(items[at])
                spread: list[Node] = [
                    Sequence((*items[:at], *option, *items[at + 1 :]))  # type: ignore[arg-type]
                    for option in inner
                ]
                found += _branches(Choice(tuple(spread)))
                break
        else:
            found.append(items)
        if len(found) > MAX_BRANCHES:
            raise GrammarError("has too many alternatives with anchors")
    return found


def _first_anchor(node: object) -> _Anchor | None:
    match node:
        case _Anchor():
            return node
        case Sequence(items) | Choice(items):
            return next((found for item in items if (found := _first_anchor(item))), None)
        case Repeat(item, _, _):
            return _first_anchor(item)
        case _:
            return None


def _unanchored(items: "list[object]") -> Node:
    """An alternative as one that matches the whole string."""
    anchored_start = anchored_end = False
    while items and isinstance(items[0], _Anchor) and items[0].start:
        anchored_start, items = True, items[1:]
    while items and isinstance(items[-1], _Anchor) and not items[-1].start:
        anchored_end, items = True, items[:-1]
    inner = [item for item in items if isinstance(item, Chars | Choice | Repeat | Sequence)]
    for item in items:
        anchor = _first_anchor(item)
        if anchor is not None:
            name = "^" if anchor.start else "$"
            raise GrammarError(
                f"{name!r} in the middle is not supported at position {anchor.position}"
            )
    head: list[Node] = [] if anchored_start else [ANY_TEXT]
    tail: list[Node] = [] if anchored_end else [ANY_TEXT]
    return Sequence((*head, *inner, *tail))


# ---- Parser ----------------------------------------------------------------------------------


class _Parser:
    """Recursive descent over one pattern; `at` is the next character."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_PATTERN_CHARS:
            raise GrammarError(f"is longer than {MAX_PATTERN_CHARS} characters")
        self.source = source
        self.at = 0

    def rest(self) -> Node:
        tree = self.choice(0)
        if self.at < len(self.source):
            raise self.error("unmatched ')'")
        return tree

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
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, depth: int) -> Node:
        items: list[object] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            items.append(self.repeated(depth))
        return Sequence(tuple(items))  # type: ignore[arg-type]

    def repeated(self, depth: int) -> object:
        start = self.at
        item = self.atom(depth)
        count = self.count()
        if count is None:
            return item
        if not isinstance(item, Chars | Choice | Repeat | Sequence):
            raise self.error("nothing to repeat", start)
        self.take("?")  # lazy or greedy: the same strings match
        if self.at < len(self.source) and self.source[self.at] in "*+?":
            raise self.error("multiple repeat")
        return Repeat(item, *count)

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

    def atom(self, depth: int) -> object:
        start = self.at
        char = self.next_char()
        if char in "^$":
            return _Anchor(char == "^", start)
        if char == ".":
            return Chars(charset.complement(charset.LINE_END))
        if char == "(":
            return self.group(depth, start)
        if char == "[":
            return Chars(self.char_class(start))
        if char == "\\":
            return Chars(self.escape(start, in_class=False))
        if char in "*+?":
            raise self.error("nothing to repeat", start)
        return Chars(charset.chars(char))

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
        return Choice((inner,)) if not isinstance(inner, Choice) else inner

    def char_class(self, start: int) -> CharSet:
        negated = self.take("^")
        found: list[CharSet] = []
        while not self.take("]"):
            if self.at >= len(self.source):
                raise self.error("unterminated character class", start)
            found.append(self.class_range())
        ranges = charset.union(*found)
        return charset.complement(ranges) if negated else ranges

    def class_range(self) -> CharSet:
        start = self.at
        low = self.class_char()
        if not self.peek("-") or self.source[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.take("-")
        high = self.class_char()
        if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
            return charset.union(low, charset.chars("-"), high)
        if high[0][0] < low[0][0]:
            raise self.error("a range of characters is out of order", start)
        return charset.union(((low[0][0], high[0][0]),))

    def class_char(self) -> CharSet:
        start = self.at
        char = self.next_char()
        return self.escape(start, in_class=True) if char == "\\" else charset.chars(char)

    def escape(self, start: int, in_class: bool) -> CharSet:
        char = self.next_char()
        if char in "dws":
            return _CLASSES[char]
        if char in "DWS":
            return charset.complement(_CLASSES[char.lower()])
        if char in "pP":
            return self.property(start, negated=char == "P")
        if char == "b" and in_class:
            return charset.chars("\b")
        if char in "bB" or (char.isdigit() and char != "0") or char == "k":
            name = "a word boundary" if char in "bB" else "a back-reference"
            raise self.error(f"{name} is not supported", start)
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in "xu":
            return self.hexadecimal(char, start)
        if char == "c":
            letter = self.next_char()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error("a control escape needs a letter", start)
            return charset.chars(chr(ord(letter) % 32))
        if char in _SYNTAX or not char.isalnum():
            return charset.chars(char)
        raise self.error(f"the escape '\\{char}' is not known", start)

    def hexadecimal(self, kind: str, start: int) -> CharSet:
        point = self.hex_digits(2 if kind == "x" else 4, start)
        if 0xD800 <= point <= 0xDBFF and self.take("\\u"):
            low = self.hex_digits(4, start)
            if 0xDC00 <= low <= 0xDFFF:
                point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
        if point > charset.MAX_CODE_POINT or 0xD800 <= point <= 0xDFFF:
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

    def property(self, start: int, negated: bool) -> CharSet:
        end = self.source.find("}", self.at)
        if not self.take("{") or end < 0:
            raise self.error("a property escape needs braces", start)
        name = self.source[self.at : end]
        self.at = end + 1
        found = charset.category(name.removeprefix("General_Category=").removeprefix("gc="))
        if found is None:
            raise self.error(f"the Unicode property {name!r} is not supported", start)
        return charset.complement(found) if negated else found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
