"""The OpenAI routes: completions, chat completions, models."""

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from litestar import get, post
from litestar.types import ASGIApp

from srt.errors import RequestError
from srt.gateway.batch import submit_all
from srt.gateway.body import read_body
from srt.gateway.context import Gateway, GatewayInfo, HttpRequest, gateway_of
from srt.gateway.disconnect import while_connected
from srt.gateway.errors import MODEL_NOT_FOUND
from srt.gateway.fields import CHAT, COMPLETION
from srt.gateway.openai_answers import CHATS, COMPLETIONS, Envelope, Face, chunks, whole
from srt.gateway.reply import json_reply
from srt.gateway.sse import EventStream
from srt.gateway.wire_openai import (
    ChatRequest,
    CompletionRequest,
    Message,
    ModelCard,
    ModelList,
    OpenAIRequest,
    OpenAIResponse,
)
from srt.generation import Request
from srt.messages import ChatMessage

_COMPLETION_NAMES = {
    "text": "prompt",
    "input_ids": "prompt",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
_CHAT_NAMES = _COMPLETION_NAMES | {"text": "messages", "input_ids": "messages"}


@post("/v1/completions", status_code=200)
async def completions(request: HttpRequest) -> ASGIApp:
    """Complete one prompt or several; each prompt is a choice."""
    body = await read_body(request, CompletionRequest, COMPLETION)
    return await _answer(request, body, _prompts(body), COMPLETIONS, _COMPLETION_NAMES)


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: HttpRequest) -> ASGIApp:
    """Answer a chat."""
    body = await read_body(request, ChatRequest, CHAT)
    if not body.messages:
        raise RequestError("messages must not be empty", param="messages")
    limit, names = body.max_tokens, _CHAT_NAMES
    if body.max_completion_tokens is not None:
        limit = body.max_completion_tokens
        names = names | {"max_new_tokens": "max_completion_tokens"}
    prompt = Request(
        stream=body.stream,
        sampling=body.sampling(limit),
        messages=[_chat_message(i, message) for i, message in enumerate(body.messages)],
        rid=body.rid,
        cache_salt=body.cache_salt,
    )
    return await _answer(request, body, [prompt], CHATS, names)


async def _answer(
    request: HttpRequest,
    body: OpenAIRequest,
    prompts: list[Request],
    face: Face,
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
        envelope = Envelope.of(batch, face, model, body.rid)
        return EventStream(chunks(envelope, face, batch, body.include_usage), batch)

    async def answer() -> OpenAIResponse:
        async with aclosing(await admission) as batch:
            outputs = await batch.results()
            return whole(Envelope.of(batch, face, model, body.rid), face, outputs)

    return json_reply(await while_connected(request.receive, answer()))


def _prompts(body: CompletionRequest) -> list[Request]:
    sampling = body.sampling(body.max_tokens)
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


def _chat_message(index: int, message: Message) -> ChatMessage:
    """A message as plain text; "developer" is the newer word for "system"."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        return ChatMessage(role, message.content)
    for i, part in enumerate(message.content):
        if part.type != "text":
            where = f"messages[{index}].content[{i}].type"
            raise RequestError(f"{where} {part.type!r} is not supported: text only", param=where)
    return ChatMessage(role, "".join(part.text for part in message.content))


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
