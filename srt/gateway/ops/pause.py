"""POST /pause_generation and /continue_generation: no generation while somebody works on what the
server serves. Running requests are aborted; new ones are refused as while the server starts.
"""

from litestar import post
from litestar.types import ASGIApp

from srt.gateway.context import HttpRequest, abort_all, gateway_of
from srt.gateway.http.auth import ADMIN
from srt.gateway.http.body import read_body
from srt.gateway.http.openapi import documented
from srt.gateway.http.reply import json_reply
from srt.gateway.wire.operations import PAUSE_KIND, Paused, PauseRequest


@post(
    "/pause_generation", status_code=200, opt=ADMIN | documented(PauseRequest, PAUSE_KIND, Paused)
)
async def pause_generation(request: HttpRequest) -> ASGIApp:
    """Abort all that came through this gateway, and refuse requests to generate."""
    await _check_body(request)
    gateway = gateway_of(request)
    gateway.is_paused = True
    await abort_all(gateway)
    return json_reply(Paused(message="generation is paused"))


@post(
    "/continue_generation",
    status_code=200,
    opt=ADMIN | documented(PauseRequest, PAUSE_KIND, Paused),
)
async def continue_generation(request: HttpRequest) -> ASGIApp:
    """Take requests again."""
    await _check_body(request)
    gateway_of(request).is_paused = False
    return json_reply(Paused(message="generation goes on"))


async def _check_body(request: HttpRequest) -> None:
    """It may be missing."""
    if "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0":
        await read_body(request, PauseRequest, PAUSE_KIND)


ROUTES = [pause_generation, continue_generation]
