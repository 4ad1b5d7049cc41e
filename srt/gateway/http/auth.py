"""Checks the API key, `Authorization: Bearer KEY` or `x-api-key: KEY`, on every route that is not
marked public, and notes the request's caller. Routes marked for admins need an admin's key.

Routes that show what the server does, others' prompts among it, are marked to be watched. They need
an admin's key even where nothing else needs one: a server without such keys has made a key for its
page. They are not for web pages of other origins, whoever's browser shows these.

A request with a wrong key waits before it is refused (see `srt.gateway.limits.failed_keys`). One
without a key does not, nor does one with `Expect`.
"""

import asyncio
from typing import Literal

from srt.callers.names import name_of_address
from srt.gateway.context import Gateway, HttpRequest, gateway_of
from srt.gateway.http.disconnect import while_connected
from srt.gateway.limits.keys import Caller
from srt.gateway.limits.tenant import check_admin, set_caller
from srt.wire.errors import FORBIDDEN, UNAUTHORIZED, RequestError

Access = Literal["key", "public", "admin", "watch"]
PUBLIC: Access = "public"
ADMIN: Access = "admin"
WATCH: Access = "watch"
_SCHEME = "bearer "


async def require_key(request: HttpRequest, access: Access) -> None:
    """Raise RequestError (401, 403, 429) unless the request carries a key of the server that opens
    a route with this access."""
    client = request.scope.get("client")
    address = client[0] if client else ""
    gateway = gateway_of(request)
    if access == PUBLIC:
        set_caller(Caller(name_of_address(address), is_admin=False))
        return
    if gateway.keys.is_open and access != WATCH:
        set_caller(Caller(name_of_address(address)))
        return
    header = request.headers.get("authorization", "")
    is_bearer = header[: len(_SCHEME)].lower() == _SCHEME
    given = header[len(_SCHEME) :] if is_bearer else ""
    given = given or request.headers.get("x-api-key", "")
    if access == WATCH:
        _check_origin(request, gateway)
        if gateway.keys.is_of_page(given):
            set_caller(Caller(name_of_address(address)))
            return
    caller = gateway.keys.caller(given, address)
    if caller is None:
        raise await _refusal(request, given, "a valid API key is required")
    if access == WATCH and gateway.keys.is_open:
        reason = "this needs the key in the address that the server wrote when it was ready"
        raise await _refusal(request, given, reason)
    set_caller(caller)
    if access in (ADMIN, WATCH):
        check_admin("this route")


async def _refusal(request: HttpRequest, given: str, reason: str) -> RequestError:
    """The error (401) for the key `given`, after the delay of the caller's address if there is one.
    Raises RequestError (429) if too many wait already."""
    if given:
        gateway = gateway_of(request)
        gateway.metrics.failed_keys.inc()
        with gateway.failed_keys.delay(request.client.host if request.client else "") as delay_s:
            if "expect" not in request.headers:  # reading would ask the client for its body
                await while_connected(request.receive, asyncio.sleep(delay_s))
    return RequestError(reason, code=UNAUTHORIZED)


def _check_origin(request: HttpRequest, gateway: Gateway) -> None:
    """Raise RequestError (403) for what a page of another origin has asked for. A browser says the
    origin of all but plain reads of a page's own; `*` among the origins that may call is none."""
    origin = request.headers.get("origin")
    is_own = origin is not None and origin.partition("://")[2] == request.headers.get("host")
    if origin is None:
        is_own = request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    if not is_own and origin not in gateway.info.cors_origins:
        raise RequestError("pages of other origins may not watch this server", code=FORBIDDEN)
