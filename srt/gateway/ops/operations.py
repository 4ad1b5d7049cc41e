"""The server's own operations and facts: flush, abort, model and server info, pauses, profiles."""

import asyncio
import math
import time
from typing import Any

from starlette.types import ASGIApp

from srt.args import PATHS
from srt.gateway.context import (
    Gateway,
    HttpRequest,
    ProfileStart,
    abort,
    abort_all,
    gateway_of,
    names_of,
    sees,
    shown_path,
)
from srt.gateway.http.auth import ADMIN, WATCH
from srt.gateway.http.body import read_body
from srt.gateway.http.routing import get, json_reply, post, route
from srt.gateway.limits.tenant import Name, check_admin, is_admin, tenant
from srt.gateway.ops.health import STATS_TIMEOUT_S, ring_state, stats_or_none
from srt.gateway.wire.operations import (
    ABORT_KIND,
    CONTINUE_KIND,
    Aborted,
    AbortRequest,
    ContinueRequest,
    Flushed,
    ModelInfo,
    Paused,
    PauseRequest,
    Profile,
    ProfileStarted,
    TokenizerInfo,
    Tree,
)
from srt.wire.errors import CONFLICT, RequestError, RingError
from srt.wire.pause import PAUSE_TIMEOUT_S, PauseMode

MAX_FLUSH_WAIT_S = 300.0
_SECRET = {"api_key", "admin_api_key"}
_COUNTER = "_total"  # endings of the names of counters, which only grow
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@route(
    "/flush_cache", methods=("GET", "POST"), answer=Flushed, query={"timeout": float}, access=ADMIN
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
        message = f" must be a number of seconds from 0 to {MAX_FLUSH_WAIT_S:g}"
        raise RequestError(message, at="timeout")
    return timeout_s


@post("/abort_request", AbortRequest, Aborted, kind=ABORT_KIND)
async def abort_request(request: HttpRequest) -> ASGIApp:
    """Abort a request or a batch of the caller's by its rid, or any of an admin's; an admin may
    also abort all that came through this gateway."""
    body = await read_body(request, AbortRequest, ABORT_KIND)
    gateway = gateway_of(request)
    if body.abort_all:
        check_admin("abort_all")
        aborted = await abort_all(gateway)
    else:
        aborted = _meant(gateway, body)
        await abort(gateway, aborted)
    return json_reply(Aborted(aborted=[rid for _, rid in aborted]))


def _meant(gateway: Gateway, body: AbortRequest) -> list[Name]:
    """The live requests that `body` names and the caller may abort."""
    if not body.rid:
        raise RequestError(" or abort_all must be given", at="rid")
    names = names_of(gateway)
    owners = dict.fromkeys(owner for owner, _ in names) if is_admin() else [tenant()]
    if body.prefix:
        return [name for name in names if name[0] in owners and name[1].startswith(body.rid)]
    named = [
        (owner, rid)
        for owner in owners
        for rid in (body.rid, *gateway.groups.get((owner, body.rid), []))
    ]
    return [name for name in dict.fromkeys(named) if name in names]


@get(["/get_model_info", "/model_info"], answer=ModelInfo)
async def model_info(request: HttpRequest) -> ASGIApp:
    """What is served."""
    gateway = gateway_of(request)
    info, ring = gateway.info, gateway.client.ring
    is_known = ring is not None and ring.media_kinds is not None
    return json_reply(
        ModelInfo(
            model_path=shown_path(info.model_path),
            tokenizer_path=shown_path(info.tokenizer_path),
            served_model_name=info.model_name,
            context_length=info.context_len,
            max_total_tokens=_pool_tokens(gateway),
            bos_token_id=gateway.vocab.bos_id,
            fingerprint=info.fingerprint,
            has_image_understanding=sees(gateway),
            media_placeholders=ring.media_placeholders if ring and is_known else None,
        )
    )


@get("/tokenizer_info", answer=TokenizerInfo)
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


@get(["/get_server_info", "/server_info"], answer=dict[str, Any])
async def server_info(request: HttpRequest) -> ASGIApp:
    """The server's arguments, the ring's state and, for admins, paths and the statistics: of each
    replica, and in all."""
    return json_reply(await _server_info(gateway_of(request)))


async def _server_info(gateway: Gateway) -> dict[str, Any]:
    info = gateway.info
    hidden = _SECRET if is_admin() else _SECRET | PATHS
    args = {name: value for name, value in info.server_args.items() if name not in hidden}
    stats = await stats_or_none(gateway.client) if is_admin() else None
    return args | {
        "model_path": shown_path(info.model_path),
        "served_model_name": info.model_name,
        "context_length": info.context_len,
        "max_total_tokens": _pool_tokens(gateway),
        "version": info.version,
        "default_sampling_params": info.sampling.sources,
        "resolved_activations": info.activations,
        "ring": ring_state(gateway.client.ring),
        **_states(stats),
    }


@get("/tree", answer=Tree, access=WATCH)
async def tree(request: HttpRequest) -> ASGIApp:
    """What the radix tree and the queue look like, of each replica."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            replicas = await gateway_of(request).client.look()
    except TimeoutError:
        raise RingError("the server's scheduler did not answer") from None
    return json_reply(Tree(replicas=replicas))


def _pool_tokens(gateway: Gateway) -> int:
    """The size of the KV pool: as a scheduler has measured it, or as it was asked for."""
    ring = gateway.client.ring
    return (0 if ring is None else ring.pool_tokens) or gateway.info.max_total_tokens


def _states(stats: dict[str, Any] | None) -> dict[str, Any]:
    """Each replica's statistics, and `totals`, which are the same if there is one."""
    if stats is None:
        return {"internal_states": []}
    totals = {name: value for name, value in stats.items() if name != "replicas"}
    return {"internal_states": stats.get("replicas", [totals]), "totals": totals}


# ---- pauses: no generation while somebody works on what the server serves ----------------------


@post("/pause_generation", PauseRequest, Paused, access=ADMIN)
async def pause_generation(request: HttpRequest) -> ASGIApp:
    """Pause generation, for all clients of the server. The answer comes when no step runs any
    more."""
    body = await read_body(request, PauseRequest, empty=PauseRequest())
    gateway = gateway_of(request)
    if body.mode == "abort":
        await abort_all(gateway)  # what the ring does not know yet is among it
    await _set_pause(gateway, body.mode)
    return json_reply(Paused(message="generation is paused"))


@post("/continue_generation", ContinueRequest, Paused, kind=CONTINUE_KIND, access=ADMIN)
async def continue_generation(request: HttpRequest) -> ASGIApp:
    """Go on where the pause began."""
    await read_body(request, ContinueRequest, CONTINUE_KIND, empty=ContinueRequest())
    await _set_pause(gateway_of(request), None)
    return json_reply(Paused(message="generation goes on"))


async def _set_pause(gateway: Gateway, mode: PauseMode | None) -> None:
    try:
        async with asyncio.timeout(PAUSE_TIMEOUT_S + STATS_TIMEOUT_S):
            await gateway.client.pause_generation(mode)
    except TimeoutError:
        reason = "not all schedulers have answered; what was asked for holds when they go on"
        raise RingError(reason) from None


# ---- profiles: what the scheduler did between two calls, from its counters ---------------------


@route("/start_profile", methods=("GET", "POST"), answer=ProfileStarted, access=ADMIN)
async def start_profile(request: HttpRequest) -> ASGIApp:
    """Remember the scheduler's counters; a second call starts again."""
    gateway = gateway_of(request)
    gateway.profile = await _counters(gateway)
    return json_reply(ProfileStarted())


@route("/stop_profile", methods=("GET", "POST"), answer=Profile, access=ADMIN)
async def stop_profile(request: HttpRequest) -> ASGIApp:
    """What the counters have gained since the start; 409 without one."""
    gateway = gateway_of(request)
    before, gateway.profile = gateway.profile, None
    if before is None:
        raise RequestError("no profile has been started", code=CONFLICT)
    after = await _counters(gateway)
    gained = {name: value - before.counters.get(name, 0) for name, value in after.counters.items()}
    if any(value < 0 for value in gained.values()):
        raise RequestError("the scheduler was restarted since the start", code=CONFLICT)
    return json_reply(Profile(seconds=after.at - before.at, gained=gained))


async def _counters(gateway: Gateway) -> ProfileStart:
    stats: dict[str, Any] | None = await stats_or_none(gateway.client)
    if stats is None:
        raise RingError("the scheduler did not answer")
    counters = {name: value for name, value in stats.items() if name.endswith(_COUNTER)}
    return ProfileStart(time.monotonic(), counters)
