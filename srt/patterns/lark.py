"""Grammars as Lark, in llguidance's dialect: the only place that spells its syntax.

`LarkWriter` collects rules and terminals; the functions write what stands on the right side of
one. Terminals mostly are single characters: llguidance's lexer takes the longest terminal, and
would lose texts if terminals overlapped.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from srt.patterns.ranges import Ranges, characters
from srt.patterns.tree import Chars, Choice, Concat, Literal, Node, Reference, Repeat
from srt.patterns.write import regex

EMPTY = '""'
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


class LarkWriter:
    """Collects the rules and the terminals of a grammar. Rules may be added directly: `rules` has
    bodies by names, which include attributes and parameters."""

    def __init__(self, terminal_prefix: str = "CHAR_") -> None:
        self.rules: dict[str, str] = {}
        self._prefix = terminal_prefix
        self._terminals: dict[str, str] = {}  # names by bodies

    def rule(self, prefix: str, body: str, attributes: str = "") -> str:
        """Adds a rule; its fresh name."""
        name = f"{prefix}_{len(self.rules)}"
        self.rules[name + attributes] = body
        return name

    def terminal(self, body: str) -> str:
        """The name of a terminal, which is added if it is new."""
        return self._terminals.setdefault(body, f"{self._prefix}{len(self._terminals)}")

    def character(self, ranges: Ranges) -> str:
        """The name of the terminal for one character of a set."""
        return self.terminal(terminal(regex(Chars(ranges))))

    def text(self, start: str) -> str:
        """The whole grammar; `start` is the body of its first rule."""
        rules = [f"{name}: {body}" for name, body in self.rules.items()]
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join([f"start: {start}", *rules, *terminals])


def one_terminal(body: str) -> str:
    """A grammar that is nothing but one terminal."""
    return f"start: TEXT\nTEXT: {body}"


def terminal(rust: str) -> str:
    """A regex, in the syntax of Rust's regex crate, as a terminal's body: between slashes, so that
    a slash in it must be escaped."""
    found, escaped = [], False
    for char in rust:
        found.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        escaped = char == "\\" and not escaped
    return f"/{''.join(found)}/"


def all_of(regexes: Iterable[str], none_of: Iterable[str] = ()) -> str:
    """The body of a terminal for the texts that match all regexes of the first kind, and none of
    the second."""
    conditions = [*map(terminal, regexes), *(f"~{terminal(rust)}" for rust in none_of)]
    return " & ".join(conditions)


def either(bodies: Iterable[str]) -> str:
    """One of several bodies."""
    return f"({' | '.join(bodies)})"


def times(body: str, low: int, high: int | None) -> str:
    """A body `low` to `high` times; None is no limit."""
    return f"({body}){{{low},{'' if high is None else high}}}"


def body_of(
    node: Node | Reference,
    character: Callable[[Ranges], str],
    names: Mapping[str, str] = _NO_NAMES,
) -> str:
    """A tree as a rule's body. `character` writes one character of a set, and `names` has the
    names of the rules that the tree refers to."""
    match node:
        case Reference(name):
            return names[name]
        case Literal("") | Repeat(_, _, 0):
            return EMPTY
        case Literal(text):
            return " ".join(character(characters(char)) for char in text)
        case Chars(ranges):
            return character(ranges)
        case Concat(items):
            return " ".join(body_of(item, character, names) for item in items)
        case Choice(items):
            return either(body_of(item, character, names) for item in items)
        case Repeat(item, low, high):
            return times(body_of(item, character, names), low, high)
        case _:
            raise TypeError(f"{node!r} cannot be written")
