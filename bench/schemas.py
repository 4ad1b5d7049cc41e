"""`python -m bench.schemas --data DIR`: JSON Schemas compiled and instances judged, by us and by
llguidance alone, on the JSONL files of JSONSchemaBench and of the JSON-Schema-Test-Suite in DIR.

An instance counts as accepted if some order of its properties is, in compact form: an order that
the grammar does not allow says nothing about the value. It counts as rejected if none of the orders
that the grammar can tell apart is accepted; see `Orders`. Verdicts are exact, over single bytes.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import llguidance

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.llg.backend import parser_limits
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.oracle import byte_tokenizer
from scheduler_proc.grammar.schema.plan import SchemaPlan
from scheduler_proc.grammar.schema.shapes import Distinct, Objects, Values

BENCH_FILE = "jsonschemabench_sample.jsonl"
SUITE_FILE = "json_schema_suite.jsonl"
_HEADINGS = (
    "group", "by", "compiled", "valid accepted", "invalid rejected", "undecided valid, invalid",
    "compile ms p50 / p95 / max",
)  # fmt: skip
_MAX_FORKS = 1000  # of one instance, before its verdict is given up

Work = tuple[Any, "Work"] | None


class Orders:
    """The orders of an object's names that a grammar of ours can tell apart.

    llguidance writes the members of an object in two parts: those of `properties` in the order of
    the schema, then the others in any order. So where an object schema accepts some order, it
    accepts the one with the listed names first and the others in the instance's own order: there
    is one to try for each object schema of the grammar, and an unconstrained object takes any.
    """

    def __init__(self, plan: SchemaPlan) -> None:
        """`plan` has the shapes that the grammar prints."""
        self._shapes = list(_shapes(plan))

    def of(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The different orders, at least one."""
        shapes = [shape for shape in self._shapes if shape.may_have(names)]
        orders = dict.fromkeys(tuple(sorted(names, key=shape.rank)) for shape in shapes)
        return list(orders) or [names]


class _Shape:
    """One object schema."""

    def __init__(self, listed: list[str], is_open: bool, required: list[str]) -> None:
        """With `is_open` there may be other names than those listed."""
        self._ranks = {name: i for i, name in enumerate(listed)}
        self._is_open, self._required = is_open, required

    def may_have(self, names: tuple[str, ...]) -> bool:
        """False only if an object of these names cannot be valid."""
        listed = self._is_open or self._ranks.keys() >= set(names)
        return listed and set(self._required) <= set(names)

    def rank(self, name: str) -> int:
        """Names of equal rank come in any order."""
        return self._ranks.get(name, len(self._ranks))


def _shapes(plan: SchemaPlan) -> Iterator[_Shape]:
    for shape in (shape for shapes in plan.shapes.values() for shape in shapes):
        match shape:
            case Objects():
                listed = [name for name, need in shape.properties if plan.is_possible(need)]
                is_open = any(map(plan.is_possible, [shape.rest, *(n for _, n in shape.patterns)]))
                yield _Shape(listed, is_open, list(shape.required))
            case Values(literals) | Distinct(literals):
                for literal in literals:
                    yield from _values(literal.value)


def _values(value: Any) -> Iterator[_Shape]:
    """The shapes of objects in values of `enum`: they are written as given."""
    if isinstance(value, dict):
        yield _Shape(list(value), False, list(value))
    items = value.values() if isinstance(value, dict) else value
    for item in items if isinstance(value, dict | list) else ():
        yield from _values(item)


class _Members(NamedTuple):
    """The members of an object that are still to be written, in one of `orders`; in any order if
    there are none."""

    items: dict[str, Any]
    orders: list[tuple[str, ...]]
    first: bool

    def choices(self) -> dict[str, list[tuple[str, ...]]]:
        """The names that may come next, and the orders of the names after each."""
        if not self.orders:
            return {name: [] for name in self.items}
        found: dict[str, list[tuple[str, ...]]] = {}
        for order in self.orders:
            found.setdefault(order[0], []).append(order[1:])
        return found


class OrderSearch:
    """Looks for an order of properties in which a grammar accepts a value."""

    def __init__(self, matcher: Any, schema: Any, orders: Orders | None) -> None:
        """`matcher` is an LLMatcher over the byte vocabulary, at the beginning of `schema`.
        Without `orders` all are tried, those of the schema's own listings first."""
        self._matcher, self._orders = matcher, orders
        self._listings = list(listings(schema))
        self._forks = 0

    def accepts(self, value: Any) -> bool | None:
        """Whether some order is accepted; None if none was found in _MAX_FORKS tries."""
        self._forks = 0
        given = self._sorted(value) if self._orders is None else value
        if self._walk(self._matcher.deep_copy(), (given, None)):
            return True
        return None if self._forks > _MAX_FORKS else False

    def _sorted(self, value: Any) -> Any:
        """The value with its members in the order of the `properties` that list most of them, which
        is usually the right order."""
        if isinstance(value, list):
            return [self._sorted(item) for item in value]
        if isinstance(value, dict):
            best: list[str] = max(
                self._listings, key=lambda names: len(value.keys() & set(names)), default=[]
            )
            ranks = {name: i for i, name in enumerate(best)}
            names = sorted(value, key=lambda name: ranks.get(name, len(ranks)))
            return {name: self._sorted(value[name]) for name in names}
        return value

    def _walk(self, matcher: Any, work: Work) -> bool:
        while work is not None:
            item, work = work
            if isinstance(item, bytes):
                if not _consume(matcher, item):
                    return False
            elif isinstance(item, dict):
                orders = self._orders.of(tuple(item)) if self._orders is not None else []
                work = (b"{", (_Members(item, orders, first=True), work))
            elif isinstance(item, _Members):
                if item.items:
                    return self._any_next(matcher, item, work)
                work = (b"}", work)
            else:
                work = _opened(item, work)
        return bool(matcher.is_accepting())

    def _any_next(self, matcher: Any, members: _Members, work: Work) -> bool:
        choices = members.choices()
        for name, orders in choices.items():
            self._forks += len(choices) > 1
            if self._forks > _MAX_FORKS:
                return False
            fork = matcher.deep_copy() if len(choices) > 1 else matcher
            if _consume(fork, (b"" if members.first else b",") + spelled(name) + b":"):
                left = {other: sub for other, sub in members.items.items() if other != name}
                rest = _Members(left, orders, first=False)
                if self._walk(fork, (members.items[name], (rest, work))):
                    return True
        return False


def _opened(value: Any, work: Work) -> Work:
    """The work of writing a value that is not an object, before `work`."""
    if isinstance(value, list):
        work = (b"]", work)
        for i in range(len(value) - 1, -1, -1):
            work = (value[i], work)
            work = (b",", work) if i else work
        return (b"[", work)
    return (spelled(value), work)


def listings(schema: Any) -> Iterator[list[str]]:
    """The names of each `properties` in a schema, in their order."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield list(schema["properties"])
        for value in schema.values():
            yield from listings(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from listings(item)


def spelled(value: Any) -> bytes:
    """A scalar as our grammars spell it: no fraction of zeros, DEL as an escape."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text.encode("utf-8", "surrogatepass")


def _consume(matcher: Any, data: bytes) -> bool:
    tokens = list(data)
    fits = matcher.validate_tokens(tokens) == len(tokens)
    fits = fits and bool(matcher.consume_tokens(tokens))
    if matcher.is_error():  # over a limit of the library: this says nothing about the value
        raise RuntimeError(matcher.get_error())
    return fits


# ---- Two compilers ---------------------------------------------------------------------------


class RefusedError(Exception):
    """A compiler refuses a schema."""


def _matcher(grammar: str, limits: llguidance.LLParserLimits | None = None) -> Any:
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise RefusedError(matcher.get_error().partition("\n")[0])
    return matcher


class Compiled(NamedTuple):
    """A matcher at its beginning, and the orders that its grammar can tell apart, if known."""

    matcher: Any
    orders: Orders | None


def compile_ours(schema: Any, closed: bool = False) -> Compiled:
    """By llguidance from our own grammar, with objects `closed` by default or not. Raises
    RefusedError."""
    try:
        prepared = prepare(json.dumps(schema), "compact", closed)
        return Compiled(_matcher(prepared.grammar.text(), parser_limits()), Orders(prepared.plan))
    except GrammarError as error:
        raise RefusedError(str(error)) from None


def compile_theirs(schema: Any) -> Compiled:
    """By llguidance alone, which merges object schemas as it likes. Raises RefusedError."""
    given = {"allOf": [schema]} if isinstance(schema, bool) else schema
    options: Any = {"whitespace_flexible": False}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(given), overrides=options)
    return Compiled(_matcher(grammar), None)


# ---- Counting --------------------------------------------------------------------------------


@dataclass
class Score:
    """What one compiler did on one group of schemas. Times in seconds."""

    schemas: int = 0
    compiled: int = 0
    undecided: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    right: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    wrong: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    times: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def add(self, row: dict[str, Any], compile_schema: Callable[[Any], Compiled]) -> None:
        """Compile a row's schema and judge its instances."""
        self.schemas += 1
        name = row.get("name") or f"{row['file']}: {row['description']}"
        started = time.perf_counter()
        try:
            compiled = compile_schema(row["schema"])
        except RefusedError as error:
            self.reasons.append(f"{name}: {error}")
            return
        finally:
            self.times.append(time.perf_counter() - started)
        self.compiled += 1
        search = OrderSearch(compiled.matcher, row["schema"], compiled.orders)
        for test in row["tests"]:
            self._judge(search, test, name)

    def _judge(self, search: OrderSearch, test: dict[str, Any], name: str) -> None:
        verdict = search.accepts(test["data"])
        if verdict is None:
            self.undecided[test["valid"]] += 1
        elif verdict == test["valid"]:
            self.right[test["valid"]] += 1
        else:
            self.wrong[test["valid"]] += 1
            what = test.get("description", json.dumps(test["data"])[:80])
            self.mistakes.append(f"{name}: {what}: {'accepted' if verdict else 'rejected'}")

    def row(self) -> list[str]:
        times = sorted(self.times)
        marks = [times[len(times) // 2], times[int(len(times) * 0.95)], times[-1]]
        return [
            f"{self.compiled} of {self.schemas} ({100 * self.compiled / self.schemas:.1f} %)",
            f"{self.right[True]} of {self.right[True] + self.wrong[True]}",
            f"{self.right[False]} of {self.right[False] + self.wrong[False]}",
            f"{self.undecided[True]}, {self.undecided[False]}",
            " / ".join(f"{1000 * mark:.1f}" for mark in marks),
        ]


def groups(data: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of both files, those about `format` and the optional ones separately."""
    yield "JSONSchemaBench", _rows(data / BENCH_FILE)
    suite = _rows(data / SUITE_FILE)
    about_format = [row for row in suite if "format" in row["file"]]
    others = [row for row in suite if "format" not in row["file"]]
    yield "suite, required", [row for row in others if not row["optional"]]
    yield "suite, optional", [row for row in others if row["optional"]]
    yield "suite, format", about_format


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of the JSONL files")
    parser.add_argument("--details", action="store_true", help="list refusals and mistakes")
    arguments = parser.parse_args()
    compile_ours(True)  # what is made once per process
    printed, details = [], []
    for name, rows in groups(arguments.data):
        for who, compile_schema in (("ours", compile_ours), ("llguidance", compile_theirs)):
            score = Score()
            for row in rows:
                score.add(row, compile_schema)
            printed.append([name, who, *score.row()])
            details += [f"{name}, {who}, refused: {reason}" for reason in score.reasons]
            details += [f"{name}, {who}, WRONG: {mistake}" for mistake in score.mistakes]
    for cells in ([*_HEADINGS], *printed):
        print(f"| {' | '.join(cells)} |")
    if arguments.details:
        print("\n".join(details))


if __name__ == "__main__":
    main()
