"""From the JSON of a program to what travels to the part that runs it.

Calls and transforms are decoded one by one, so that a large program does not hold the loop. Errors
name the fields of the JSON.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from srt.gateway.constraint.fields import json_text
from srt.gateway.errors import refuse_validation
from srt.gateway.http.turns import in_turns
from srt.gateway.wire.fields import Kind, honoured_only
from srt.gateway.wire.programs import (
    CALL_KIND,
    TRANSFORM_KIND,
    CallIn,
    MessageIn,
    SegmentIn,
    SubmitFrame,
    TransformIn,
)
from srt.wire.errors import RequestError
from srt.wire.messages import ChatOptions
from srt.wire.programs import (
    Call,
    Input,
    Objective,
    Output,
    Perf,
    Program,
    Segment,
    Text,
    Transform,
    Turn,
)
from srt.wire.sampling import SamplingParams

T = TypeVar("T", bound=msgspec.Struct)

# The part that runs programs refuses as many; here before they are decoded.
MAX_PARTS = 1024  # calls and transforms
MAX_REFERENCES = 16_384
MAX_SEGMENTS = 1024  # of a call
MAX_VALUES = 2**16  # of its sampling parameters

_OUTPUT_FIELDS = ("sampling_params", "choices", "default")


async def program_of(body: SubmitFrame) -> Program:
    """The program of a body. Raises RequestError naming the field that is wrong."""
    for name, parts in (("calls", body.calls), ("transforms", body.transforms)):
        if len(parts) > MAX_PARTS:
            raise RequestError(f" takes at most {MAX_PARTS}, not {len(parts)}", at=name)
    if sum(_num(transform.get("inputs")) for transform in body.transforms) > MAX_REFERENCES:
        raise RequestError(f" have more than {MAX_REFERENCES} inputs", at="transforms")
    calls = await in_turns(_call(each, f"calls[{i}]") for i, each in enumerate(body.calls))
    transforms = await in_turns(
        _transform(each, f"transforms[{i}]") for i, each in enumerate(body.transforms)
    )
    return Program(body.vars, calls, transforms, body.eager)


def _check_size(call: Mapping[str, Any], at: str) -> None:
    """Raise RequestError for a call of too many values, before anything looks at all."""
    messages = _list(call.get("messages"))
    contents = [each.get("content") for each in messages if isinstance(each, dict)]
    segments = [each for part in (call.get("segments"), *contents) for each in _list(part)]
    if len(segments) + len(messages) > MAX_SEGMENTS:
        raise RequestError(f" has more than {MAX_SEGMENTS} segments", at=at)
    samplings = [each.get("sampling_params") for each in segments if isinstance(each, dict)]
    values = [value for each in samplings if isinstance(each, dict) for value in each.values()]
    if len(segments) + len(values) + sum(map(_num, values)) > MAX_VALUES:
        raise RequestError(f": its sampling_params have over {MAX_VALUES} values", at=at)


def _num(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _list(value: Any) -> list[Any]:
    return value[: MAX_SEGMENTS + 1] if isinstance(value, list) else []


def _converted(value: Any, kind: type[T], fields: Kind, at: str) -> T:
    try:
        return msgspec.convert(honoured_only(value, fields, (at,)), kind, str_keys=True)
    except msgspec.ValidationError as error:
        text = str(error)
        text = text.replace("`$", f"`$.{at}", 1) if "`$" in text else f"{text} - at `$.{at}`"
        raise refuse_validation(msgspec.ValidationError(text)) from error


def _call(value: Mapping[str, Any], at: str) -> Call:
    _check_size(value, at)
    given = _converted(value, CallIn, CALL_KIND, at)
    args = given.chat_template_kwargs
    return Call(
        segments=[_segment(each, f"{at}.segments[{i}]") for i, each in enumerate(given.segments)],
        turns=[_turn(each, f"{at}.messages[{i}]") for i, each in enumerate(given.messages)],
        chat=ChatOptions(template_args=json_text(args) if args else ""),
        when=given.when,
        retries=given.retries,
        name=given.name,
        perf=perf_of(given.perf),
    )


def perf_of(given: Objective | Perf | None) -> Perf | None:
    """What a get or a call says it is for, which may be a word."""
    return Perf(given) if isinstance(given, str) else given


def _turn(given: MessageIn, at: str) -> Turn:
    role = "system" if given.role == "developer" else given.role
    if isinstance(given.content, str):
        return Turn(role, [Text(given.content)])
    content = [_segment(each, f"{at}.content[{i}]") for i, each in enumerate(given.content)]
    return Turn(role, content)


def _segment(given: SegmentIn, at: str) -> Segment:
    if (given.text is not None) + (given.input is not None) + (given.output is not None) != 1:
        raise RequestError(": exactly one of text, input and output must be given", at=at)
    if given.output is None:
        for name in _OUTPUT_FIELDS:
            if getattr(given, name) not in (None, []):
                raise RequestError(" goes with an output only", at=f"{at}.{name}")
    if given.text is not None:
        return Text(given.text, bool(given.literal))
    literal = given.literal is not False
    if given.input is not None:
        return Input(given.input, literal)
    assert given.output is not None
    sampling = _sampling(given, at)
    return Output(given.output, sampling, given.choices, given.default, literal)


def _sampling(given: SegmentIn, at: str) -> SamplingParams:
    sampling = given.sampling_params
    if sampling is None:
        return SamplingParams()
    if sampling.stream_interval is not None:
        at = f"{at}.sampling_params.stream_interval"
        raise RequestError(" is not for programs: readers of a variable share it", at=at)
    try:
        return sampling.to_params()
    except RequestError as error:
        name = error.info.param or ""
        raise error.renamed({name: f"{at}.sampling_params.{name}"}) from error


def _transform(value: Mapping[str, Any], at: str) -> Transform:
    """The transform of a TransformIn, whose struct extends that of its operation."""
    given = _converted(value, TransformIn, TRANSFORM_KIND, at)
    op = msgspec.convert(given, type(given).__base__, from_attributes=True)
    return Transform(given.output, op, given.when, given.default)
