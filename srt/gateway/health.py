"""Liveness, readiness and metrics. The first two are open and never ask the scheduler."""

from litestar import get
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from srt.gateway.auth import PUBLIC
from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.errors import RETRY_AFTER
from srt.gateway.reply import json_reply
from srt.gateway.ring_state import is_ready, ring_state, stats_or_none

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@get("/health", opt=PUBLIC)
async def health(request: HttpRequest) -> ASGIApp:
    """200 as long as this process runs; the body tells the ring's state."""
    return json_reply({"status": "ok", "ring": ring_state(gateway_of(request).client.ring)})


@get("/ready", opt=PUBLIC)
async def ready(request: HttpRequest) -> ASGIApp:
    """200 when requests will be taken, 503 while starting, broken or draining."""
    ring = gateway_of(request).client.ring
    if is_ready(ring):
        return json_reply({"ready": True, "ring": ring_state(ring)})
    return json_reply({"ready": False, "ring": ring_state(ring)}, 503, RETRY_AFTER)


@get("/metrics")
async def metrics(request: HttpRequest) -> ASGIApp:
    """Prometheus text; `srt_up` is 0 when the scheduler did not answer."""
    gateway = gateway_of(request)
    text = gateway.metrics.render(await stats_or_none(gateway.client))
    return ASGIResponse(body=text, media_type=METRICS_MEDIA_TYPE)


ROUTES = [health, ready, metrics]
