"""Programs as they travel: calls with placeholders, joined by variables, and transforms of texts.

Calls and transforms refer to a variable by its name within the same submission, or by its id.
Guards, operations, sessions and the wants of gets are the same objects on the ring and in the JSON
of the HTTP routes; the rest is array-like as the messages in `srt.wire.messages`: fields are only
ever appended.
"""

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from srt.wire.answer_meta import AnswerMeta
from srt.wire.chat import ChatOptions
from srt.wire.errors import ErrorInfo, RequestError
from srt.wire.messages import Finish
from srt.wire.sampling import SamplingParams

VAR_PREFIX, SESSION_PREFIX = "var-", "session-"  # of ids; no name begins like the id of a variable

MAX_PROGRAM_BYTES = 4 * 2**20  # of a submission, encoded: to decode and check it takes some 50 ms

VarState = Literal["pending", "running", "ready", "skipped", "failed", "cancelled"]
ENDED: frozenset[VarState] = frozenset({"ready", "skipped", "failed", "cancelled"})
Objective = Literal["latency", "throughput", "ttft", "tpot"]


class _Part(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Base of what a program consists of."""


class _Object(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of what is an object of the routes' JSON too."""


# ---- what gets want --------------------------------------------------------------------------


class Perf(_Object, frozen=True, omit_defaults=False):
    """What a get wants: `target_ms` goes with ttft (until the first token) and tpot (for each
    token), and is 0 otherwise. It becomes the hints of all requests that the variables need."""

    objective: Objective
    target_ms: Annotated[float, Meta(ge=0)] = 0.0

    def check(self, at: str) -> None:
        """Raise RequestError, naming the field below `at`, for a target that has no meaning."""
        if not 0.0 <= self.target_ms < math.inf:
            raise RequestError(" must be 0 or more", at=f"{at}.target_ms")
        if self.target_ms and self.objective not in ("ttft", "tpot"):
            raise RequestError(" goes with ttft and tpot only", at=f"{at}.target_ms")


# ---- calls -----------------------------------------------------------------------------------


class Text(_Part, frozen=True, tag="text"):
    """A constant. Control tokens in it are text if it is `literal`."""

    text: str
    literal: bool = False


class Input(_Part, frozen=True, tag="input"):
    """The text of a variable, which the call waits for."""

    var: str
    literal: bool = True


class Output(_Part, frozen=True, tag="output"):
    """A variable that the model writes, after all that is before it.

    With `choices` it is the one of these texts whose tokens are the most likely on average; then
    `sampling` has no meaning. `default` is its text if it fails without having told any.
    """

    var: str
    sampling: SamplingParams = SamplingParams()
    choices: list[str] = []
    default: str | None = None
    literal: bool = True


Segment = Text | Input | Output


class Turn(_Part, frozen=True):
    """A message of a chat. Only assistants' turns have outputs."""

    role: str
    content: list[Segment]


class Guard(_Object, frozen=True, rename={"var": "input"}):
    """A condition on the text of a variable: it equals a text, a pattern is found in it, or it is
    not empty. Exactly one is asked; `negate` turns the answer round."""

    var: str
    equals: str | None = None
    matches: Annotated[str | None, Meta(description="A pattern that is found in it.")] = None
    non_empty: bool = False
    negate: bool = False


class Call(_Part, frozen=True):
    """What one prompt and its outputs are made of: `segments` of one text, or `turns` of a chat.

    The outputs run one after the other on the growing text. If `when` does not hold, all of them
    are skipped. A request that fails in a way that may pass is made up to `retries` times again,
    as long as none of its text has been told to anybody. `perf` is what its outputs are wanted for
    by an eager submission, and by gets that do not say.
    """

    segments: list[Segment] = []
    turns: list[Turn] = []
    chat: ChatOptions = ChatOptions()
    when: Guard | None = None
    retries: int = 2
    name: str = ""
    perf: Perf | None = None


Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]

# ---- transforms ------------------------------------------------------------------------------


class _Op(_Object, frozen=True, tag_field="op"):
    """Base of the operations."""


class Concat(_Op, frozen=True, tag="concat"):
    """The inputs, one after the other; those that were skipped are left out, and with
    `leave_out_failed` those that failed or were cancelled."""

    inputs: list[str]
    leave_out_failed: bool = False


class Join(_Op, frozen=True, tag="join"):
    """The inputs with `separator` between them; leaves out what Concat does."""

    inputs: list[str]
    separator: str = ""
    leave_out_failed: bool = False


class Format(_Op, frozen=True, tag="format"):
    """`template` with `inputs`, variables by name, in the places `{name}`; `{{` and `}}` are
    braces."""

    template: str
    inputs: dict[str, str]


class Strip(_Op, frozen=True, tag="strip"):
    """The input without the characters `chars`, or blanks, at both ends."""

    input: str
    chars: str | None = None


class Split(_Op, frozen=True, tag="split"):
    """Of the input, cut at each `separator`, the piece `index`; negative ones count from the
    end."""

    input: str
    separator: str
    index: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class JsonPointer(_Op, frozen=True, tag="json_pointer"):
    """What `pointer` (RFC 6901) names in the input, which is JSON: a string as its text, all else
    as JSON."""

    input: str
    pointer: str


class Extract(_Op, frozen=True, tag="extract"):
    """The first match of `pattern` in the input, or what its named group `group` matched."""

    input: str
    pattern: str
    group: str = ""


class Truncate(_Op, frozen=True, tag="truncate"):
    """The first, or with `keep` "end" the last, `chars` characters or `tokens` tokens of the
    input. Exactly one of both is given."""

    input: str
    chars: Size | None = None
    tokens: Size | None = None
    keep: Literal["start", "end"] = "start"


class Majority(_Op, frozen=True, tag="majority"):
    """The text that most inputs have; of equally many the one that comes first. Leaves out what
    Concat does."""

    inputs: list[str]
    leave_out_failed: bool = False


class First(_Op, frozen=True, tag="first"):
    """The first of the inputs that is ready; of several at once the one that is first in the
    list. The others go on."""

    inputs: list[str]


Op = Concat | Join | Format | Strip | Split | JsonPointer | Extract | Truncate | Majority | First


class Transform(_Part, frozen=True):
    """A pure function of texts. `default` is the output's text if it fails."""

    var: str
    op: Op
    when: Guard | None = None
    default: str | None = None


class Program(_Part, frozen=True):
    """What is submitted at once, and taken as a whole or not at all.

    `vars` are set by clients: now, to a text, or later (None). With `eager` all of it runs at
    once; otherwise what gets need.
    """

    vars: dict[str, str | None] = {}
    calls: list[Call] = []
    transforms: list[Transform] = []
    eager: bool = False


# ---- what is told of them --------------------------------------------------------------------


class OutputMeta(AnswerMeta, frozen=True, kw_only=True, array_like=False):
    """How an output came about. `probabilities` are those of the choices, among each other;
    `attempts` counts the requests that were made for it; the facts are its last request's."""

    finish: Finish | None = None
    latency_s: float = 0.0
    attempts: int = 1
    probabilities: list[float] = field(default_factory=list)


class Cause(_Part, frozen=True):
    """A variable whose end made another one end."""

    var: str
    name: str
    state: VarState
    error: ErrorInfo | None = None


class VarInfo(_Part, frozen=True):
    """A variable. `text` is what there is of it so far.

    `error` says why it failed or was cancelled; `causes` are the variables that led to that, the
    nearest first. `producer` is the name of its call, the kind of its transform, or "set";
    `consumers` are the first variables that are made of it. `meta` is that of a call's output;
    `perf` what the latest get wanted.
    """

    id: str
    session: str
    name: str
    state: VarState
    text: str = ""
    error: ErrorInfo | None = None
    causes: list[Cause] = []
    producer: str = ""
    consumers: list[str] = []
    meta: OutputMeta | None = None
    perf: Perf | None = None


class SessionInfo(Struct, frozen=True):
    """A session. It ends when nobody has asked for anything of it, and nothing has run in it, for
    `idle_s` seconds. `vars` are the ids of its variables, the oldest first."""

    id: str
    idle_s: float
    vars: list[str] = []
    num_bytes: int = 0
