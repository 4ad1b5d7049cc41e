"""Variables of a program that were sent before, under their ids."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from srt.wire.programs import Call, Guard, Input, Op, Program, Segment, Transform

Ids = Mapping[str, str]


def renamed(program: Program, ids: Ids) -> Program:
    """`program`, which refers to variables of `ids` by their names, with their ids."""
    return replace(
        program,
        calls=[_call(call, ids) for call in program.calls],
        transforms=[_transform(transform, ids) for transform in program.transforms],
    )


def _call(call: Call, ids: Ids) -> Call:
    return replace(
        call,
        segments=[_segment(each, ids) for each in call.segments],
        when=_guard(call.when, ids),
    )


def _segment(segment: Segment, ids: Ids) -> Segment:
    if isinstance(segment, Input) and segment.var in ids:
        return replace(segment, var=ids[segment.var])
    return segment


def _guard(guard: Guard | None, ids: Ids) -> Guard | None:
    return None if guard is None else replace(guard, var=ids.get(guard.var, guard.var))


def _transform(transform: Transform, ids: Ids) -> Transform:
    op: Op = transform.op
    given: Any = getattr(op, "inputs", None)
    if isinstance(given, list):
        op = replace(op, inputs=[ids.get(name, name) for name in given])
    elif isinstance(given, dict):
        op = replace(op, inputs={key: ids.get(name, name) for key, name in given.items()})
    else:
        name = getattr(op, "input")  # noqa: B009
        op = replace(op, input=ids.get(name, name))
    return replace(transform, op=op, when=_guard(transform.when, ids))
