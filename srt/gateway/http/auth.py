"""Checks the API key, `Authorization: Bearer KEY`, on every route that is not marked public, and
notes the request's caller. Routes marked for admins need an admin's key."""

from srt.gateway.callers.keys import Caller
from srt.gateway.callers.tenant import check_admin, set_caller
from srt.gateway.context import HttpRequest, gateway_of
from srt.wire.errors import UNAUTHORIZED, RequestError

PUBLIC = {"public": True}
ADMIN = {"admin": True}
_SCHEME = "bearer "


async def require_key(request: HttpRequest) -> None:
    """Raise RequestError (401, 403) unless the request carries a key of the server that opens
    the route."""
    address, opt = request.client.host if request.client else "", request.route_handler.opt
    if opt.get("public"):
        set_caller(Caller(address, is_admin=False))
        return
    header = request.headers.get("authorization", "")
    given = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else ""
    caller = gateway_of(request).keys.caller(given, address)
    if caller is None:
        raise RequestError("a valid API key is required", code=UNAUTHORIZED)
    set_caller(caller)
    if opt.get("admin"):
        check_admin("this route")
