"""Finds who sent a request that came through a proxy.

Only the proxies that `--trusted-proxies` names are believed: from any other peer the header is what
the caller has written itself, and means nothing.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from srt.args import Network

HEADER = b"x-forwarded-for"
MAX_PROXIES = 32  # between a caller and the server; entries beyond are not read
_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](?::\d{1,5})?|(?P<v4>[^:]*):\d{1,5}")

Address = IPv4Address | IPv6Address


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


def address_of(text: str) -> Address | None:
    """The address that `text` is, with or without a port; None if it is something else. An IPv4
    address that is written as an IPv6 one (`::ffff:127.0.0.1`) is the IPv4 address."""
    found = _WITH_PORT.fullmatch(text)
    host = text if found is None else found["v6"] or found["v4"] or ""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


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
