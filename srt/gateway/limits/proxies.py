"""Finds who sent a request that came through a proxy.

Only the proxies that `--trusted-proxies` names are believed: from any other peer the header is what
the caller has written itself, and means nothing.
"""

from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from srt.args import Network
from srt.callers.names import Address, address_of

HEADER = b"x-forwarded-for"
MAX_PROXIES = 32  # between a caller and the server; entries beyond are not read


def naming_callers(app: ASGIApp, proxies: Sequence[Network]) -> ASGIApp:
    """`app`, for which the client of a request from one of `proxies` is the one that the proxy
    names. It is found for each request, as a proxy sends those of several on one connection."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope["client"]
        if peer is not None and _is_among(address_of(peer[0]), proxies):
            caller = _caller(scope["headers"], proxies)
            scope["client"] = peer if caller is None else (str(caller), 0)
        await app(scope, receive, send)

    return wrapped if proxies else app


def _caller(headers: Iterable[tuple[bytes, bytes]], proxies: Sequence[Network]) -> Address | None:
    """The last entry that is none of `proxies`; None if there is none, or if an entry behind it is
    no address."""
    fields = b",".join(value for name, value in headers if name == HEADER)
    for entry in reversed(fields.rsplit(b",", MAX_PROXIES)[-MAX_PROXIES:]):
        address = address_of(entry.decode("latin-1").strip())
        if not _is_among(address, proxies):
            return address
    return None


def _is_among(address: Address | None, networks: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in networks)
