"""Shapes the answers of the OpenAI routes: whole responses, and the chunks of a stream.

A `Face` writes the choices of one route (`completions` and `chat_answers` have one each); the
rest is the same for both.
"""

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from srt.client.generation import GenerateOutput
from srt.gateway.batch import Batch
from srt.gateway.http.turns import in_turns, next_turn
from srt.gateway.wire.openai import (
    Choice,
    CompletionTokensDetails,
    FinishWord,
    OpenAIRequest,
    OpenAIResponse,
    PromptTokensDetails,
    StreamOptions,
    Usage,
    used_tier,
)
from srt.wire.answer_meta import USAGE, meta_of
from srt.wire.constraint import Capture
from srt.wire.errors import RequestError
from srt.wire.hints import ServiceClass
from srt.wire.messages import JUMP_WINDOW_TOKENS, Finish, sample_rid
from srt.wire.sampling import SamplingParams


class Face:
    """Writes the choices of one route. It has state, so each answer needs one of its own.

    Every snapshot or output comes with its index in the batch, in which the samples of a prompt
    are next to each other.
    """

    id_prefix: str
    object: str
    chunk_object: str
    prompt_ids: list[int] | UnsetType = UNSET  # for routes that send them once for all choices

    def choices(self, outputs: Sequence[GenerateOutput]) -> Iterable[Any]:
        """The choices of an answer that does not stream. None comes between them, so that other
        work gets a turn while a long one is made."""
        raise NotImplementedError

    def chunk_choices(self, index: int, output: GenerateOutput) -> Iterable[Any]:
        """What a snapshot adds, each item sent as a chunk of its own; None as in `choices`."""
        raise NotImplementedError

    def prompt_logprobs(
        self, outputs: Sequence[GenerateOutput]
    ) -> Iterable[msgspec.Raw] | UnsetType:
        """The prompt's log-probabilities, for routes that send them once for all choices."""
        return UNSET


class Envelope(Struct, frozen=True):
    """The fields that all chunks of an answer share."""

    id: str
    model: str
    created: int
    service_tier: ServiceClass | UnsetType = UNSET

    @classmethod
    def of(cls, batch: Batch, prefix: str, model: str, body: OpenAIRequest) -> "Envelope":
        """With the caller's rid as its id, or the first request's with the route's prefix."""
        name = batch.generations[0].rid
        if batch.samples > 1:
            name = name.removesuffix(sample_rid("", 0))  # the rid that the samples share
        tier = used_tier(body.service_tier, body.priority)
        return cls(body.rid or prefix + name, model, int(time.time()), tier)


async def whole(
    envelope: Envelope, face: Face, batch: Batch, outputs: list[GenerateOutput]
) -> OpenAIResponse[Any]:
    """The response to a request that does not stream, made in turns with other work."""
    choices = await in_turns(face.choices(outputs))
    ranked = face.prompt_logprobs(outputs)
    rows: Any = ranked if isinstance(ranked, UnsetType) else await in_turns(ranked)
    return OpenAIResponse(
        id=envelope.id,
        object=face.object,
        created=envelope.created,
        model=envelope.model,
        service_tier=envelope.service_tier,
        choices=[choice for choice in choices if choice is not None],
        usage=usage_of(batch, dict(enumerate(outputs))),
        prompt_token_ids=face.prompt_ids,
        prompt_logprobs=rows,
    )


async def chunks(
    envelope: Envelope, face: Face, batch: Batch, options: StreamOptions
) -> AsyncGenerator[OpenAIResponse[Any], None]:
    """The chunks of a stream. With `include_usage` the last one has usage and no choices, and the
    others have null, or the usage so far."""
    last: dict[int, GenerateOutput] = {}
    prompt_ids = face.prompt_ids

    def chunk(choices: list[Any], usage: Usage | None) -> OpenAIResponse[Any]:
        return OpenAIResponse(
            id=envelope.id,
            object=face.chunk_object,
            created=envelope.created,
            model=envelope.model,
            service_tier=envelope.service_tier,
            choices=choices,
            usage=usage if options.include_usage else UNSET,
            prompt_token_ids=prompt_ids,
        )

    async with aclosing(batch.snapshots()) as snapshots:
        async for index, output in snapshots:
            last[index] = output
            usage = usage_of(batch, last) if options.continuous_usage_stats else None
            began = time.monotonic()
            for choice in face.chunk_choices(index, output):
                if choice is not None:
                    yield chunk([choice], usage)
                    prompt_ids = UNSET  # sent once
                began = await next_turn(began)
    if options.include_usage:
        yield chunk([], usage_of(batch, last))


def usage_of(batch: Batch, outputs: dict[int, GenerateOutput]) -> Usage:
    """The usage of the outputs so far, by index. A prompt counts once for all its samples; its
    cached tokens are those of the sample that found the fewest."""
    prompt = batch.prompt_tokens
    completion = sum(output.completion_tokens for output in outputs.values())
    cached: dict[int, int] = {}
    for index, output in outputs.items():
        group = index // batch.samples
        cached[group] = min(cached.get(group, output.cached_tokens), output.cached_tokens)
    drafted = sum(output.drafted for output in outputs.values())
    details: dict[str, Any] = {}
    for output in outputs.values():
        for name, value in meta_of(output, USAGE).items():
            details[name] = details.get(name, 0) + value
    if drafted or details:
        # What was accepted behind a stop string is in no completion.
        accepted = sum(min(o.accepted, o.completion_tokens) for o in outputs.values())
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = drafted - accepted
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            sum(cached.values()),
            batch.media_tokens or UNSET,
            (outputs[0].prefix if 0 in outputs else None) or UNSET,
        ),
        completion_tokens_details=CompletionTokensDetails(**details) if details else UNSET,
    )


def finish_word(output: GenerateOutput) -> FinishWord | None:
    """Why the answer ended, None while it has not."""
    if output.finish is None:
        return None
    if output.finish.type == "stop":
        return "stop"
    # OpenAI's clients know no other reason for an answer that is cut short.
    return "length" if output.finish.type in ("length", "timeout") else "abort"


def ended(output: GenerateOutput) -> FinishWord:
    """Why the answer ended."""
    word = finish_word(output)
    if word is None:
        raise RequestError("the answer ended without a finish reason", code="internal")
    return word


def steered(choice: Choice, finish: Finish | None) -> Choice:
    """The choice, which says how it was steered to its end, if it was. CPython calls with `**` take
    several times as long: for each token of a stream that counts."""
    fields = steering(finish)
    return msgspec.structs.replace(choice, **fields) if fields else choice


def steering(finish: Finish | None) -> dict[str, Any]:
    """The fields that say how an answer's end was steered, if it was."""
    if finish is None or not finish.steered:
        return {}
    return {"steered": finish.steered, "closed": finish.closed}


def captures_in(output: GenerateOutput, shown: str) -> list[Capture] | UnsetType:
    """The captures of a finished answer in `shown`, the part of its text that a reader gets: the
    text after the prompt, or its end. Parts of captures that are not shown are left out."""
    text, before = output.text, len(shown) - len(output.text)
    if output.captures is None or not (shown.endswith(text) or text.endswith(shown)):
        return UNSET
    hidden = max(0, -before)
    places = [
        (c.name, max(c.start, hidden), c.end)
        for c in output.captures
        if c.end > hidden or c.start >= hidden
    ]
    return [
        Capture(name, start + before, end + before, text[start:end]) for name, start, end in places
    ]


class NewTokens:
    """Which of one answer's tokens a snapshot adds.

    A jump may still replace the last ones of a constrained answer, so its tokens are sent later
    than their text.
    """

    def __init__(self, sampling: SamplingParams) -> None:
        jumps = sampling.constraint is not None or sampling.token_healing
        self._held = JUMP_WINDOW_TOKENS if jumps and sampling.jump_forward != "off" else 0
        self._told = 0

    def take(self, output: GenerateOutput) -> tuple[int, int]:
        """The first new token, and the one after the last."""
        start, end = self._told, len(output.output_ids)
        if output.finish is None:
            end = max(start, end - self._held)
        self._told = end
        return start, end


def check_details(body: OpenAIRequest) -> None:
    """Raise RequestError for fields that do not go together."""
    options = body.stream_options
    if options is not None and not body.stream:
        raise RequestError(" needs stream: true", at="stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(" needs include_usage: true", at="stream_options.continuous_usage_stats")
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError(" are not streamed", at="prompt_logprobs")
