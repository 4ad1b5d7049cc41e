"""What can be left out of a recorded program, and which pieces of prompts stand where.

Passes never renumber: a step that is left out keeps its number, so seeds, addresses and logs are
those of the interpreted program.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from lang.graph.ops import Extend, Fork, Inner, Join, Op, Read, Recorded, Write, flat, refs_in
from lang.graph.recorder import ROOT
from lang.run.ir import Constant, Expr, ExprList, Media, Part, placeholders_of
from lang.state.control import Unordered
from lang.state.refs import Ref, ref_of

Place = tuple[int, int]  # a state, and a step's place among all


def dead(recorded: Recorded, outputs: Collection[str] | None) -> list[Op]:
    """Steps whose text and variables reach no output, in order. The outputs are what the function
    returns and these variables; None: all variables and the text of its own state."""
    ops = list(flat(recorded.ops))
    opened = {
        child: (op.state, i)
        for i, op in enumerate(ops)
        if isinstance(op, Fork)
        for child in op.children
    }
    needed: dict[int, int] = {}  # of each state, the last step that something needs
    reads = {op.number: _writer(op, ops, opened) for op in ops if isinstance(op, Read)}
    todo = [reads[n] for n in placeholders_of(refs_in(recorded.returned)) if n in reads]
    for i, op in enumerate(ops):
        if op.state == ROOT and (outputs is None or not _written(op, ops).isdisjoint(outputs)):
            todo.append((ROOT, i))
    while todo:
        state, last = todo.pop()
        first = needed.get(state, -1) + 1
        if last < first:
            continue
        needed[state] = last
        if state in opened:
            todo.append(opened[state])
        for i in range(first, last + 1):
            if ops[i].state == state:
                todo += _needs(ops[i], i, reads)
    return [op for i, op in enumerate(ops) if i > needed.get(op.state, -1) and _does(op)]


def _writer(read: Read, ops: Sequence[Op], opened: Mapping[int, Place]) -> Place:
    """The step that writes what is read."""
    at = next(i for i, op in enumerate(ops) if op is read)
    state = read.state
    while read.name is not None:
        for i in range(at - 1, -1, -1):
            if ops[i].state == state and read.name in _written(ops[i], ops):
                return state, i
        if state not in opened:
            break
        state, at = opened[state]
    return state, at


def _needs(op: Op, i: int, reads: Mapping[int, Place]) -> list[Place]:
    """The steps, each in its state, up to which this step needs others."""
    if isinstance(op, Join):
        return [(child, i) for child in op.children]
    if isinstance(op, Extend):
        numbers = placeholders_of([op.part])
    elif isinstance(op, Write):
        numbers = placeholders_of(refs_in(op.value))
    else:
        return []
    return [reads[n] for n in numbers if n in reads]


def _written(op: Op, ops: Sequence[Op]) -> set[str]:
    """The variables of its state that a step may write."""
    if isinstance(op, Join):
        return {name for each in ops if each.state in op.children for name in _written(each, ops)}
    if isinstance(op, Extend) and isinstance(op.part, Expr):
        return {name for name in op.part.names if name is not None}
    return {op.name} if isinstance(op, Write) else set()


def _does(op: Op) -> bool:
    """Whether there is something to leave out."""
    return not isinstance(op, Fork | Inner | Read)


# ---- constant text, and the order of pieces ------------------------------------------------------


def constant_parts(recorded: Recorded) -> list[Part]:
    """What every prompt of the program's own state begins with."""
    found: list[Part] = []
    for part in _leading(recorded):
        if isinstance(part, Expr) and (
            part.num_steps or part.placeholders or (not isinstance(part, Constant) and part.names)
        ):
            break
        if isinstance(part, Unordered | Media):
            break
        found.append(part)
    return found


def _leading(recorded: Recorded) -> list[Part]:
    """The parts of the function's own state up to its first fork."""
    parts: list[Part] = []
    for op in recorded.ops:
        if op.state == ROOT and isinstance(op, Extend):
            parts.append(op.part)
        elif op.state == ROOT and isinstance(op, Fork | Join):
            break
    return parts


def orders_of(recorded: Recorded, rows: Sequence[Mapping[str, Any]]) -> dict[int, Unordered]:
    """What takes the place of steps with unordered pieces, by their ids: pieces with fewer
    different values in these rows come first, those that only a run knows last."""
    values = [_values(recorded, row) for row in rows]
    replaced: dict[int, Unordered] = {}
    for op in flat(recorded.ops):
        if isinstance(op, Extend) and isinstance(op.part, Unordered):
            replaced[id(op)] = _ordered(op.part, values)
    return replaced


def _ordered(part: Unordered, values: Sequence[Mapping[int, Any]]) -> Unordered:
    counts = {}
    for name, piece in part.pieces.items():
        texts = [text_of(piece, each) for each in values]
        counts[name] = len(values) + 1 if None in texts else len(set(texts))
    order = sorted(part.pieces, key=counts.__getitem__)
    return Unordered(part.pieces, part.separator, order)


def leading_text(
    recorded: Recorded, row: Mapping[str, Any], replaced: Mapping[int, Part]
) -> tuple[str, ...]:
    """The pieces of text that a row's prompts begin with, as far as its arguments tell."""
    values = _values(recorded, row)
    pieces: list[str] = []
    for op in recorded.ops:
        if op.state != ROOT or not isinstance(op, Extend):
            break
        part = replaced.get(id(op), op.part)
        pieces_of = [part]
        if isinstance(part, Unordered):
            pieces_of = [part.pieces[name] for name in part.order]
        for each in pieces_of:
            text = text_of(each, values)
            if text is None:
                return tuple(pieces)
            pieces.append(text)
    return tuple(pieces)


def _values(recorded: Recorded, row: Mapping[str, Any]) -> dict[int, Any]:
    return {number: ref_of(row[name]) for name, number in recorded.arguments.items()}


def text_of(part: Part, values: Mapping[int, Any]) -> str | None:
    """The text of a part with these values; None if only a run knows it. Roles have none."""
    if isinstance(part, str):
        return part
    if part.names or part.num_steps or not part.placeholders <= values.keys():
        return None
    if isinstance(part, ExprList):
        texts = [text_of(each, values) for each in part.parts]
        return None if None in texts else "".join(text or "" for text in texts)
    if isinstance(part, Constant):
        return part.text
    if isinstance(part, Ref):
        made = part.bound(values)
        return made.text() if isinstance(made, Ref) and made.is_ready() else None
    return "" if type(part).__name__ in ("RoleBegin", "RoleEnd") else None


def shareable(texts: Sequence[str]) -> int:
    """How many characters of these texts some other one has at the same place: what a cache of
    prefixes need compute once only."""
    ordered = sorted(texts)
    return sum(_common(a, b) for a, b in pairwise(ordered))


def _common(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
