"""The JSON of programs: /v1/sessions, /v1/submit, /v1/get and /v1/vars, field by field."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from srt.gateway.errors import ErrorDetail
from srt.gateway.wire.fields import NATIVE_SAMPLING, NO_EXTRAS, Kind
from srt.gateway.wire.native import Count, FinishReason, NativeSampling, Salt
from srt.wire.answer_meta import PROGRAMS, meta_struct
from srt.wire.programs import Guard, Objective, Op, Perf, VarState

_SEGMENT = Kind({}, {"sampling_params": NATIVE_SAMPLING})
CALL_KIND = Kind(
    {}, {"segments": _SEGMENT, "messages": Kind({}, {"content": _SEGMENT}), "when": NO_EXTRAS}
)
TRANSFORM_KIND = Kind({}, {"when": NO_EXTRAS})


class SessionBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /v1/sessions."""

    idle_s: Annotated[float, Meta(description="It ends when unused for so many seconds.")] = 600.0
    cache_salt: Salt = ""


class SegmentIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A piece of a prompt: exactly one of text, input and output. The fields after `literal` go
    with an output."""

    text: Annotated[str | None, Meta(description="A constant.")] = None
    input: Annotated[str | None, Meta(description="A variable that the call waits for.")] = None
    output: Annotated[str | None, Meta(description="A variable that the model writes.")] = None
    literal: Annotated[
        bool | None,
        Meta(description="Control tokens are text: by default in inputs and outputs."),
    ] = None
    sampling_params: Annotated[
        NativeSampling | None, Meta(description="Those of /generate; n is 1.")
    ] = None
    choices: Annotated[
        list[str], Meta(description="It is the likeliest of these, without sampling.")
    ] = field(default_factory=list)
    default: Annotated[str | None, Meta(description="Its text if it fails.")] = None


class MessageIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message of a chat."""

    role: str
    content: str | list[SegmentIn]


class CallIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A call: exactly one of segments and messages."""

    segments: list[SegmentIn] = field(default_factory=list)
    messages: list[MessageIn] = field(default_factory=list)
    chat_template_kwargs: Annotated[
        dict[str, Any], Meta(description="Further variables of the chat template.")
    ] = field(default_factory=dict)
    when: Annotated[Guard | None, Meta(description="Where it fails, the call is skipped.")] = None
    retries: Annotated[Count, Meta(description="Of a request that fails in a passing way.")] = 2
    name: Annotated[str, Meta(description="How the variables name their producer.")] = ""
    perf: Annotated[
        Objective | Perf | None,
        Meta(description="What it is wanted for where a get does not say, and if it is eager."),
    ] = None


def _with_output(op: type[Struct]) -> type[Struct]:
    """The JSON of the transforms that do `op`: the fields of all transforms are beside its own."""
    shared: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("output", str),
        ("when", Guard | None, None),
        ("default", str | None, None),
    ]
    doc = {"__doc__": op.__doc__}
    return defstruct(op.__name__, shared, bases=(op,), namespace=doc, frozen=True, kw_only=True)


if TYPE_CHECKING:
    TransformIn = Any
else:
    TransformIn = reduce(or_, map(_with_output, get_args(Op)))


class SubmitBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /v1/submit."""

    session: str
    vars: Annotated[
        dict[str, str | None], Meta(description="Variables that clients set: now, or later (null).")
    ] = field(default_factory=dict)
    calls: list[CallIn] = field(default_factory=list)
    transforms: list[TransformIn] = field(default_factory=list)
    eager: Annotated[bool, Meta(description="Run all of it at once, not what gets need.")] = False


class SubmitFrame(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The same, as far as it is decoded at once."""

    session: str
    vars: dict[str, str | None] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    transforms: list[dict[str, Any]] = field(default_factory=list)
    eager: bool = False


class SubmitAnswer(Struct, frozen=True, kw_only=True):
    """The ids of the variables, by their names."""

    vars: dict[str, str]


class GetBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /v1/get: exactly one of vars and var."""

    vars: list[str] = field(default_factory=list)
    var: str | None = None
    perf: Objective | Perf | None = None
    deadline_ms: Annotated[Count, Meta(description="The get ends then; 0: the server's bound.")] = 0
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False


class SetBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of a PUT of a variable."""

    text: str


class CauseJson(Struct, frozen=True, kw_only=True):
    """A variable whose end made another one end."""

    var: str
    name: str
    state: VarState
    error: ErrorDetail | None


class OutputMetaJson(meta_struct(PROGRAMS), frozen=True, kw_only=True):  # type: ignore[call-arg,misc]
    """How an output came about; `probabilities` are those of its choices."""

    finish_reason: FinishReason | None
    e2e_latency: float
    attempts: int
    probabilities: list[float] | UnsetType = UNSET


class VarJson(Struct, frozen=True, kw_only=True):
    """A variable; `text` is what there is of it so far."""

    id: str
    session: str
    name: str
    state: VarState
    text: str
    error: ErrorDetail | None
    causes: list[CauseJson]
    producer: str
    consumers: list[str]
    meta_info: OutputMetaJson | None
    perf: Perf | None


class GetAnswer(Struct, frozen=True, kw_only=True):
    """Variables in the order they were asked for; `done`: all have ended."""

    vars: list[VarJson]
    done: bool


class GetEvent(Struct, frozen=True, kw_only=True):
    """An event of a stream: what the text of `var` has grown by; the last one has what a get
    without a stream answers."""

    var: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    vars: list[VarJson] | UnsetType = UNSET
    done: bool | UnsetType = UNSET
