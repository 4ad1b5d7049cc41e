"""Checks the API key: `Authorization: Bearer KEY`, on every route that is not marked public.

Keys are compared in constant time and never logged.
"""

import hmac

from srt.errors import UNAUTHORIZED, RequestError
from srt.gateway.context import HttpRequest, gateway_of

PUBLIC = {"public": True}
_SCHEME = "bearer "


async def require_key(request: HttpRequest) -> None:
    """Raise RequestError (401) unless the request carries the server's key."""
    key = gateway_of(request).info.api_key
    if key is None or request.route_handler.opt.get("public"):
        return
    header = request.headers.get("authorization", "")
    given = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else ""
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode()):
        raise RequestError("a valid API key is required", code=UNAUTHORIZED)
