"""Shapes the answers of the OpenAI routes: whole responses, and the chunks of a stream.

A `Face` says how one route words its choices (`chat_answers` has the chats'); the rest is the
same for both.
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from msgspec import UNSET, Struct

from srt.errors import RequestError
from srt.gateway.batch import Batch
from srt.gateway.wire_openai import (
    CompletionChoice,
    FinishWord,
    OpenAIResponse,
    PromptTokensDetails,
    Usage,
)
from srt.generation import GenerateOutput


class Face(Struct, frozen=True):
    """How a route words its answers.

    `chunk_choices(index, output, is_first)` gives the choices that one snapshot adds, each to be
    sent as a chunk of its own.
    """

    id_prefix: str
    object: str
    chunk_object: str
    choice: Callable[[int, GenerateOutput], Any]
    chunk_choices: Callable[[int, GenerateOutput, bool], Iterator[Any]]


class Envelope(Struct, frozen=True):
    """The fields that all chunks of an answer share."""

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, batch: Batch, face: Face, model: str, rid: str | None) -> "Envelope":
        """Named by the caller's rid, or by the first request's with the route's prefix."""
        name = rid or face.id_prefix + batch.generations[0].rid
        return cls(name, model, int(time.time()))


def whole(envelope: Envelope, face: Face, outputs: list[GenerateOutput]) -> OpenAIResponse:
    """The response to a request that does not stream."""
    return OpenAIResponse(
        id=envelope.id,
        object=face.object,
        created=envelope.created,
        model=envelope.model,
        choices=[face.choice(i, output) for i, output in enumerate(outputs)],
        usage=usage_of(outputs),
    )


async def chunks(
    envelope: Envelope, face: Face, batch: Batch, include_usage: bool
) -> AsyncGenerator[OpenAIResponse, None]:
    """The chunks of a stream; with `include_usage` the last one has usage and no choices."""
    last: dict[int, GenerateOutput] = {}

    def chunk(choices: list[Any], usage: Usage | None) -> OpenAIResponse:
        return OpenAIResponse(
            id=envelope.id,
            object=face.chunk_object,
            created=envelope.created,
            model=envelope.model,
            choices=choices,
            usage=usage if include_usage else UNSET,
        )

    async with aclosing(batch.snapshots()) as snapshots:
        async for index, output in snapshots:
            for choice in face.chunk_choices(index, output, index not in last):
                yield chunk([choice], None)
            last[index] = output
    if include_usage:
        yield chunk([], usage_of(list(last.values())))


def usage_of(outputs: list[GenerateOutput]) -> Usage:
    """The sum over all choices."""
    prompt = sum(o.prompt_tokens for o in outputs)
    completion = sum(o.completion_tokens for o in outputs)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(sum(o.cached_tokens for o in outputs)),
    )


def finish_word(output: GenerateOutput) -> FinishWord | None:
    """Why the answer ended, None while it has not."""
    if output.finish is None:
        return None
    if output.finish.type == "stop":
        return "stop"
    return "length" if output.finish.type == "length" else "abort"


def ended(output: GenerateOutput) -> FinishWord:
    """Why the answer ended."""
    word = finish_word(output)
    if word is None:
        raise RequestError("the answer ended without a finish reason", code="internal")
    return word


def matched(output: GenerateOutput) -> int | str | None:
    """The token or the stop string that ended the answer."""
    return output.finish.matched if output.finish is not None else None


def _completion_choice(index: int, output: GenerateOutput) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=output.text,
        finish_reason=ended(output),
        matched_stop=matched(output),
    )


def _completion_chunks(
    index: int, output: GenerateOutput, is_first: bool
) -> Iterator[CompletionChoice]:
    if output.delta or output.finish is not None:
        yield CompletionChoice(
            index=index,
            text=output.delta,
            finish_reason=finish_word(output),
            matched_stop=matched(output),
        )


COMPLETIONS = Face(
    "cmpl-", "text_completion", "text_completion", _completion_choice, _completion_chunks
)
