"""Variables of a program that were sent before, under their ids."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from srt.wire.programs import Call, Guard, Input, Op, Program, Segment, Transform


def renamed(program: Program, ids: Mapping[str, str]) -> Program:
    """`program`, which refers to variables of `ids` by their names, with their ids."""

    def name_of(name: str) -> str:
        return ids.get(name, name)

    def guard_of(guard: Guard | None) -> Guard | None:
        return None if guard is None else replace(guard, var=name_of(guard.var))

    def segment_of(segment: Segment) -> Segment:
        if isinstance(segment, Input):
            return replace(segment, var=name_of(segment.var))
        return segment

    def call_of(call: Call) -> Call:
        segments = [segment_of(each) for each in call.segments]
        return replace(call, segments=segments, when=guard_of(call.when))

    def op_of(op: Op) -> Op:
        given: Any = getattr(op, "inputs", None)
        if isinstance(given, list):
            return replace(op, inputs=[name_of(name) for name in given])
        if isinstance(given, dict):
            return replace(op, inputs={key: name_of(name) for key, name in given.items()})
        return replace(op, input=name_of(getattr(op, "input")))  # noqa: B009

    def transform_of(transform: Transform) -> Transform:
        return replace(transform, op=op_of(transform.op), when=guard_of(transform.when))

    return replace(
        program,
        calls=[call_of(each) for each in program.calls],
        transforms=[transform_of(each) for each in program.transforms],
    )
