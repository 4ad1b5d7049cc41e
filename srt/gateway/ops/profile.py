"""GET /start_profile and /stop_profile: what the scheduler did in between, from its counters."""

import time
from typing import Any

from starlette.types import ASGIApp

from srt.gateway.context import Gateway, HttpRequest, ProfileStart, gateway_of
from srt.gateway.http.auth import ADMIN
from srt.gateway.http.openapi import documented
from srt.gateway.http.routing import json_reply, route
from srt.gateway.ops.ring_status import stats_or_none
from srt.gateway.wire.operations import Profile, ProfileStarted
from srt.wire.errors import CONFLICT, RequestError, RingError

_COUNTER = "_total"  # endings of the names of counters, which only grow


@route(
    "/start_profile",
    methods=("GET", "POST"),
    opt=ADMIN | documented(answer=ProfileStarted),
)
async def start_profile(request: HttpRequest) -> ASGIApp:
    """Remember the scheduler's counters; a second call starts again."""
    gateway = gateway_of(request)
    gateway.profile = await _counters(gateway)
    return json_reply(ProfileStarted())


@route(
    "/stop_profile",
    methods=("GET", "POST"),
    opt=ADMIN | documented(answer=Profile),
)
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


ROUTES = [start_profile, stop_profile]
