"""What grammars of `sgl.g` become: a regex if they are regular, otherwise Lark.

A regex is exact and fastest, and its named groups are found in linear time. In Lark, the terminals
are single characters: see `srt.patterns.lark`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from lang.values.grammar import (
    Capture,
    Exactly,
    Grammar,
    Json,
    OneOf,
    Pattern,
    Repeated,
    Rule,
    Sequence,
)
from lang.values.type_schemas import close_objects
from srt.patterns.groups import GroupPattern
from srt.patterns.lark import EMPTY, LarkWriter, body_of, either, times
from srt.patterns.read_re import parse
from srt.patterns.tree import Literal as Text
from srt.patterns.write import regex
from srt.wire.constraint import GrammarError

MAX_REGEX_CHARS = 2**15
MAX_DEPTH = 100


class Compiled(NamedTuple):
    """The field of a request, its value, and the names of the captures."""

    field: Literal["regex", "ebnf"]
    source: str
    captures: tuple[str, ...]


def compiled(grammar: Grammar) -> Compiled:
    """A grammar as a constraint. Raises ValueError if it is nested too deeply, and for a rule that
    is nothing but itself."""
    parts = list(_walk(grammar))
    names = [part.name for part in parts if isinstance(part, Capture)]
    distinct = tuple(dict.fromkeys(names))
    uses = Counter(map(id, _uses(parts)))
    is_single = len(distinct) == len(names) and not any(
        isinstance(part, Capture) and uses[id(part)] > 1 for part in parts
    )
    source = _Regexes().of(grammar) if is_single else None
    if source is not None and _is_read(source, bool(names)):
        return Compiled("regex", source, distinct)
    return Compiled("ebnf", _Lark(uses).of(grammar), distinct)


def _is_read(source: str, has_names: bool) -> bool:
    """Whether the server takes a regex: it may be too deep, or have too many states for groups."""
    try:
        GroupPattern(source) if has_names else parse(source)
    except GrammarError:
        return False
    return True


def _inner(part: Grammar) -> tuple[Grammar, ...]:
    match part:
        case Sequence() | OneOf():
            return part.parts
        case Repeated() | Capture():
            return (part.part,)
        case Rule():
            return (part.body,)
    return ()


def _uses(parts: list[Grammar]) -> Iterator[Grammar]:
    for part in parts:
        yield from _inner(part)


def _walk(grammar: Grammar) -> Iterator[Grammar]:
    """Every part once. Objects live as long as the grammar, so their ids are theirs."""
    seen = {id(grammar)}
    stack = [grammar]
    while stack:
        part = stack.pop()
        yield part
        for each in _inner(part):
            if id(each) not in seen:
                seen.add(id(each))
                stack.append(each)


class _Regexes:
    """Writes parts as regexes; None for what is not regular, or too long."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}
        self._open: set[int] = set()  # parts that are being written

    def of(self, part: Grammar) -> str | None:
        key = id(part)
        if key in self._known:
            return self._known[key]
        if key in self._open or len(self._open) > MAX_DEPTH:
            return None
        self._open.add(key)
        written = self._written(part)
        self._open.discard(key)
        if written is not None and len(written) > MAX_REGEX_CHARS:
            written = None
        self._known[key] = written
        return written

    def _written(self, part: Grammar) -> str | None:
        match part:
            case Exactly(text=text):
                return regex(Text(text))
            case Pattern(node=node):
                return f"(?:{regex(node)})"
            case Json():
                return None
        inner = [self.of(each) for each in _inner(part)]
        texts = [each for each in inner if each is not None]
        if len(texts) < len(inner):
            return None
        match part:
            case Sequence():
                return "".join(texts)
            case OneOf():
                return f"(?:{'|'.join(texts)})"
            case Repeated(low=low, high=high):
                return f"(?:{texts[0]}){{{low},{'' if high is None else high}}}"
            case Capture(name=name):
                return f"(?P<{name}>{texts[0]})"
        return f"(?:{texts[0]})"


class _Lark:
    """Writes rules: one for each capture and rule, and for each part that is used several times."""

    def __init__(self, uses: "Counter[int]") -> None:
        self._uses = uses
        self._names: dict[int, str] = {}
        self._writer = LarkWriter()
        self._waiting: list[tuple[str, Grammar]] = []  # rules that have a name, but no line yet
        self._depth = 0

    def of(self, grammar: Grammar) -> str:
        """The whole text."""
        start = self._of(grammar)
        while self._waiting:
            head, part = self._waiting.pop()
            self._writer.rules[head] = self._written(part)
        return self._writer.text(start) + "\n"

    def _of(self, part: Grammar) -> str:
        """What stands for a part in a rule."""
        is_shared = self._uses[id(part)] > 1 and _inner(part) != ()
        if not (is_shared or isinstance(part, Capture | Rule)):
            return self._written(part)
        if id(part) not in self._names:
            name = self._names[id(part)] = f"part_{len(self._names)}"
            if isinstance(part, Rule) and _is_only_itself(part):
                raise ValueError(f"the rule {part.name} is nothing but itself")
            attributes = f'[capture="{part.name}"]' if isinstance(part, Capture) else ""
            self._waiting.append((name + attributes, part))
        return self._names[id(part)]

    def _written(self, part: Grammar) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"the grammar is nested deeper than {MAX_DEPTH} levels")
        try:
            return self._right_side(part)
        finally:
            self._depth -= 1

    def _right_side(self, part: Grammar) -> str:
        match part:
            case Exactly(text=text):
                return body_of(Text(text), self._writer.character)
            case Pattern(node=node):
                return f"({body_of(node, self._writer.character)})"
            case Json(schema=schema):
                return f"%json {_compact(schema)}"
            case Sequence(parts=parts):
                return " ".join(map(self._of, parts))
            case OneOf(parts=parts):
                return either(map(self._of, parts))
            case Repeated(high=0):
                return EMPTY
            case Repeated(part=inner, low=low, high=high):
                return times(self._of(inner), low, high)
            case Capture(part=inner):
                return self._of(inner)
            case Rule():
                return self._of(part.body)
        raise TypeError(f"not a grammar of sgl.g: {part!r}")


def _is_only_itself(rule: Rule) -> bool:
    """Whether a rule leads to itself through rules and captures only."""
    seen: set[int] = set()
    part: Grammar = rule
    while isinstance(part, Rule | Capture) and id(part) not in seen:
        seen.add(id(part))
        part = _inner(part)[0]
    return id(part) in seen


def _with_patterns(schema: Any) -> Any:
    """A schema in which the names of dicts' members, of which the parser of Lark knows no
    `propertyNames`, are patterns."""
    if isinstance(schema, list):
        return [_with_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _with_patterns(value) for key, value in schema.items()}
    names = made.get("propertyNames")
    if made.get("type") != "object" or not isinstance(names, dict):
        return made
    if names == {"type": "string"}:
        del made["propertyNames"]
    elif "pattern" in names and "patternProperties" not in made:
        del made["propertyNames"]
        values = made.get("additionalProperties", True)
        made |= {"patternProperties": {names["pattern"]: values}, "additionalProperties": False}
    return made


def _compact(schema: str) -> str:
    """A schema for Lark: the JSON of its values has no blanks between its tokens, and its objects
    are closed, as the server closes them only in a `json_schema`."""
    given = msgspec.json.decode(schema)
    if not isinstance(given, dict):
        return schema
    closed = given.pop("x-closed", None)
    if closed is not False and not close_objects(given) and closed:
        reason = "several schemas list properties of one object, which a grammar cannot close"
        raise ValueError(f'"x-closed": true in the JSON schema of a grammar: {reason}')
    given = _with_patterns(given)
    options = {"whitespace_flexible": False, "coerce_one_of": True}
    return msgspec.json.encode({**given, "x-guidance": options}).decode()
