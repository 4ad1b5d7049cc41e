"""Checks the API key: `Authorization: Bearer KEY`, on every route that is not marked public, and
notes whom the request is handled for.

Keys are compared in constant time, whichever of them is meant, and never logged.
"""

import hashlib
import hmac

from srt.errors import UNAUTHORIZED, RequestError
from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.tenant import set_tenant

PUBLIC = {"public": True}
_SCHEME = "bearer "
_TENANT_CHARS = 16


async def require_key(request: HttpRequest) -> None:
    """Raise RequestError (401) unless the request carries one of the server's keys."""
    keys = gateway_of(request).info.api_keys
    if not keys or request.route_handler.opt.get("public"):
        set_tenant(request.client.host if request.client else "")
        return
    header = request.headers.get("authorization", "")
    given = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else ""
    if not _is_among(given, keys):
        raise RequestError("a valid API key is required", code=UNAUTHORIZED)
    set_tenant(_digest(given).hex()[:_TENANT_CHARS])


def _is_among(given: str, keys: tuple[str, ...]) -> bool:
    """Digests are compared, which have one length, and all of them."""
    digest = _digest(given)
    return sum(hmac.compare_digest(digest, _digest(key)) for key in keys) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
