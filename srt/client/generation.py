"""The interface between those who ask for text and the transports that reach a server.

`srt.client` (ZeroMQ) and `srt.client.http.client` (HTTP) implement `Client`; the gateway, the
language and user programs are written against it. Every snapshot is cumulative, so a reader that
skips some loses nothing but time; only `delta` is relative to the previous snapshot.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from srt.client.media import MediaFile
from srt.wire.answer_meta import AnswerMeta
from srt.wire.constraint import Capture
from srt.wire.errors import RequestError
from srt.wire.hints import Hints, ServiceTier
from srt.wire.messages import ChatMessage, ChatOptions, Finish, ToolSpec
from srt.wire.pause import PauseMode
from srt.wire.ring_state import RingEvent
from srt.wire.sampling import SamplingParams, Scoring


class PromptRequest(Struct, frozen=True, kw_only=True):
    """What all requests with a prompt have in common.

    Prompts share KV under the same `cache_salt` only. `rid` None takes a new one.

    In the parts `literal_spans` of the text, [start, stop) in characters and in ascending order,
    control tokens are text: text that others wrote into a prompt cannot begin or end turns.

    `media` of a kind are shown in their order where the prompt has the model's placeholders of
    it, or where the `parts` of messages have their numbers.

    A program that asks on behalf of several others names each in `tenant`: the server serves
    tenants in turn. The HTTP server does this for its own callers.
    """

    text: str | None = None
    input_ids: Sequence[int] | None = None
    cache_salt: str = ""
    rid: str | None = None
    tenant: str = ""
    literal_spans: Sequence[tuple[int, int]] = ()
    media: Sequence[MediaFile] = ()


class Request(PromptRequest, frozen=True, kw_only=True):
    """What a client asks for: `sampling.n` completions of one prompt. Exactly one of text,
    input_ids, messages is set; `chat` says how the template writes messages.

    Without `scoring` no log-probabilities are returned. `tools` go with messages: the prompt
    describes them, and the text holds the calls as the model wrote them.

    `timeout_ms` (0: none) after it reached the server, a request without any token fails with
    the code TIMED_OUT; one with tokens ends with these, and its finish is "timeout".

    A `joined` request belongs to a batch whose earlier requests were admitted: it is not refused
    because these are before it.

    Of a server's replicas, `routed_replica` serves it, unless that has no scheduler just then. None
    leaves the choice to the server.

    If the output will mostly be a known text, its `prediction` makes it faster: tokens are guessed
    from it, and the output is the same. `hints` say what the request is part of.

    Of the requests of one caller those of the class `service_tier` "priority" go first, then those
    of "default", then those of "flex"; of a class those with the greatest `priority`. Without a
    tier a positive priority is the first class, and a negative one the last.
    """

    messages: list[ChatMessage] | None = None
    sampling: SamplingParams = SamplingParams()
    stream: bool = False
    scoring: Scoring | None = None
    tools: Sequence[ToolSpec] = ()
    chat: ChatOptions = ChatOptions()
    joined: bool = False
    timeout_ms: int = 0
    routed_replica: int | None = None
    prediction: str = ""
    hints: Hints | None = None
    priority: int = 0
    service_tier: ServiceTier = ""


class GenerateOutput(AnswerMeta, frozen=True, kw_only=True, array_like=False, omit_defaults=False):
    """A snapshot of one request so far, with the facts that are known of it.

    `delta` is the text that the previous snapshot did not have. `finish` is None while the
    request runs. `output_logprobs` has one value per output id, and `prompt_logprobs` one
    (logprob, id) pair per prompt token from `scoring.start` on; both are None unless the
    request asked for them. Only the token at position 0 has no log-probability (None).

    With several samples, all show the prompt's log-probabilities, which come with the first
    sample: snapshots before that have none.

    The `top` lists have, per position, (logprob, id) pairs of the most likely tokens, best first;
    the `id` lists the values of `scoring.ids`, in their order. They are None unless the
    request asked for them, and so is the entry of position 0.

    A jump may cut text into other tokens than an earlier snapshot had: `output_ids` are those of
    this snapshot's text; the text itself only grows. With token healing, the first output ids write
    the text of the prompt's last `healed_tokens` again, which is not part of `text`, and may go on
    in the same token.

    `captures`, which the last snapshot has, are the parts of `text` that its constraint has names
    for; None if it has none, or if they could not be found in the time there is for that.
    """

    rid: str
    text: str = ""
    delta: str = ""
    output_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    output_logprobs: list[float] | None = None
    prompt_logprobs: list[tuple[float | None, int]] | None = None
    output_top_logprobs: list[list[tuple[float, int]]] | None = None
    prompt_top_logprobs: list[list[tuple[float, int]] | None] | None = None
    output_id_logprobs: list[list[float]] | None = None
    prompt_id_logprobs: list[list[float] | None] | None = None
    captures: list[Capture] | None = None


# Fields of a GenerateOutput with an entry for each output id, and for tokens of the prompt.
OF_IDS = ("output_ids", "output_logprobs", "output_top_logprobs", "output_id_logprobs")
OF_PROMPT = ("prompt_logprobs", "prompt_top_logprobs", "prompt_id_logprobs")


class ScoreRequest(PromptRequest, frozen=True, kw_only=True):
    """A request for a score: how likely each continuation is after one prefix.

    Exactly one of text and input_ids is the prefix. Continuations are texts or lists of token ids,
    at least one, and none of them empty. A literal span that ends with the prefix extends over the
    text after it.
    """

    continuations: Sequence[str | Sequence[int]]


class Likelihood:
    """What follows from the log-probabilities (natural) of a text's tokens. A token at the very
    start of everything has none (None)."""

    __slots__ = ()
    logprobs: Sequence[float | None]

    @property
    def total(self) -> float:
        """The sum of the log-probabilities."""
        return math.fsum(value for value in self.logprobs if value is not None)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0.0 where none has one."""
        count = sum(value is not None for value in self.logprobs)
        return self.total / count if count else 0.0


class ChoiceScore(Likelihood, Struct, frozen=True):
    """The score of one continuation: its tokens from `ScoreOutput.start` on, and the
    log-probability of each, given all tokens before it."""

    token_ids: list[int]
    logprobs: list[float | None]


class ScoreOutput(Struct, frozen=True):
    """The scores of all continuations, in the order they were given.

    `start` is the first scored position: the length of the longest token prefix that the prefix
    and every sequence (prefix and continuation, encoded together) have in common. It is below
    `prompt_tokens`, the length of the prefix, where a continuation merges with its last token.
    `cached_tokens` were in the cache at the beginning; the model computed `computed_tokens` for
    all continuations together.
    """

    rid: str
    choices: list[ChoiceScore]
    start: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int

    @property
    def probabilities(self) -> list[float]:
        """Of each continuation, among these: the softmax of the totals."""
        return softmax([choice.total for choice in self.choices])


def softmax(logprobs: Sequence[float]) -> list[float]:
    """The probabilities among texts of which one is certain."""
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """What is to be tokenized: exactly one of text and messages. `add_special_tokens` is for text;
    `tools` and `chat` go with messages, and are those of a `Request`, like `tenant`."""

    text: str | None = None
    messages: list[ChatMessage] | None = None
    tools: Sequence[ToolSpec] = ()
    chat: ChatOptions = ChatOptions()
    add_special_tokens: bool = True
    tenant: str = ""


def scoring_of(
    return_logprob: bool = False,
    logprob_start_len: int = -1,
    top_logprobs: int = 0,
    logprob_token_ids: Sequence[int] = (),
) -> Scoring | None:
    """The `Scoring` of four arguments. RequestError for details without return_logprob."""
    if return_logprob:
        return Scoring(logprob_start_len, top_logprobs, list(logprob_token_ids))
    for name, given in (("top_logprobs", top_logprobs), ("logprob_token_ids", logprob_token_ids)):
        if given:
            raise RequestError(" needs return_logprob", at=name)
    return None


class Generation(Protocol):
    """An admitted request, or one of its samples: iterate over its snapshots, or wait for the last.

    Both raise RequestError when the request fails, RingError when the server is lost.
    """

    @property
    def rid(self) -> str: ...

    @property
    def meta(self) -> AnswerMeta:
        """What is known so far; of the prompt, everything."""
        ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def opens_reasoning(self) -> bool:
        """Whether the prompt ends inside the model's reasoning: the text begins there."""
        ...

    @property
    def closes_reasoning(self) -> bool:
        """Whether the prompt has the end of the model's reasoning: the text begins after it."""
        ...

    def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        """Snapshots in order; the last one, and only that, has `finish`."""
        ...

    async def result(self) -> GenerateOutput:
        """The final snapshot."""
        ...

    async def aclose(self) -> None:
        """Abort it unless it has finished; other samples go on. May be called more than once."""
        ...


def require_single(request: Request) -> None:
    """Raise RequestError unless the request is for one completion."""
    if request.sampling.n != 1:
        raise RequestError(" must be 1 here: submit_samples takes more", at="n")


class Client(Protocol):
    """A way into one server. Safe for concurrent use within one event loop."""

    @property
    def ring(self) -> RingEvent | None:
        """The server's state as last heard; None when this transport does not receive it."""
        ...

    async def submit(self, request: Request) -> Generation:
        """Hand in a request for one completion; returns once the server has admitted it.

        Raises RequestError when the request is refused (param "n" if it wants several) and
        RingError when the server cannot be reached.
        """
        ...

    async def submit_samples(self, request: Request) -> Sequence[Generation]:
        """Hand in a request for `sampling.n` completions: one Generation each, in order.

        They are admitted, or refused, together. With n > 1 the rid of each is `sample_rid(rid, i)`:
        to abort that ends one, to abort the request's own rid all; to close one ends that one.
        """
        ...

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """The token ids of a text, or of the prompt that the chat template makes of messages.

        Raises RequestError when they are refused and RingError when the server cannot be reached.
        """
        ...

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        """How likely each continuation is. One round trip; a cancelled call ends the work.

        Raises RequestError when the request is refused or aborted, RingError when the server
        cannot be reached or is lost.
        """
        ...

    async def abort(self, rid: str, tenant: str = "") -> None:
        """End this client's request `rid` of `tenant`, or one of its samples; an unknown rid is
        ignored."""
        ...

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        """Empty the prefix cache, waiting up to `timeout_s` for the server to be idle.

        Raises RequestError (code CONFLICT) when it is still busy then.
        """
        ...

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        ...

    async def look(self) -> list[dict[str, Any]]:
        """What the radix tree and the queue look like, of each replica."""
        ...


class ServerClient(Client, Protocol):
    """A client on the ring, as the gateway needs it."""

    async def pause_generation(self, mode: PauseMode | None) -> None:
        """Pause the server for all its clients, or with None let it go on. Returns when all its
        schedulers have done so: then no step runs.

        Raises RequestError when a step goes on for too long: the pause begins when it ends.
        """
        ...

    async def edge(self, replica: int, node: int) -> tuple[list[int], int]:
        """The first token ids of a node that the last `look` has shown, and how many it has; no
        ids if it has been evicted since. `replica` is one of the ring's."""
        ...
