"""The keywords of `AsyncClient` and `Engine`, for type checkers.

`srt.client.request_fields` checks the same ones when a program runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from srt.client.media import Media
from srt.wire.hints import Hints, ServiceTier
from srt.wire.messages import ChatMessage, ChatOptions, ToolSpec
from srt.wire.sampling import SamplingParams

Fields = Mapping[str, Any]


class ScoreArgs(TypedDict, total=False):
    """The arguments of `AsyncClient.score` besides the prefix's text and the continuations."""

    input_ids: Sequence[int] | None
    cache_salt: str
    rid: str | None
    tenant: str
    literal_spans: Sequence[tuple[int, int]]
    media: "Sequence[Media | Sequence[Media]]"  # of several prompts, a list for each


class ChatArgs(TypedDict, total=False):
    """The arguments that say what a chat is."""

    messages: Sequence[ChatMessage | Fields] | None
    tools: Sequence[ToolSpec | Fields]
    chat: ChatOptions | Fields


class TokenizeArgs(ChatArgs, total=False):
    """The arguments of `AsyncClient.tokenize` besides the text."""

    add_special_tokens: bool
    tenant: str


class BatchArgs(ScoreArgs, ChatArgs, total=False):
    """The arguments of `Engine.generate` besides the prompts and `sampling`."""

    return_logprob: bool
    logprob_start_len: int
    top_logprobs: int
    logprob_token_ids: Sequence[int]
    joined: bool
    timeout_ms: int
    routed_replica: int | None
    prediction: str
    hints: Hints | Fields | None
    priority: int
    service_tier: ServiceTier


class StreamArgs(BatchArgs, total=False):
    """The arguments of `AsyncClient.stream` besides the text."""

    sampling: SamplingParams | Fields


class GenerateArgs(StreamArgs, total=False):
    """The arguments of `AsyncClient.generate` besides the text."""

    stream: bool


class SubmitArgs(GenerateArgs, total=False):
    """The arguments of `AsyncClient.submit`."""

    text: str | None
