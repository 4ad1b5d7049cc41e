"""Every message that travels on the ring's sockets, and their codecs.

Frozen, array-like msgspec structs in tagged unions, one union per socket. Array-like means that
fields are only ever appended, with defaults. Token ids travel as packed little-endian int32
bytes. Messages of a request carry the ring's `epoch`; a receiver drops those of another epoch.
"""

from typing import Any

import msgspec
from msgspec import Struct

from srt.wire.answer_meta import NO_META, AnswerMeta
from srt.wire.chat import ChatMessage as ChatMessage
from srt.wire.chat import ChatOptions as ChatOptions
from srt.wire.chat import InputFormat as InputFormat
from srt.wire.chat import ToolCall as ToolCall
from srt.wire.chat import ToolSpec as ToolSpec
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import ErrorInfo
from srt.wire.hints import Hints, ServiceTier
from srt.wire.media import MediaRef
from srt.wire.packing import float_list as float_list
from srt.wire.packing import id_list as id_list
from srt.wire.packing import pack_floats as pack_floats
from srt.wire.packing import pack_ids as pack_ids
from srt.wire.packing import unpack_floats as unpack_floats
from srt.wire.packing import unpack_ids as unpack_ids
from srt.wire.sampling import SamplingParams, Scoring

PROTOCOL_VERSION = 4
JUMP_WINDOW_TOKENS = 16  # of an output, from the end: those that a jump may replace


class RingMessage(Struct, frozen=True, tag=True, array_like=True, omit_defaults=True, gc=False):
    """Base of all messages."""

    @property
    def num_frames(self) -> int:
        """Frames that follow this one, with what is too large to be decoded."""
        return 0


# ---- client -> front (the tokenizer's ROUTER) ------------------------------------------------


class PromptMessage(RingMessage, frozen=True):
    """What all requests with a prompt, which is text or packed ids, have in common.

    Control tokens are text in the parts `literal_spans` of `text`: [start, stop) in characters.
    `tenant` is for whom a client that serves several asks: the front gives each of them turns.
    `media` of a kind are shown in their order where the prompt has the model's placeholders of it.
    """

    rid: str
    epoch: int
    text: str | None = None
    input_ids: bytes | None = None
    cache_salt: str = ""
    tenant: str = ""
    literal_spans: list[tuple[int, int]] = []
    media: list[MediaRef] = []

    @property
    def num_frames(self) -> int:
        return sum(ref.frames for ref in self.media)


class GenerateReq(PromptMessage, frozen=True, kw_only=True):
    """A request for `sampling.n` completions. Exactly one of text, input_ids, messages is set;
    `tools` and `chat` go with messages only. Without `scoring` there are no log-probabilities.

    With n > 1 each sample is a request of its own from the front on, of rid
    `sample_rid(rid, index)`; they are admitted together, and an abort may name each.

    `joined` marks the later requests of a batch whose first was admitted: the bound on the expected
    wait does not apply to them, or a large batch could never come in. `timeout_ms` 0 is none.
    The client chooses the replica by `routed_replica`; otherwise the router does. The output may be
    mostly the text `prediction`, from which tokens are guessed. `hints` say what it is part of,
    `priority` and `service_tier` which of its caller's requests go before it (see `class_of`).
    """

    sampling: SamplingParams
    messages: list[ChatMessage] | None = None
    stream: bool = False
    scoring: Scoring | None = None
    tools: list[ToolSpec] = []
    chat: ChatOptions = ChatOptions()
    joined: bool = False
    timeout_ms: int = 0
    routed_replica: int | None = None
    prediction: str = ""
    hints: Hints | None = None
    priority: int = 0
    service_tier: ServiceTier = ""


class AbortReq(RingMessage, frozen=True):
    """End request `rid` of the sending client. Unknown rids are ignored."""

    rid: str
    epoch: int


class ControlReq(RingMessage, frozen=True):
    """An operation on the scheduler: "flush_cache", "stats", "look", "edge" for the token ids of
    the tree's node `node`, "pause" in the mode `mode`, or "continue". Answered by ControlReply,
    a pause when no step runs any more."""

    rid: str
    epoch: int
    op: str
    timeout_s: float = 0.0
    node: int = 0
    mode: str = ""


class Continuation(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What may follow a prefix: a text, or packed ids if that is None."""

    text: str | None
    ids: bytes = b""


class ScoreReq(PromptMessage, frozen=True, kw_only=True):
    """How likely each continuation is after a prefix, which is one of text and input_ids. Each
    continuation becomes a request of its own, whose rid is `score_rid(rid, index)`. If one of
    `literal_spans` ends with the prefix, it extends over each text after it."""

    continuations: list[Continuation]


def score_rid(rid: str, index: int) -> str:
    """The rid of one continuation of the score `rid`: it is output and aborted under this."""
    return f"{rid}/{index}"


def sample_rid(rid: str, index: int) -> str:
    """The rid of one of several samples of the request `rid`."""
    return f"{rid}/{index}"


class TokenizeReq(RingMessage, frozen=True):
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


class CaptureReq(RingMessage, frozen=True):
    """Asks for the parts of `text`, an answer that has ended, that its constraint names. Answered
    by Captured or Refused; nothing reaches the scheduler."""

    rid: str
    epoch: int
    constraint: Constraint
    text: str
    tenant: str = ""


FrontMessage = GenerateReq | AbortReq | ControlReq | ScoreReq | TokenizeReq | CaptureReq


# ---- front -> client -------------------------------------------------------------------------


class Admitted(RingMessage, frozen=True):
    """The request passed every check and is on its way. `meta` has the facts of its prompt;
    `opens_reasoning` says that the output begins inside the model's reasoning, `closes_reasoning`
    that it begins after it. `lead` has the `after` and `opener` of its constraint if they are not
    those of the request. For a score, the prompt is the prefix, and `score_start`
    the first position that is scored. The samples `aborted` (most requests have only sample 0) were
    ended before they began: nothing else is sent for them."""

    rid: str
    epoch: int
    meta: AnswerMeta
    opens_reasoning: bool = False
    score_start: int = 0
    aborted: list[int] = []
    closes_reasoning: bool = False
    lead: tuple[str, str] | None = None


class Refused(RingMessage, frozen=True):
    """The request was not admitted. Nothing else will be sent for it."""

    rid: str
    epoch: int
    error: ErrorInfo


class Tokenized(RingMessage, frozen=True):
    """The answer to a TokenizeReq: packed ids."""

    rid: str
    epoch: int
    ids: bytes


class Captured(RingMessage, frozen=True):
    """The answer to a CaptureReq; None if the constraint has no names, or nothing was found."""

    rid: str
    epoch: int
    captures: list[Capture] | None = None


FrontReply = Admitted | Refused | Tokenized | Captured


# ---- scheduler -> detokenizer ----------------------------------------------------------------


class Finish(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Why a request ended: "stop" (matched: token id or stop string), "length", "timeout" or
    "abort". At `steered` positions of a constrained output, tokens were ruled out, or appended, so
    that it came to its end within the limit."""

    type: str
    matched: int | str | None = None
    error: ErrorInfo | None = None
    steered: int = 0

    @property
    def closed(self) -> bool:
        """Whether the output is whole because it was steered to its end."""
        return self.type == "stop" and self.steered > 0


class LogprobDetail(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities at t positions besides the chosen tokens': of the k most likely tokens,
    best first (`top_ids` int32 [t, k], `top_values` float32 [t, k]), and of m tokens that the
    request names (`id_values` float32 [t, m])."""

    top_ids: bytes = b""
    top_values: bytes = b""
    id_values: bytes = b""


# ---- client -> back (the detokenizer's ROUTER) -----------------------------------------------


class Hello(RingMessage, frozen=True):
    """Opens, and by repetition keeps, a client's lease on the back socket."""

    version: int = PROTOCOL_VERSION


class Goodbye(RingMessage, frozen=True):
    """The client closes; its lease ends without waiting for the time-out."""


BackMessage = Hello | Goodbye


# ---- back -> client --------------------------------------------------------------------------


class Welcome(RingMessage, frozen=True):
    """Answers each Hello. The client may send requests of this epoch from now on."""

    epoch: int
    version: int = PROTOCOL_VERSION


class Expired(RingMessage, frozen=True):
    """Answers the Hello of a client whose lease has ended: its requests in flight are lost, and it
    must come back under a new identity."""


DRAFT_SOURCES = ("own", "tree", "seen", "prediction")  # what the server guesses tokens from


class Output(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What is new of one request: text and ids since its last Output; `finish` on the last.

    `ids` replace the last `dropped` ids sent before: text never changes, but a jump may divide it
    into other tokens. `meta` has all facts so far but where tokens are from: `origins` has a
    letter for each of `ids`, if the request asked for them. `prompt_logprobs` come with the first
    Output. `detail` belongs to `ids`, `prompt_detail` to `prompt_logprob_ids`. `more`: this Output
    was too long for one message, and the next one continues it.
    """

    rid: str
    text: str = ""
    ids: bytes = b""
    logprobs: bytes = b""
    meta: AnswerMeta = NO_META
    prompt_logprob_start: int = -1
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    finish: Finish | None = None
    dropped: int = 0
    detail: LogprobDetail | None = None
    prompt_detail: LogprobDetail | None = None
    more: bool = False
    origins: str = ""


class OutputBatch(RingMessage, frozen=True):
    """The outputs for one client after one scheduler step; in several batches if they are too
    long for one message."""

    epoch: int
    outputs: list[Output]


class ControlResult(RingMessage, frozen=True):
    """A ControlReply, forwarded to its client."""

    rid: str
    epoch: int
    data: bytes = b"{}"
    error: ErrorInfo | None = None


BackReply = Welcome | Expired | OutputBatch | ControlResult


# ---- actors -> supervisor (PULL "ctl") -------------------------------------------------------


encode = msgspec.msgpack.Encoder().encode


def decoder(union: Any) -> msgspec.msgpack.Decoder:
    """A decoder for one socket's union of messages."""
    return msgspec.msgpack.Decoder(union)
