"""The server's own operations and facts: flush, abort, model and server info."""

import math
from typing import Any

from litestar import HttpMethod, get, post, route
from litestar.types import ASGIApp

from srt.errors import RequestError
from srt.gateway.body import read_body
from srt.gateway.context import Gateway, HttpRequest, gateway_of
from srt.gateway.openapi import documented
from srt.gateway.reply import json_reply
from srt.gateway.ring_state import ring_state, stats_or_none
from srt.gateway.wire_operations import (
    ABORT_KIND,
    Aborted,
    AbortRequest,
    Flushed,
    ModelInfo,
    TokenizerInfo,
)

MAX_FLUSH_WAIT_S = 300.0
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@route(
    "/flush_cache",
    http_method=[HttpMethod.GET, HttpMethod.POST],
    status_code=200,
    opt=documented(answer=Flushed, query={"timeout": float}),
)
async def flush_cache(request: HttpRequest) -> ASGIApp:
    """Empty the prefix cache; 409 while requests run, after waiting `timeout` seconds."""
    timeout_s = _timeout(request)
    await gateway_of(request).client.flush_cache(timeout_s)
    return json_reply(Flushed())


def _timeout(request: HttpRequest) -> float:
    raw = request.query_params.get("timeout", "0")
    try:
        timeout_s = float(raw)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= MAX_FLUSH_WAIT_S:
        message = f"timeout must be a number of seconds from 0 to {MAX_FLUSH_WAIT_S:g}"
        raise RequestError(message, param="timeout")
    return timeout_s


@post("/abort_request", status_code=200, opt=documented(AbortRequest, ABORT_KIND, Aborted))
async def abort_request(request: HttpRequest) -> ASGIApp:
    """Abort a request, a batch, or all that came through this gateway, by the exact rid."""
    body = await read_body(request, AbortRequest, ABORT_KIND)
    gateway = gateway_of(request)
    aborted = _meant(gateway, body)
    for rid in aborted:
        await gateway.client.abort(rid)
    return json_reply(Aborted(aborted=aborted))


def _meant(gateway: Gateway, body: AbortRequest) -> list[str]:
    """The live rids that `body` names."""
    if body.abort_all:
        return list(gateway.live)
    if not body.rid:
        raise RequestError("rid or abort_all must be given", param="rid")
    if body.prefix:
        return [rid for rid in gateway.live if rid.startswith(body.rid)]
    rids = dict.fromkeys([body.rid, *gateway.groups.get(body.rid, [])])
    return [rid for rid in rids if rid in gateway.live]


@get(["/get_model_info", "/model_info"], opt=documented(answer=ModelInfo))
async def model_info(request: HttpRequest) -> ASGIApp:
    """What is served."""
    gateway = gateway_of(request)
    info = gateway.info
    return json_reply(
        ModelInfo(
            model_path=info.model_path,
            tokenizer_path=info.model_path,
            served_model_name=info.model_name,
            context_length=info.context_len,
            max_total_tokens=info.max_total_tokens,
            bos_token_id=gateway.vocab.bos_id,
        )
    )


@get("/tokenizer_info", opt=documented(answer=TokenizerInfo))
async def tokenizer_info(request: HttpRequest) -> ASGIApp:
    """What a client must know of the tokenizer to prepare prompts for it."""
    vocab = gateway_of(request).vocab
    named = {name: vocab.named_tokens.get(name) for name in _NAMED_TOKENS}
    info = TokenizerInfo(
        vocab_size=vocab.vocab_size,
        model_max_length=vocab.context_len,
        add_bos_token=vocab.add_bos,
        add_eos_token=vocab.add_eos,
        chat_template=vocab.chat_template,
        **named,
    )
    return json_reply(info)


@get(["/get_server_info", "/server_info"], opt=documented(answer=dict[str, Any]))
async def server_info(request: HttpRequest) -> ASGIApp:
    """The server's arguments, its statistics and the ring's state."""
    return json_reply(await _server_info(gateway_of(request)))


async def _server_info(gateway: Gateway) -> dict[str, Any]:
    info = gateway.info
    args = {name: value for name, value in info.server_args.items() if name != "api_key"}
    stats = await stats_or_none(gateway.client)
    return args | {
        "model_path": info.model_path,
        "served_model_name": info.model_name,
        "context_length": info.context_len,
        "max_total_tokens": info.max_total_tokens,
        "version": info.version,
        "ring": ring_state(gateway.client.ring),
        "internal_states": [] if stats is None else [stats],
    }


ROUTES = [flush_cache, abort_request, model_info, tokenizer_info, server_info]
