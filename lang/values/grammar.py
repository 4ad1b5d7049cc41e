"""`sgl.g`: grammars as objects, which `gen(grammar=...)` takes.

`g.text("a") + g.regex("[0-9]+").optional() | g.select(["b", "c"])`; texts may stand for `g.text`.
Grammars are immutable and can be used any number of times. A rule refers to itself by name:

    @g.rule
    def expr():
        return g.regex("[0-9]+") | "(" + expr + ")"
"""

from collections.abc import Callable, Iterable
from typing import Any

from lang.values.structured import schema_of
from srt.patterns.assertions import whole
from srt.patterns.read_re import parse
from srt.patterns.tree import Node
from srt.wire.constraint import GrammarError

_MAX_FLAT = 128  # parts


class Grammar:
    """Texts that a gen may write."""

    def __add__(self, other: "Grammar | str") -> "Grammar":
        return Sequence(self, as_grammar(other))

    def __radd__(self, other: str) -> "Grammar":
        return Sequence(as_grammar(other), self)

    def __or__(self, other: "Grammar | str") -> "Grammar":
        return OneOf(self, as_grammar(other))

    def __ror__(self, other: str) -> "Grammar":
        return OneOf(as_grammar(other), self)

    def many(self) -> "Grammar":
        """Any number of times, also none."""
        return Repeated(self, 0, None)

    def one_or_more(self) -> "Grammar":
        """Once or more."""
        return Repeated(self, 1, None)

    def optional(self) -> "Grammar":
        """Once or not at all."""
        return Repeated(self, 0, 1)

    def repeat(self, low: int, high: int | None = None) -> "Grammar":
        """`low` to `high` times; without `high`, `low` times or more."""
        for name, value in (("low", low), ("high", low if high is None else high)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"repeat: {name} must be a number, 0 or more, not {value!r}")
        if high is not None and high < low:
            raise ValueError(f"repeat: high must be at least low={low}, not {high}")
        return Repeated(self, low, high)

    def __bool__(self) -> bool:
        raise TypeError("a grammar is neither true nor false: combine grammars with | and +")

    def __str__(self) -> str:
        raise TypeError("a grammar is not text: join grammars with +")


class Exactly(Grammar):
    """One text."""

    def __init__(self, text: str) -> None:
        text.encode()  # UnicodeEncodeError, a ValueError: half of a surrogate pair is no text
        self.text = text


class Pattern(Grammar):
    """The texts that a pattern matches as a whole."""

    def __init__(self, node: Node) -> None:
        self.node = node


class Json(Grammar):
    """The JSON of a schema, which is its text."""

    def __init__(self, schema: str) -> None:
        self.schema = schema


class Sequence(Grammar):
    """One after the other."""

    def __init__(self, *parts: Grammar) -> None:
        self.parts = _flat(Sequence, parts)


class OneOf(Grammar):
    """One of several."""

    def __init__(self, *parts: Grammar) -> None:
        self.parts = _flat(OneOf, parts)


class Repeated(Grammar):
    """`low` to `high` times; None is no limit."""

    def __init__(self, part: Grammar, low: int, high: int | None) -> None:
        self.part, self.low, self.high = part, low, high


class Capture(Grammar):
    """What `part` matches gets a name."""

    def __init__(self, name: str, part: Grammar) -> None:
        self.name, self.part = name, part


class Rule(Grammar):
    """What a function returns, which is called when the grammar is first used."""

    def __init__(self, make: Callable[[], "Grammar | str"]) -> None:
        self._make = make
        self._made: Grammar | None = None
        self.name = getattr(make, "__name__", "rule")

    @property
    def body(self) -> Grammar:
        """The grammar."""
        if self._made is None:
            self._made = as_grammar(self._make(), f"the rule {self.name}")
        return self._made


def _flat(kind: "type[Sequence | OneOf]", parts: Iterable[Grammar]) -> tuple[Grammar, ...]:
    """Parts of the same kind give their parts, so that long sums are not deep, unless they are
    many: what is added to itself again and again stays small."""
    found: list[Grammar] = []
    for part in parts:
        is_inner = isinstance(part, kind) and len(part.parts) < _MAX_FLAT
        found += part.parts if isinstance(part, kind) and is_inner else (part,)
    return tuple(found)


def as_grammar(given: Any, what: str = "a grammar") -> Grammar:
    """A grammar, or the text that stands for one. TypeError for anything else."""
    if isinstance(given, str):
        return text(given)
    if isinstance(given, Grammar):
        return given
    raise TypeError(f"{what} must be a grammar or a text, not {given!r}")


def text(given: str) -> Grammar:
    """Exactly this text."""
    if not isinstance(given, str):
        raise TypeError(f"text takes a text, not {given!r}")
    return Exactly(str(given))


def regex(pattern: str) -> Grammar:
    """What a pattern, in the syntax of gen's `regex`, matches as a whole. ValueError, with the
    position, for one that is wrong or not regular, and for named groups: `capture` names parts."""
    if "(?P<" in pattern:
        raise ValueError("g.regex takes no named groups: g.capture(name, part) names a part")
    try:
        return Pattern(whole(parse(pattern)))
    except GrammarError as error:
        raise ValueError(f"g.regex: {error}") from None


def select(choices: "Iterable[Grammar | str]") -> Grammar:
    """One of several texts or grammars."""
    if isinstance(choices, str):
        raise TypeError("g.select takes a list of texts or grammars")
    parts = [as_grammar(each) for each in choices]
    if not parts:
        raise ValueError("g.select takes at least one text or grammar")
    return parts[0] if len(parts) == 1 else OneOf(*parts)


def json(schema: Any) -> Grammar:
    """The JSON of what gen's `schema` takes: a dict, a pydantic model, any type of msgspec's."""
    return Json(schema_of(schema)[0])


def rule(make: Callable[[], "Grammar | str"]) -> Grammar:
    """A decorator: the grammar that a function without arguments returns. It is called when the
    grammar is first used, so the function may use its own name."""
    if not callable(make):
        raise TypeError(f"g.rule takes a function without arguments, not {make!r}")
    return Rule(make)


def capture(name: str, part: "Grammar | str") -> Grammar:
    """`part`; what it matched is `s[variable].name`."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ValueError(f"g.capture takes a name like a variable's, not {name!r}")
    return Capture(name, as_grammar(part))
