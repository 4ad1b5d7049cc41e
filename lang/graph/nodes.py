"""A recorded program as a graph: nodes for what is in its prompts, with what each needs."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct

from lang.generation.calls import described
from lang.generation.gens import Gen
from lang.generation.selects import Score, Select
from lang.graph.ops import Extend, Fork, Inner, Join, Op, Read, Recorded, Write, flat, refs_in
from lang.logs.entries import digest_of
from lang.run.ir import Constant, Expr, Media, Part, RoleBegin, RoleEnd, placeholders_of
from lang.state.control import Repeat, Unordered, When
from lang.state.refs import Ref

# text, role, image, video, gen, select, score, pure, fork, join, set, when, repeat, unordered, run
Kind = str
MODEL_CALLS = ("gen", "select", "score", "when", "repeat")


class Node(Struct, frozen=True):
    """One node. `level` is how many calls of the model are before it, on the longest way. `inputs`
    are nodes whose text it needs besides what is before it in its state. `same_as` has the same
    prompt and parameters: at temperature 0, or with a seed of its own, one call answers both.
    """

    id: int
    kind: Kind
    state: int
    label: str
    source: str
    level: int
    inputs: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    same_as: int | None = None
    is_dead: bool = False


def nodes_of(recorded: Recorded, dropped: Collection[int]) -> list[Node]:
    """The nodes, in the order of the source; those of steps whose ids are in `dropped` are dead."""
    return list(_Reader(recorded, dropped).nodes())


class _Reader:
    def __init__(self, recorded: Recorded, dropped: Collection[int]) -> None:
        self._ops, self._dropped = list(flat(recorded.ops)), dropped
        self._arguments = {number: name for name, number in recorded.arguments.items()}
        self._count = 0
        self._levels: dict[int, int] = {}  # of states
        self._said: dict[int, str] = {}  # hashes of the prompts so far
        self._values: dict[int, tuple[int, int]] = {}  # level and node of placeholders
        self._writers: dict[tuple[int, str], tuple[int, int]] = {}
        self._calls: dict[str, int] = {}

    def nodes(self) -> Iterator[Node]:
        for op in self._ops:
            match op:
                case Extend():
                    yield self._extend(op)
                case Fork(state=state, children=children):
                    node = self._node("fork", op, f"{len(children)} states", children=children)
                    for child in children:
                        self._levels[child] = self._levels.get(state, 0)
                        self._said[child] = self._said.get(state, "")
                        for (owner, name), value in list(self._writers.items()):
                            if owner == state:
                                self._writers[child, name] = value
                    yield node
                case Join(state=state, children=children):
                    level = max(self._levels.get(each, 0) for each in (state, *children))
                    self._levels[state] = level
                    node = self._node("join", op, op.mode, children=children)
                    self._say(state, ["join", [self._said.get(each, "") for each in children]])
                    for (owner, name), (_, _writer) in list(self._writers.items()):
                        if owner in children:
                            self._writers[state, name] = (level, node.id)
                    yield node
                case Write(state=state, name=name):
                    node = self._node("set", op, name, needs=placeholders_of(refs_in(op.value)))
                    self._writers[state, name] = (node.level, node.id)
                    yield node
                case Read(state=state, name=name, number=number):
                    known = self._writers.get((state, name or ""))
                    self._values[number] = known or (self._levels.get(state, 0), -1)
                case Inner(function=function):
                    yield self._node("run", op, getattr(function, "__name__", "program"))

    def _extend(self, op: Extend) -> Node:
        part = op.part
        kind, label, spec = _described(part)
        needs = part.placeholders if isinstance(part, Expr) else frozenset()
        level = max([self._levels.get(op.state, 0), *self._levels_of(needs)])
        self._levels[op.state] = level
        same = None
        if kind in ("gen", "select"):
            key = digest_of([self._said.get(op.state, ""), kind, spec])
            same = self._calls.setdefault(key, self._count)
        node = self._node(kind, op, label, needs=needs, same_as=same)
        values = [self._arguments.get(n, str(self._values.get(n))) for n in sorted(needs)]
        self._say(op.state, [kind, spec, values])
        if kind in MODEL_CALLS:
            self._levels[op.state] = level + 1
        for name in part.names if isinstance(part, Expr) else ():
            self._writers[op.state, name or ""] = (self._levels[op.state], node.id)
        return node

    def _node(
        self,
        kind: Kind,
        op: Op,
        label: str,
        needs: Collection[int] = (),
        children: Sequence[int] = (),
        same_as: int | None = None,
    ) -> Node:
        inputs = {self._values[n][1] for n in needs if n in self._values}
        level = max([self._levels.get(op.state, 0), *self._levels_of(needs)])
        made = Node(
            self._count,
            kind,
            op.state,
            label,
            getattr(op, "source", ""),
            level,
            tuple(sorted(inputs - {-1})),
            tuple(children),
            None if same_as == self._count else same_as,
            id(op) in self._dropped,
        )
        self._count += 1
        return made

    def _levels_of(self, needs: Collection[int]) -> list[int]:
        return [self._values[n][0] for n in needs if n in self._values]

    def _say(self, state: int, what: Any) -> None:
        self._said[state] = digest_of([self._said.get(state, ""), what])


def _described(part: Part) -> tuple[Kind, str, Any]:
    """Kind, label and what tells it from others."""
    match part:
        case str():
            return "text", part, part
        case Constant():
            return "text", part.text, part.text
        case Media():
            image = part.image
            return image.kind, image.digest, [image.kind, image.digest, image.num_frames]
        case RoleBegin() | RoleEnd():
            word = "begin" if isinstance(part, RoleBegin) else "end"
            return "role", f"{part.role} {word}", [word, part.role]
        case Gen():
            spec = {key: value for key, value in part.given.items() if key != "timeout_s"}
            return "gen", part.name or "", [described(spec), str(part.reader.dtype)]
        case Select():
            return "select", part.name or "", [part.choices, type(part.method).__name__]
        case Score():
            return "score", part.name or "", part.texts
        case Ref():
            return "pure", part.name, part.name
        case When():
            return "when", repr(part.condition), repr(part.condition)
        case Repeat():
            return "repeat", f"at most {part.at_most}: {part.until!r}", part.at_most
        case Unordered():
            return "unordered", ", ".join(part.pieces), list(part.pieces)
    return "other", type(part).__name__, type(part).__name__
