"""The OpenAI routes: completions and chat completions; embeddings are refused."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp

from srt.client.generation import Request
from srt.gateway.batch import Batch, check_load, check_load_of, prompt_ids_of, submit_all
from srt.gateway.constraint.fields import openai_constraint
from srt.gateway.context import (
    HttpRequest,
    call_format,
    gateway_of,
    media_rules,
    model_of,
)
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import json_reply, post
from srt.gateway.http.sse import EventStream
from srt.gateway.media.given import MediaList
from srt.gateway.openai.answers import Envelope, Face, check_details, chunks, whole
from srt.gateway.openai.chat import OPTION_NAMES, chat_of
from srt.gateway.openai.chat_answers import ChatFace
from srt.gateway.openai.chat_messages import chat_media_texts
from srt.gateway.openai.completions import CompletionFace, completion_requests
from srt.gateway.wire.fields import CHAT, COMPLETION
from srt.gateway.wire.openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatRequest,
    CompletionChoice,
    CompletionRequest,
    OpenAIRequest,
    OpenAIResponse,
    StreamOptions,
)
from srt.wire.errors import Names, RequestError

_COMPLETION_NAMES: dict[str | None, str] = {
    "text": "prompt",
    "input_ids": "prompt",
    "media": "prompt",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_logprobs": "logprobs",
}
_CHAT_NAMES: dict[str | None, str] = {
    "text": "messages",
    "input_ids": "messages",
    "media": "messages",
    "min_new_tokens": "min_tokens",
    **OPTION_NAMES,
}
# Makes the face of an answer from its batch and, if they are wanted, the ids of its prompts.
FaceOf = Callable[[Batch, Sequence[list[int]]], Face]


@post(
    "/v1/completions",
    CompletionRequest,
    OpenAIResponse[CompletionChoice],
    kind=COMPLETION,
    events=OpenAIResponse[CompletionChoice],
)
async def completions(request: HttpRequest) -> ASGIApp:
    """Complete one prompt or several, `n` times each."""
    gateway = gateway_of(request)
    check_load(gateway, is_latency=True)
    check = partial(check_load_of, gateway)
    body = await read_body(request, CompletionRequest, COMPLETION, takes_others=True, check=check)
    given = openai_constraint(body)
    prompts = completion_requests(body, given, gateway.info)
    names = _COMPLETION_NAMES | ({given.kind: given.path} if given else {})
    if body.best_of is not None:
        names = names | {"n": "best_of"}

    def face(_: Batch, prompt_ids: Sequence[list[int]]) -> Face:
        return CompletionFace(body, gateway.vocab, prompts, prompt_ids)

    return await _answer(request, body, prompts, face, names)


@post(
    "/v1/chat/completions",
    ChatRequest,
    OpenAIResponse[ChatChoice],
    kind=CHAT,
    events=OpenAIResponse[ChatChunkChoice],
)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer a chat."""
    gateway = gateway_of(request)
    check_load(gateway, is_latency=True)
    check = partial(check_load_of, gateway)
    body = await read_body(
        request, ChatRequest, CHAT, chat_media_texts, takes_others=True, check=check
    )
    media = MediaList(media_rules(gateway))
    chat = chat_of(body, gateway.info.reasoning, gateway.vocab, call_format(gateway), media)
    body = replace(body, messages=[])  # they may have large files

    def face(batch: Batch, prompt_ids: Sequence[list[int]]) -> Face:
        opened = chat.reading.begins_inside(batch.generations[0])
        return ChatFace(body, chat, gateway.vocab, opened, prompt_ids[0] if prompt_ids else None)

    names = _CHAT_NAMES | chat.names
    return await _answer(request, body, [chat.request], face, names, [media])


async def _answer(
    request: HttpRequest,
    body: OpenAIRequest,
    prompts: list[Request],
    face_of: FaceOf,
    names: Names,
    media: Sequence[MediaList] = (),
) -> ASGIApp:
    gateway = gateway_of(request)
    model = model_of(request, body.model)
    check_details(body)

    def names_at(index: int) -> Names:
        prompt = f"prompt[{index}]"
        own = {"text": prompt, "input_ids": prompt, "media": prompt, None: prompt}
        return {**names, **own} if len(prompts) > 1 else names

    async def admitted() -> tuple[Batch, Face]:
        name = body.rid if len(prompts) > 1 else None
        batch = await submit_all(gateway, prompts, names=names_at, name=name, media=media)
        try:
            # What the ids of pictures are, only the ring knows.
            has_ids = body.return_token_ids and not any(each.given for each in media)
            prompt_ids = [await prompt_ids_of(gateway, p) for p in prompts] if has_ids else []
            return batch, face_of(batch, prompt_ids)
        except BaseException:
            await batch.aclose()
            raise

    if body.stream:
        batch, face = await while_connected(request.receive, admitted())
        envelope = Envelope.of(batch, face.id_prefix, model, body)
        options = body.stream_options or StreamOptions()
        return EventStream(chunks(envelope, face, batch, options), batch)

    async def answer() -> OpenAIResponse[Any]:
        batch, face = await admitted()
        async with aclosing(batch):
            outputs = await batch.results()
            envelope = Envelope.of(batch, face.id_prefix, model, body)
            return await whole(envelope, face, batch, outputs)

    return json_reply(await while_connected(request.receive, answer()))


@post("/v1/embeddings")
async def embeddings(request: HttpRequest) -> ASGIApp:
    """Refused: the models that this server runs generate text."""
    raise RequestError("embeddings are not supported: this server's models generate text")
