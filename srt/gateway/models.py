"""The routes of the served model's names, in OpenAI's form or Anthropic's, as the client speaks."""

from datetime import UTC, datetime

from starlette.types import ASGIApp

from srt.gateway.context import (
    Gateway,
    HttpRequest,
    check_model,
    gateway_of,
    sees,
    shown_path,
)
from srt.gateway.errors import speaks_anthropic
from srt.gateway.http.routing import get, json_reply, name_of
from srt.gateway.wire.anthropic import ModelInfo, ModelPage
from srt.gateway.wire.openai import ModelCard, ModelList


def _card(gateway: Gateway, name: str) -> ModelCard:
    info = gateway.info
    return ModelCard(
        id=name,
        created=gateway.created,
        root=shown_path(info.model_path),
        max_model_len=info.context_len,
        has_image_understanding=sees(gateway),
    )


def _info(gateway: Gateway, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(gateway.created, UTC)
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=gateway.info.context_len,
        max_tokens=gateway.info.context_len,
    )


@get("/v1/models", answer=ModelList)
async def models(request: HttpRequest) -> ASGIApp:
    """The one model that is served, once for each of its names; to clients that send
    `anthropic-version` in Anthropic's form."""
    gateway = gateway_of(request)
    every = dict.fromkeys((gateway.info.model_name, *gateway.info.model_names))
    names = [name for name in every if name != "*"]
    if not speaks_anthropic(request.scope):
        return json_reply(ModelList(data=[_card(gateway, name) for name in names]))
    infos = [_info(gateway, name) for name in names]
    return json_reply(ModelPage(data=infos, first_id=names[0], last_id=names[-1]))


@get("/v1/models/{name}", answer=ModelCard)
async def model(request: HttpRequest) -> ASGIApp:
    """The served model by its name or path, in the same form."""
    gateway = gateway_of(request)
    name = name_of(request)
    if (path := f"/{name}") == gateway.info.model_path:
        name = path  # its slash was one of two
    check_model(name, gateway.info)
    is_theirs = speaks_anthropic(request.scope)
    return json_reply(_info(gateway, name) if is_theirs else _card(gateway, name))
