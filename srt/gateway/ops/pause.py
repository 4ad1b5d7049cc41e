"""POST /pause_generation and /continue_generation: no generation while somebody works on what the
server serves. Running requests are aborted; new ones are refused as while the server starts.
"""

from starlette.types import ASGIApp

from srt.gateway.context import HttpRequest, abort_all, gateway_of
from srt.gateway.http.auth import ADMIN
from srt.gateway.http.body import read_body
from srt.gateway.http.openapi import documented
from srt.gateway.http.routing import json_reply, post
from srt.gateway.wire.operations import PAUSE_KIND, Paused, PauseRequest


@post("/pause_generation", opt=ADMIN | documented(PauseRequest, PAUSE_KIND, Paused))
async def pause_generation(request: HttpRequest) -> ASGIApp:
    """Abort all that came through this gateway, and refuse requests to generate."""
    await read_body(request, PauseRequest, PAUSE_KIND, empty=PauseRequest())
    gateway = gateway_of(request)
    gateway.is_paused = True
    await abort_all(gateway)
    return json_reply(Paused(message="generation is paused"))


@post(
    "/continue_generation",
    opt=ADMIN | documented(PauseRequest, PAUSE_KIND, Paused),
)
async def continue_generation(request: HttpRequest) -> ASGIApp:
    """Take requests again."""
    await read_body(request, PauseRequest, PAUSE_KIND, empty=PauseRequest())
    gateway_of(request).is_paused = False
    return json_reply(Paused(message="generation goes on"))


ROUTES = [pause_generation, continue_generation]
