"""The OpenAI routes: completions, chat completions, models."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from litestar import get, post
from litestar.types import ASGIApp

from srt.errors import RequestError
from srt.gateway.batch import Batch, submit_all
from srt.gateway.body import read_body
from srt.gateway.chat import chat_of
from srt.gateway.chat_answers import chat_face
from srt.gateway.constraint_fields import Given, constrained, openai_constraint
from srt.gateway.context import Gateway, GatewayInfo, HttpRequest, gateway_of
from srt.gateway.disconnect import while_connected
from srt.gateway.errors import MODEL_NOT_FOUND
from srt.gateway.fields import CHAT, COMPLETION
from srt.gateway.openai_answers import COMPLETIONS, Envelope, Face, chunks, whole
from srt.gateway.reply import json_reply
from srt.gateway.sse import EventStream
from srt.gateway.wire_openai import (
    ChatRequest,
    CompletionRequest,
    ModelCard,
    ModelList,
    OpenAIRequest,
    OpenAIResponse,
)
from srt.generation import Request

_COMPLETION_NAMES = {
    "text": "prompt",
    "input_ids": "prompt",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
_CHAT_NAMES = {"text": "messages", "input_ids": "messages", "min_new_tokens": "min_tokens"}


@post("/v1/completions", status_code=200)
async def completions(request: HttpRequest) -> ASGIApp:
    """Complete one prompt or several; each prompt is a choice."""
    body = await read_body(request, CompletionRequest, COMPLETION)
    given = openai_constraint(body)
    names = _COMPLETION_NAMES | ({given.kind: given.path} if given else {})
    return await _answer(request, body, _prompts(body, given), lambda _: COMPLETIONS, names)


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer a chat."""
    body = await read_body(request, ChatRequest, CHAT)
    chat = chat_of(body, reasoning=gateway_of(request).info.reasoning)

    def face(batch: Batch) -> Face:
        return chat_face(chat.reading, batch.generations[0].opens_reasoning)

    return await _answer(request, body, [chat.request], face, _CHAT_NAMES | chat.names)


async def _answer(
    request: HttpRequest,
    body: OpenAIRequest,
    prompts: list[Request],
    face_of: Callable[[Batch], Face],
    names: Mapping[str, str],
) -> ASGIApp:
    gateway = gateway_of(request)
    _check_model(body.model, gateway.info)
    rename = partial(_rename_param, names, len(prompts) > 1)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    admission = submit_all(gateway, prompts, rename_param=rename)
    model = body.model or gateway.info.model_name
    if body.stream:
        batch = await while_connected(request.receive, admission)
        face = face_of(batch)
        envelope = Envelope.of(batch, face, model, body.rid)
        return EventStream(chunks(envelope, face, batch, body.include_usage), batch)

    async def answer() -> OpenAIResponse:
        async with aclosing(await admission) as batch:
            outputs = await batch.results()
            face = face_of(batch)
            return whole(Envelope.of(batch, face, model, body.rid), face, outputs)

    return json_reply(await while_connected(request.receive, answer()))


def _prompts(body: CompletionRequest, given: Given | None) -> list[Request]:
    after = body.constraint_after or ""
    sampling = constrained(body.sampling(body.max_tokens), body, given, after)
    many = isinstance(body.prompt, list) and not all(isinstance(p, int) for p in body.prompt)
    values: list[Any] = body.prompt if many else [body.prompt]  # type: ignore[assignment]
    if body.prompt == []:
        raise RequestError("prompt must not be empty", param="prompt")
    if len({type(value) for value in values}) > 1:
        raise RequestError("prompt must not mix texts and token ids", param="prompt")
    return [
        Request(
            stream=body.stream,
            sampling=sampling,
            text=value if isinstance(value, str) else None,
            input_ids=None if isinstance(value, str) else value,
            rid=f"{body.rid}_{i}" if body.rid and many else body.rid,
            cache_salt=body.cache_salt,
        )
        for i, value in enumerate(values)
    ]


def _rename_param(
    names: Mapping[str, str], is_list: bool, param: str | None, index: int
) -> str | None:
    renamed = names.get(param, param) if param else None
    if is_list and (renamed is None or renamed == "prompt"):
        return f"prompt[{index}]"
    return renamed


def _check_model(model: str | None, info: GatewayInfo) -> None:
    if model not in (None, info.model_name, info.model_path):
        message = f"model {model!r} is not served here; this server has {info.model_name!r}"
        raise RequestError(message, param="model", code=MODEL_NOT_FOUND)


def _card(gateway: Gateway) -> ModelCard:
    info = gateway.info
    return ModelCard(
        id=info.model_name,
        created=gateway.created,
        root=info.model_path,
        max_model_len=info.context_len,
    )


@get("/v1/models")
async def models(request: HttpRequest) -> ASGIApp:
    """The one model that is served."""
    return json_reply(ModelList(data=[_card(gateway_of(request))]))


@get("/v1/models/{name:path}")
async def model(request: HttpRequest) -> ASGIApp:
    """The served model by its name or path."""
    gateway = gateway_of(request)
    name = str(request.path_params["name"])
    wanted = name if name == gateway.info.model_path else name.removeprefix("/")
    _check_model(wanted, gateway.info)
    return json_reply(_card(gateway))


ROUTES = [completions, chat_completions, models, model]
