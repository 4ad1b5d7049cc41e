"""Liveness, readiness and metrics. /health and /ready are open and never ask the scheduler."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from srt.client.generation import Client, Request
from srt.gateway.context import Gateway, HttpRequest, gateway_of
from srt.gateway.errors import RETRY_AFTER
from srt.gateway.http.auth import ADMIN, PUBLIC
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import get, json_reply
from srt.gateway.wire.operations import Generated, Health, Ready, RingState
from srt.wire.errors import BAD_REQUEST, OVERLOADED, RequestError, RingError
from srt.wire.ring_state import RingEvent
from srt.wire.sampling import SamplingParams

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GENERATE_TIMEOUT_S = 20.0
OVERLOAD_WATCH_S = 1.0
STATS_TIMEOUT_S = 1.0
_TEXT = "a"
_ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@get("/health", answer=Health, access=PUBLIC)
async def health(request: HttpRequest) -> ASGIApp:
    """200 as long as this process runs, once requests could be taken; 503 before. The body has
    the ring's state."""
    gateway = gateway_of(request)
    ring = gateway.client.ring
    gateway.was_ready |= ring is not None and ring.ready
    if gateway.was_ready:
        return json_reply(Health(ring=ring_state(ring)))
    return json_reply(Health(ring=ring_state(ring), status="starting"), 503, RETRY_AFTER)


@get("/ready", answer=Ready, access=PUBLIC)
async def ready(request: HttpRequest) -> ASGIApp:
    """200 when requests will be served, 503 while starting, broken, draining, or held up by a part
    of which nothing is heard."""
    gateway = gateway_of(request)
    ring = gateway.client.ring
    if is_ready(ring):
        gateway.was_ready = True
        return json_reply(Ready(ready=True, ring=ring_state(ring)))
    return json_reply(Ready(ready=False, ring=ring_state(ring)), 503, RETRY_AFTER)


@get("/health_generate", answer=Generated)
async def health_generate(request: HttpRequest) -> ASGIApp:
    """200 when the model generates: a token for this request, or, under load, for others; in a
    pause, nothing."""
    generated = await while_connected(request.receive, _generated(gateway_of(request)))
    return json_reply(generated)


async def _generated(gateway: Gateway) -> Generated:
    """The evidence that the model works. RingError if there is none within GENERATE_TIMEOUT_S,
    unless generation is paused: whoever restarts what fails here would end the pause."""
    started = time.monotonic()
    before = await stats_or_none(gateway.client)
    if _is_paused(before):
        return Generated(evidence="paused", seconds=time.monotonic() - started)
    try:
        async with asyncio.timeout(GENERATE_TIMEOUT_S):
            await _one_token(gateway.client)
        return Generated(evidence="token", seconds=time.monotonic() - started)
    except TimeoutError:
        reason = f"no token came within {GENERATE_TIMEOUT_S:g} s"
    except RequestError as exc:
        if exc.info.code != OVERLOADED:
            raise RingError(exc.info.message) from exc
        reason = exc.info.message
        await asyncio.sleep(OVERLOAD_WATCH_S)
    after = await stats_or_none(gateway.client)
    if _is_paused(after):
        return Generated(evidence="paused", seconds=time.monotonic() - started)
    if before is not None and after is not None and _steps(after) > _steps(before):
        return Generated(evidence="steps", seconds=time.monotonic() - started)
    raise RingError(reason)


async def _one_token(client: Client) -> None:
    """Generate a token in a namespace of its own: the cache keeps a few tokens of it. The prompt is
    a text, which readers have to read; ids if the model's tokenizer makes no tokens of it."""
    rid = f"health-{uuid.uuid4().hex}"
    request = Request(text=_TEXT, sampling=_ONE_TOKEN, rid=rid, cache_salt="health")
    try:
        generation = await client.submit(request)
    except RequestError as error:
        if error.info.code != BAD_REQUEST:
            raise
        generation = await client.submit(msgspec.structs.replace(request, text=None, input_ids=[0]))
    async with aclosing(generation):
        await generation.result()


def _steps(stats: Mapping[str, Any]) -> float:
    """The forward passes so far."""
    return float(stats.get("forward_steps_total", 0))


def _is_paused(stats: Mapping[str, Any] | None) -> bool:
    return stats is not None and bool(stats.get("generation_paused", 0))


@get("/metrics", answer=str, media_type=METRICS_MEDIA_TYPE, access=ADMIN)
async def metrics(request: HttpRequest) -> ASGIApp:
    """Prometheus text; `srt_up` is 0 when the scheduler did not answer."""
    gateway = gateway_of(request)
    stats, ring = await stats_or_none(gateway.client), gateway.client.ring
    text = gateway.metrics.render(stats, ring, await _program_counts(gateway))
    return Response(text, media_type=METRICS_MEDIA_TYPE)


async def _program_counts(gateway: Gateway) -> dict[str, float] | None:
    """None when the part that runs programs does not answer."""
    try:
        return None if gateway.programs is None else await gateway.programs.program_counts()
    except RequestError:
        return None


# ---- the ring, as the gateway sees it ----------------------------------------------------------


def ring_state(ring: RingEvent | None) -> RingState | None:
    """The last ring event as JSON; None before the first one."""
    return None if ring is None else msgspec.convert(ring, RingState, from_attributes=True)


def is_ready(ring: RingEvent | None) -> bool:
    """Whether new requests can be served now."""
    if ring is None or ring.draining or ring.stands_still:
        return False
    return ring.ready and not ring.is_empty


async def stats_or_none(client: Client) -> dict[str, Any] | None:
    """The scheduler's statistics, or None if it does not answer within STATS_TIMEOUT_S."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await client.stats()
    except (TimeoutError, RequestError):
        return None
