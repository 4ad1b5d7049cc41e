"""What a session consists of: variables, and the work that makes them.

Plain data with its links; `srt.programs.graph` moves it from state to state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from srt.programs.limits import MAX_CAUSES, MAX_CONSUMERS
from srt.programs.transforms import inputs_of
from srt.wire.errors import ErrorInfo
from srt.wire.programs import (
    ENDED,
    Call,
    Cause,
    Guard,
    Input,
    Output,
    OutputMeta,
    Perf,
    Segment,
    Transform,
    VarInfo,
    VarState,
)

# Totals: prompt tokens that were computed ahead of time, and those of them whose call never began.
AHEAD_TOKENS, WASTED_TOKENS = "ahead.tokens.total", "ahead.wasted_tokens.total"
OBJECT_BYTES = 512  # about the memory of a variable or a part of a program besides its texts


def text_bytes(text: str) -> int:
    """About the memory that a text takes."""
    return len(text) if text.isascii() else 4 * len(text)


@dataclass(eq=False, slots=True)
class Variable:
    """A text that is set once. `work` makes it; without, a client sets it.

    `is_wanted`: a get or an eager submission asked for it by itself. `is_told`: somebody has seen
    a part of its text before its end.
    """

    id: str
    name: str
    session: "Session"
    work: "Work | None" = None
    state: VarState = "pending"
    text: str = ""
    num_bytes: int = 0
    error: ErrorInfo | None = None
    cause: "Variable | None" = None
    consumers: list["Work"] = field(default_factory=list)
    gets: set["Get"] = field(default_factory=set)
    is_wanted: bool = False
    is_told: bool = False
    meta: OutputMeta | None = None
    perf: Perf | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def has_no_text(self) -> bool:
        """Whether it ended because something went wrong."""
        return self.state in ("failed", "cancelled")

    def info(self) -> VarInfo:
        """All that is told of it."""
        consumers = (made.id for work in self.consumers for made in work.outputs)
        return VarInfo(
            id=self.id,
            session=self.session.id,
            name=self.name,
            state=self.state,
            text=self.text,
            error=self.error,
            causes=self._causes(),
            producer="set" if self.work is None else self.work.label,
            consumers=list(islice(consumers, MAX_CONSUMERS)),
            meta=self.meta,
            perf=self.perf,
        )

    def _causes(self) -> list[Cause]:
        causes: list[Cause] = []
        var = self.cause
        while var is not None and len(causes) < MAX_CAUSES:
            causes.append(Cause(var.id, var.name, var.state, var.error))
            var = var.cause
        return causes


@dataclass(eq=False, slots=True)
class Work:
    """What makes `outputs` of `inputs`, variables by the references that the program has.

    It is `active` once an output is needed, `is_asked` once its guard holds, has `started` once its
    inputs are there, and has `ended` when nothing is left to do. One that `is_run` is done outside
    of the graph. `missing` counts the inputs that have not ended. It has up to `weight` requests at
    once.
    """

    session: "Session"
    outputs: list[Variable]
    inputs: dict[str, Variable]
    guard: Guard | None
    weight: int = 1
    missing: int = 0
    active: bool = False
    is_asked: bool = False
    started: bool = False
    is_run: bool = False
    ended: bool = False

    @property
    def label(self) -> str:
        raise NotImplementedError

    @property
    def guard_var(self) -> Variable | None:
        return None if self.guard is None else self.inputs[self.guard.var]


@dataclass(eq=False, slots=True)
class CallWork(Work):
    """A call. `call` is as it was submitted."""

    call: Call = field(default_factory=Call)

    @property
    def label(self) -> str:
        return self.call.name or "call"

    @property
    def asked(self) -> list[Output]:
        """What was asked of each output."""
        return outputs_of(self.call)


@dataclass(eq=False, slots=True, kw_only=True)
class TransformWork(Work):
    """A transform, which has one output."""

    transform: Transform

    @property
    def label(self) -> str:
        return str(type(self.transform.op).__struct_config__.tag)

    @property
    def leaves_out_failed(self) -> bool:
        return bool(getattr(self.transform.op, "leave_out_failed", False))


@dataclass(eq=False, slots=True)
class Session:
    """Variables that belong together, of one tenant, in one part of the prefix cache; `caller` is
    who holds it, and for whom its requests are sent.

    `keys` are the idempotency keys of submissions, with the hash of each and its answer. `running`
    counts calls that run or wait for their turn, `gets` those that wait.
    """

    id: str
    tenant: str
    caller: str
    cache_salt: str
    idle_s: float
    used_at: float
    vars: dict[str, Variable] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)
    keys: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    size: int = OBJECT_BYTES
    running: int = 0
    gets: int = 0
    closed: bool = False


@dataclass(eq=False, slots=True)
class Get:
    """A get that waits: `left` of its variables have not ended. A streaming one has told `told`
    characters of each, and is to tell `pieces`."""

    client: bytes
    rid: str
    vars: Sequence[Variable]
    stream: bool
    deadline: float
    left: int = 0
    pieces: list[tuple[str, str]] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    told_at: float = 0.0
    ended: bool = False


def segments_of(call: Call) -> list[Segment]:
    """All segments of a call, whichever form it has."""
    return [*call.segments, *(each for turn in call.turns for each in turn.content)]


def outputs_of(call: Call) -> list[Output]:
    """Its outputs, in order."""
    return [each for each in segments_of(call) if isinstance(each, Output)]


def references_of(part: Call | Transform) -> list[str]:
    """The variables that it needs, as it names them."""
    if isinstance(part, Call):
        names = [each.var for each in segments_of(part) if isinstance(each, Input)]
    else:
        names = inputs_of(part.op)
    return [*names, *([part.when.var] if part.when is not None else [])]
