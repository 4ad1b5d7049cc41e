"""Every message that travels on the ring's sockets, and their codecs.

Frozen, array-like msgspec structs in tagged unions, one union per socket. Array-like means that
fields are only ever appended, with defaults. Token ids travel as packed little-endian int32
bytes. Messages of a request carry the ring's `epoch`; a receiver drops those of another epoch.
"""

from typing import Any

import msgspec
from msgspec import Struct

from srt.wire.chat import ChatMessage as ChatMessage
from srt.wire.chat import ChatOptions as ChatOptions
from srt.wire.chat import ToolCall as ToolCall
from srt.wire.chat import ToolSpec as ToolSpec
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import ErrorInfo
from srt.wire.packing import id_list as id_list
from srt.wire.packing import pack_floats as pack_floats
from srt.wire.packing import pack_ids as pack_ids
from srt.wire.packing import unpack_floats as unpack_floats
from srt.wire.packing import unpack_ids as unpack_ids
from srt.wire.sampling import SamplingParams, Scoring

PROTOCOL_VERSION = 2
JUMP_WINDOW_TOKENS = 16  # of an output, from the end: those that a jump may replace


class Message(Struct, frozen=True, tag=True, array_like=True, omit_defaults=True, gc=False):
    """Base of all messages."""


# ---- client -> front (the tokenizer's ROUTER) ------------------------------------------------


class PromptMessage(Message, frozen=True):
    """What requests have in common that are about a prompt, which is text or packed ids.

    Control tokens are text in the parts `literal_spans` of `text`: [start, stop) in characters.
    `tenant` is for whom a client asks that serves several: the front gives turns to each of them.
    """

    rid: str
    epoch: int
    text: str | None = None
    input_ids: bytes | None = None
    cache_salt: str = ""
    tenant: str = ""
    literal_spans: list[tuple[int, int]] = []


class GenerateReq(PromptMessage, frozen=True, kw_only=True):
    """A request for `sampling.n` completions. Exactly one of text, input_ids, messages is set;
    `tools` and `chat` go with messages only. Without `scoring` there are no log-probabilities.

    With n > 1 each sample is a request of its own from the front on, of rid
    `sample_rid(rid, index)`; they are admitted together, and an abort may name each.

    `joined` marks the later requests of a batch whose first was admitted: the bound on the expected
    wait does not apply to them, or a large batch could never come in. `timeout_ms` 0 is none.
    """

    sampling: SamplingParams
    messages: list[ChatMessage] | None = None
    stream: bool = False
    scoring: Scoring | None = None
    tools: list[ToolSpec] = []
    chat: ChatOptions = ChatOptions()
    joined: bool = False
    timeout_ms: int = 0


class AbortReq(Message, frozen=True):
    """End request `rid` of the sending client. Unknown rids are ignored."""

    rid: str
    epoch: int


class ControlReq(Message, frozen=True):
    """An operation on the scheduler: "flush_cache" or "stats". Answered by ControlReply."""

    rid: str
    epoch: int
    op: str
    timeout_s: float = 0.0


class Continuation(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What may follow a prefix: a text, or packed ids if that is None."""

    text: str | None
    ids: bytes = b""


class ScoreReq(PromptMessage, frozen=True, kw_only=True):
    """How likely each continuation is behind a prefix, which is one of text and input_ids. Each is
    then a request of its own, whose rid is `score_rid(rid, index)`. If one of `literal_spans` ends
    with the prefix, it goes on in each text behind that."""

    continuations: list[Continuation]


def score_rid(rid: str, index: int) -> str:
    """The rid of one continuation of the score `rid`: it is output and aborted under this."""
    return f"{rid}/{index}"


def sample_rid(rid: str, index: int) -> str:
    """The rid of one of several samples of the request `rid`."""
    return f"{rid}/{index}"


class TokenizeReq(Message, frozen=True):
    """The token ids of a text, or of the prompt that messages make. Answered by Tokenized or
    Refused; nothing reaches the scheduler."""

    rid: str
    epoch: int
    text: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[ToolSpec] = []
    chat: ChatOptions = ChatOptions()
    add_special_tokens: bool = True
    tenant: str = ""


class CaptureReq(Message, frozen=True):
    """Which parts of `text`, an answer that has ended, its constraint has names for. Answered by
    Captured or Refused; nothing reaches the scheduler."""

    rid: str
    epoch: int
    constraint: Constraint
    text: str
    tenant: str = ""


FrontMessage = GenerateReq | AbortReq | ControlReq | ScoreReq | TokenizeReq | CaptureReq


# ---- front -> client -------------------------------------------------------------------------


class Admitted(Message, frozen=True):
    """The request passed every check and is on its way; `prompt_tokens` is its length, and
    `opens_reasoning` says that the output begins inside the model's reasoning, `closes_reasoning`
    that it begins behind it. Of a score it is the prefix's length, and `score_start` the first
    position that is scored. The output's first ids take the place of the prompt's last
    `healed_tokens`. The samples `aborted` (0 is the only one of most requests) were ended before
    they began: nothing else comes of them."""

    rid: str
    epoch: int
    prompt_tokens: int
    opens_reasoning: bool = False
    score_start: int = 0
    healed_tokens: int = 0
    aborted: list[int] = []
    closes_reasoning: bool = False


class Refused(Message, frozen=True):
    """The request was not taken. Nothing else will be sent for it."""

    rid: str
    epoch: int
    error: ErrorInfo


class Tokenized(Message, frozen=True):
    """The answer to a TokenizeReq: packed ids."""

    rid: str
    epoch: int
    ids: bytes


class Captured(Message, frozen=True):
    """The answer to a CaptureReq; None if it has no names for parts, or they were not found."""

    rid: str
    epoch: int
    captures: list[Capture] | None = None


FrontReply = Admitted | Refused | Tokenized | Captured


# ---- front, detokenizer -> scheduler ---------------------------------------------------------


class TokenizedReq(Message, frozen=True):
    """An admitted request. `eos_ids` are the ids that end it (none with ignore_eos).

    `sampling.max_new_tokens` is never None here, and `sampling.seed` may be. A constraint is no
    longer in `sampling`: `grammar` is the key of its artefact, empty without one.

    The output may contain none of the sequences `bad_ids` (they are `sampling.bad_words`).

    The prompt had the tokens `healed_ids` (packed) at its end. Their `healed_bytes` bytes come
    first in the output, because the grammar says so, and are not shown.

    `deadline_s` (0: none) is when it times out, on the clock that all processes share
    (time.monotonic()).
    """

    client: bytes
    rid: str
    epoch: int
    input_ids: bytes
    sampling: SamplingParams
    eos_ids: list[int] = []
    stream: bool = False
    scoring: Scoring | None = None
    cache_salt: str = ""
    grammar: str = ""
    healed_ids: bytes = b""
    healed_bytes: int = 0
    bad_ids: list[list[int]] = []
    deadline_s: float = 0.0


class Abort(Message, frozen=True):
    """End the request (client, rid). It never overtakes its TokenizedReq: the front sends both on
    one socket, and the detokenizer aborts only what it has output of."""

    client: bytes
    rid: str
    epoch: int


class ClientGone(Message, frozen=True):
    """A client can no longer be reached: end everything it has, now and still on its way."""

    client: bytes
    epoch: int


class Control(Message, frozen=True):
    """A ControlReq on its way, with the client that asked. `counts` are what the front adds to the
    scheduler's statistics."""

    client: bytes
    rid: str
    epoch: int
    op: str
    timeout_s: float = 0.0
    counts: dict[str, float] = {}


class GrammarLost(Message, frozen=True):
    """The grammar `key` is not in the ring's directory (any more), or damaged; requests wait."""

    key: str
    epoch: int


class GrammarMade(Message, frozen=True):
    """The answer to a GrammarLost: it is there again, or `error` says why not."""

    key: str
    epoch: int
    error: ErrorInfo | None = None


SchedulerMessage = TokenizedReq | Abort | ClientGone | Control | GrammarMade


# ---- front <-> compiler ----------------------------------------------------------------------


class CompileReq(Message, frozen=True):
    """Compile a constraint. `id` is the front's; it may ask again, after a restart, and for each
    `asker`, a client and tenant: askers take turns."""

    id: int
    epoch: int
    constraint: Constraint
    asker: bytes = b""


class CompileCancel(Message, frozen=True):
    """Nobody waits for the answer to the CompileReq `id` any more: it need not come."""

    id: int
    epoch: int


class CompileReply(Message, frozen=True):
    """The artefact of a CompileReq lies under `key` in the ring's directory, or `error` says why
    there is none."""

    id: int
    epoch: int
    key: str = ""
    error: ErrorInfo | None = None


class CompilerStarted(Message, frozen=True):
    """The compiler is up, and knows of no earlier CompileReq: whoever waits asks again."""


class CompileCounts(Message, frozen=True):
    """The compiler's totals since its start, by the names that statistics have."""

    counts: dict[str, float]


CompilerMessage = CompileReply | CompilerStarted | CompileCounts
CompilerRequest = CompileReq | CompileCancel


# ---- scheduler -> detokenizer ----------------------------------------------------------------


class Finish(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Why a request ended: "stop" (matched: token id or stop string), "length", "timeout" or
    "abort"."""

    type: str
    matched: int | str | None = None
    error: ErrorInfo | None = None


class ReqStart(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the detokenizer must know of a request, sent once, before its first tokens. The first
    `skip_bytes` bytes of the output are no part of its text."""

    handle: int
    client: bytes
    rid: str
    prompt_tokens: int
    cached_tokens: int
    stop: list[str] = []
    min_new_tokens: int = 0
    stream: bool = False
    scoring: Scoring | None = None
    skip_special_tokens: bool = True
    skip_bytes: int = 0
    stop_regex: list[str] = []
    no_stop_trim: bool = False


class ReqEnd(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The last word on a request. Every TokenizedReq gets exactly one."""

    handle: int
    finish: Finish


class LogprobDetail(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities at t positions besides the chosen tokens': of the k most likely tokens,
    best first (`top_ids` int32 [t, k], `top_logprobs` float32 [t, k]), and of m tokens that the
    request names (`id_logprobs` float32 [t, m])."""

    top_ids: bytes = b""
    top_logprobs: bytes = b""
    id_logprobs: bytes = b""


class PromptLogprobs(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities of prompt tokens [start, start+n): ids int32 [n], logprobs float32 [n].
    Position 0 has none: NaN, and in `detail` id 0 and NaN."""

    handle: int
    start: int
    ids: bytes
    logprobs: bytes
    detail: LogprobDetail | None = None


class TokenBatch(Message, frozen=True):
    """All that the scheduler has to tell after a step.

    Tokens of requests that neither stream nor can be stopped by their text come many at a time.
    Parallel columns: `handles[i]` produced `counts[i]` tokens; their ids follow one another in
    `ids` (int32), with as many float32 in `logprobs` (NaN where not asked for; empty if nobody
    asked). `jumps` are (column, drop, skip): the ids of that column were forced by a grammar, and
    take the place of the req's last `drop` ids, with whose `skip` bytes they begin. `details` has
    an entry for each column whose req asked for one.
    """

    epoch: int
    handles: list[int] = []
    counts: list[int] = []
    ids: bytes = b""
    logprobs: bytes = b""
    starts: list[ReqStart] = []
    prompt_logprobs: list[PromptLogprobs] = []
    ends: list[ReqEnd] = []
    jumps: list[tuple[int, int, int]] = []
    details: dict[int, LogprobDetail] = {}


class ControlReply(Message, frozen=True):
    """The answer to a Control; `data` is JSON."""

    client: bytes
    rid: str
    epoch: int
    data: bytes = b"{}"
    error: ErrorInfo | None = None


DetokenizerMessage = TokenBatch | ControlReply


# ---- client -> back (the detokenizer's ROUTER) -----------------------------------------------


class Hello(Message, frozen=True):
    """Opens, and by repetition keeps, a client's lease on the back socket."""

    version: int = PROTOCOL_VERSION


class Goodbye(Message, frozen=True):
    """The client closes; its lease ends without waiting for the time-out."""


BackMessage = Hello | Goodbye


# ---- back -> client --------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Answers each Hello. The client may send requests of this epoch from now on."""

    epoch: int
    version: int = PROTOCOL_VERSION


class Expired(Message, frozen=True):
    """Answers the Hello of a client whose lease has ended: what it had in flight is gone, and it
    must come back under a new identity."""


class Output(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What is new of one request: text and ids since its last Output; `finish` on the last.

    `ids` take the place of the last `dropped` ids sent before: text never changes, but a jump may
    cut it into other tokens. `completion_tokens`, `jump_tokens` (of those, forced by a grammar) and
    `forward_passes` (that sampled a token) count so far. `prompt_logprobs` come with the first
    Output. `detail` belongs to `ids`, `prompt_detail` to `prompt_logprob_ids`. With `more` it is a
    part of one that was too long to be sent in one message, and goes on in the next.
    """

    rid: str
    text: str = ""
    ids: bytes = b""
    logprobs: bytes = b""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prompt_logprob_start: int = -1
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    finish: Finish | None = None
    dropped: int = 0
    jump_tokens: int = 0
    forward_passes: int = 0
    detail: LogprobDetail | None = None
    prompt_detail: LogprobDetail | None = None
    more: bool = False


class OutputBatch(Message, frozen=True):
    """What is new for one client after one scheduler step; all of it, unless that is too long for
    one message."""

    epoch: int
    outputs: list[Output]


class ControlResult(Message, frozen=True):
    """A ControlReply at its client."""

    rid: str
    epoch: int
    data: bytes = b"{}"
    error: ErrorInfo | None = None


BackReply = Welcome | Expired | OutputBatch | ControlResult


# ---- detokenizer, scheduler -> front ---------------------------------------------------------


class Credit(Message, frozen=True):
    """One request ended, whatever its end: its places at the front are free again."""

    client: bytes
    rid: str
    epoch: int


class Pace(Message, frozen=True):
    """How fast the scheduler works, several times a second while it does.

    Of the requests that came to it in this epoch, `left` have left its queue, and `left_tokens` of
    their prompts' tokens need no computing, or no more. One that waits takes `prompt_token_s`; a
    request that waits for one of the `free_places` in the batch, beyond its prompt, `request_s`; a
    step `step_s`. Those that run need `running_s` more than they would halfway to their ends.
    """

    epoch: int
    left: int = 0
    left_tokens: int = 0
    prompt_token_s: float = 0.0
    request_s: float = 0.0
    free_places: int = 0
    step_s: float = 0.0
    running_s: float = 0.0


FrontNews = Credit | GrammarLost | Pace


# ---- supervisor -> everyone (PUB "events") ---------------------------------------------------


class RingEvent(Message, frozen=True):
    """The ring's state, published at every change and every EVENT_INTERVAL_S in between.

    A new `epoch` means that a part was lost: everything in flight before it has failed.
    `parts` gives each part's state: "starting", "ready", "dead". `ready` says that those of
    RING_PARTS are: without the gateway or the compiler the ring serves all but their requests.
    `dropped` counts messages that made no sense to the supervisor, or to a part that runs.
    """

    epoch: int
    ready: bool
    draining: bool
    parts: dict[str, str]
    reason: str = ""
    dropped: int = 0


# ---- actors -> supervisor (PULL "ctl") -------------------------------------------------------


class Heartbeat(Message, frozen=True):
    """What a part tells of itself, at every change. The first one, sent when it can serve, is its
    ready handshake.

    `in_flight` counts the requests the part still holds (the front's count decides a drain).
    `info` holds facts for the start-up log. `dropped` messages made no sense to the part.
    """

    part: str
    pid: int
    epoch: int
    in_flight: int = 0
    info: dict[str, Any] = {}
    dropped: int = 0


encode = msgspec.msgpack.Encoder().encode


def decoder(union: Any) -> msgspec.msgpack.Decoder:
    """A decoder for one socket's union of messages."""
    return msgspec.msgpack.Decoder(union)
