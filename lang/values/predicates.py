"""Predicates over what a gen writes, and the one constraint that they become.

A predicate is a tree, which has two readings: `holds`, on a text in Python, and `constraint_of`, a
regex where that suffices, otherwise a grammar of one Lark terminal with intersections and
complements. Both mean the same texts. Only what is regular can be a predicate.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from srt.patterns.assertions import whole
from srt.patterns.errors import StateLimitError
from srt.patterns.groups import GroupPattern
from srt.patterns.lark import all_of, one_terminal, terminal
from srt.patterns.ranges import ANY, characters, complement
from srt.patterns.read_re import parse
from srt.patterns.tree import (
    ANY_TEXT,
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Node,
    choice,
    concat,
    repeat,
)
from srt.patterns.tree import Literal as Exactly
from srt.patterns.write import FREE_TEXT, regex

_ANY_CHAR = Chars(ANY)
# Of whole characters: a complement alone has bytes that are none.
_ANY_TEXT = terminal(FREE_TEXT)
MAX_STATES = 2**16  # of a pattern that answers are checked by

Field = Literal["regex", "ebnf"]


class Predicate:
    """What a text may be. Combine predicates with `&`, `|` and `~`."""

    def holds(self, text: str) -> bool:
        """Whether `text` satisfies it."""
        raise NotImplementedError

    def node(self) -> Node | None:
        """Its texts as one pattern; None if that takes an intersection or a complement."""
        return None

    def terminal(self) -> str:
        """Its texts as an expression of Lark's terminals."""
        node = self.node()
        assert node is not None, "predicates without a pattern have a terminal of their own"
        return terminal(regex(node))

    def __and__(self, other: object) -> "Predicate":
        return _joined(And, self, other)

    def __or__(self, other: object) -> "Predicate":
        return _joined(Or, self, other)

    def __invert__(self) -> "Predicate":
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"where: `{self}` is known only when the text is there: combine predicates with "
            "&, | and ~ in parentheses, not with and, or, not, if, in or a chain of comparisons"
        )


def _joined(kind: "type[And | Or]", first: Predicate, second: object) -> Predicate:
    if not isinstance(second, Predicate):
        raise TypeError(f"where: `{first}` can be combined with predicates only, not {second!r}")
    return kind(first, second)


@dataclass(frozen=True)
class _Two(Predicate):
    """Two predicates, with `sign` between them in Lark and in Python."""

    first: Predicate
    second: Predicate
    sign: ClassVar[str]

    def terminal(self) -> str:
        return f"({self.first.terminal()} {self.sign} {self.second.terminal()})"

    def __str__(self) -> str:
        return f"({self.first}) {self.sign} ({self.second})"


class And(_Two):
    """Both hold."""

    sign = "&"

    def holds(self, text: str) -> bool:
        return self.first.holds(text) and self.second.holds(text)


class Or(_Two):
    """One of them holds, or both."""

    sign = "|"

    def holds(self, text: str) -> bool:
        return self.first.holds(text) or self.second.holds(text)

    def node(self) -> Node | None:
        nodes = [self.first.node(), self.second.node()]
        return choice(node for node in nodes if node is not None) if None not in nodes else None


@dataclass(frozen=True)
class Not(Predicate):
    """It does not hold."""

    inner: Predicate

    def holds(self, text: str) -> bool:
        return not self.inner.holds(text)

    def terminal(self) -> str:
        return f"({_ANY_TEXT} & ~({self.inner.terminal()}))"

    def __str__(self) -> str:
        return f"~({self.inner})"


@dataclass(frozen=True)
class Length(Predicate):
    """The text has `low` to `high` characters; None is no limit."""

    low: int
    high: int | None

    def holds(self, text: str) -> bool:
        return self.low <= len(text) and (self.high is None or len(text) <= self.high)

    def node(self) -> Node | None:
        if self.high is not None and self.high < self.low:
            return Chars(())
        return repeat(_ANY_CHAR, self.low, self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"x.length >= {self.low}"
        if not self.low:
            return f"x.length <= {self.high}"
        return f"x.length.between({self.low}, {self.high})"


@dataclass(frozen=True)
class _OfText(Predicate):
    """A predicate with a text, which is not empty."""

    text: str

    def __str__(self) -> str:
        return f"x.{self.word}({self.text!r})"

    @property
    def word(self) -> str:
        """What programs call it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


class StopsAt(_OfText):
    """The text ends with the first occurrence of another."""

    def holds(self, text: str) -> bool:
        return text.find(self.text) == len(text) - len(self.text) >= 0

    def node(self) -> Node | None:
        if len(self.text) > 1:
            return None
        return concat(
            [repeat(Chars(complement(characters(self.text))), 0, None), Exactly(self.text)]
        )

    def terminal(self) -> str:
        if len(self.text) == 1:
            return super().terminal()
        ends = concat([ANY_TEXT, Exactly(self.text)])
        after = concat([ends, repeat(_ANY_CHAR, 1, None)])
        return f"({all_of([regex(ends)], [regex(after)])})"


class StartsWith(_OfText):
    """The text begins with another."""

    def holds(self, text: str) -> bool:
        return text.startswith(self.text)

    def node(self) -> Node | None:
        return concat([Exactly(self.text), ANY_TEXT])


class EndsWith(_OfText):
    """The text ends with another, which may occur before, too."""

    def holds(self, text: str) -> bool:
        return text.endswith(self.text)

    def node(self) -> Node | None:
        return concat([ANY_TEXT, Exactly(self.text)])


class Contains(_OfText):
    """Another text occurs in it."""

    def holds(self, text: str) -> bool:
        return self.text in text

    def node(self) -> Node | None:
        return concat([ANY_TEXT, Exactly(self.text), ANY_TEXT])


class Inside(_OfText):
    """The text occurs in another."""

    def holds(self, text: str) -> bool:
        return text in self.text

    def terminal(self) -> str:
        return f"(%regex {json.dumps({'substring_chars': self.text})})"

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:37] + "..."
        return f"x.inside({shown!r})"


@dataclass(frozen=True)
class In(Predicate):
    """The text is one of several."""

    texts: tuple[str, ...]

    def holds(self, text: str) -> bool:
        return text in self.texts

    def node(self) -> Node | None:
        return choice(Exactly(text) for text in self.texts)

    def __str__(self) -> str:
        return f"x.in_({list(self.texts)!r})"


@dataclass(frozen=True)
class Matches(Predicate):
    """A pattern of `re`, read with re.ASCII, matches all of the text. Raises GrammarError for one
    that is wrong, not regular, or too large."""

    pattern: str

    def __post_init__(self) -> None:
        self.node()
        _readable(self.pattern)

    def holds(self, text: str) -> bool:
        return _readable(self.pattern).whole_spans(text) is not None

    def node(self) -> Node | None:
        return whole(parse(self.pattern))

    def __str__(self) -> str:
        return f"x.matches({self.pattern!r})"


@lru_cache(64)
def _readable(pattern: str) -> GroupPattern:
    """The pattern as something that reads texts in linear time, as `re` does not."""
    try:
        return GroupPattern(pattern, MAX_STATES)
    except StateLimitError:
        reason = f"it takes more than {MAX_STATES:,} states, its repetitions unrolled"
        raise StateLimitError(reason) from None


def constraint_of(predicate: Predicate) -> tuple[Field, str]:
    """The field of a request that holds its texts, and that field's value."""
    node = predicate.node()
    if node is not None:
        return "regex", regex(node)
    return "ebnf", one_terminal(predicate.terminal()) + "\n"


def missed(predicate: Predicate, text: str) -> Predicate | None:
    """The first part, of those that must all hold, that does not hold for `text`."""
    if isinstance(predicate, And):
        first = missed(predicate.first, text)
        return missed(predicate.second, text) if first is None else first
    return None if predicate.holds(text) else predicate


def searched(pattern: str) -> Predicate:
    """The texts in which `pattern` is found, as msgspec's Meta(pattern=...) has it. Raises
    GrammarError for `$` inside of it, and where its assertions are too complex."""
    return Matches(regex(_with_others_around(parse(pattern))))


def _with_others_around(node: Node) -> Node:
    if isinstance(node, Choice):
        return choice(map(_with_others_around, node.items))
    items = node.items if isinstance(node, Concat) else (node,)
    first, last = items[0], items[-1]
    before = [] if isinstance(first, Anchor) and first.kind is AnchorKind.START else [ANY_TEXT]
    is_end = isinstance(last, Anchor) and last.kind in (AnchorKind.END, AnchorKind.FINAL_END)
    return whole(concat([*before, node, *([] if is_end else [ANY_TEXT])]))
