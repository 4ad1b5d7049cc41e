"""Checks the API key: `Authorization: Bearer KEY`, on every route that is not marked public.

Keys are compared in constant time, whichever of them is meant, and never logged.
"""

import hashlib
import hmac

from srt.errors import UNAUTHORIZED, RequestError
from srt.gateway.context import HttpRequest, gateway_of

PUBLIC = {"public": True}
_SCHEME = "bearer "


async def require_key(request: HttpRequest) -> None:
    """Raise RequestError (401) unless the request carries one of the server's keys."""
    keys = gateway_of(request).info.api_keys
    if not keys or request.route_handler.opt.get("public"):
        return
    header = request.headers.get("authorization", "")
    given = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else ""
    if not _is_among(given, keys):
        raise RequestError("a valid API key is required", code=UNAUTHORIZED)


def _is_among(given: str, keys: tuple[str, ...]) -> bool:
    """Digests are compared, which have one length, and all of them."""
    digest = _digest(given)
    return sum(hmac.compare_digest(digest, _digest(key)) for key in keys) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
