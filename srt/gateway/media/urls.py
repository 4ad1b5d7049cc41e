"""The addresses of pictures and videos: `data:` URLs, base64, and http(s) URLs.

What a file is, its contents decide: types in `data:` URLs are not looked at. Nothing here echoes an
address: it may be the file itself, or have a secret in it.
"""

import binascii
import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from srt.wire.errors import RequestError
from srt.wire.media import BASE64_BLANKS
from srt.wire.media import MAX_FILE_BYTES as MAX_FILE_BYTES

# Of base64 in lines of 76, as mail has it, with its data: in front; a video of pictures has commas
# between these.
MAX_TEXT_CHARS = (MAX_FILE_BYTES + 2) // 3 * 4 * 78 // 76 + 2048
SLICE_CHARS = 64 * 1024  # decoded at once; a multiple of 4
MAX_URL_CHARS = 8192
PORTS = {"http": 80, "https": 443}

_DATA = re.compile(r"data:[^,]{0,1024};base64,", re.IGNORECASE | re.ASCII)
_ANY_DATA = re.compile("data:", re.IGNORECASE | re.ASCII)
_WEB = re.compile(r"https?://", re.IGNORECASE | re.ASCII)
# Visible ASCII; no user names, no backslashes or blanks in the host, no brackets.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:[/?][!-~]*)?)",
    re.IGNORECASE | re.ASCII,
)
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")


class WebAddress(NamedTuple):
    """Where to fetch a file. `target` is what a request line has."""

    scheme: str
    host: str
    port: int
    target: str


def is_web(url: str) -> bool:
    """Whether it is an http(s) URL."""
    return _WEB.match(url) is not None


def web_address(url: str, domains: tuple[str, ...]) -> WebAddress:
    """An http(s) URL that may be fetched: its host is one of `domains`, its port 80 or 443. Raises
    RequestError for the field ""."""
    url = url.partition("#")[0] if len(url) <= MAX_URL_CHARS else ""
    found = _URL.fullmatch(url)
    if found is None:
        raise RequestError(" is no http(s) URL that can be fetched", at="")
    scheme, host = found["scheme"].lower(), found["host"].lower().rstrip(".")
    if host not in domains:
        allowed = "this host" if domains else "any host"
        reason = f": the server does not fetch from {allowed} (--media-domain); send a data: URL"
        raise RequestError(reason, at="")
    port = int(found["port"] or PORTS[scheme])
    if port not in PORTS.values():
        raise RequestError(" must have port 80 or 443", at="")
    path = found["path"]
    return WebAddress(scheme, host, port, path if path.startswith("/") else f"/{path}")


def base64_start(url: str, *, bare: bool) -> int:
    """Where the base64 of a `data:` URL begins; 0 in a text without `data:`, if `bare` is allowed.
    Raises RequestError for the field ""."""
    head = _DATA.match(url)
    if head is None and (_ANY_DATA.match(url) or not bare):
        what = "a data: URL with ;base64, or an http(s) URL"
        raise RequestError(f" must be {what}", at="")
    start = 0 if head is None else head.end()
    if len(url) > MAX_TEXT_CHARS:
        raise RequestError(f" has more than {MAX_FILE_BYTES} bytes", at="")
    if len(url) == start:
        raise RequestError(" has no contents", at="")
    return start


def decoded(text: str, start: int, end: int) -> Iterator[bytes]:
    """The bytes of the base64 in a part of `text`, slice by slice, without its blanks. Raises
    RequestError for the field ""."""
    rest = ""
    for at in range(start, end, SLICE_CHARS):
        piece = rest + text[at : min(at + SLICE_CHARS, end)].translate(BASE64_BLANKS)
        # What is padded is the end: only blanks may follow, so it stays in the rest.
        size = len(piece) - 1 if piece.endswith("=") else len(piece)
        piece, rest = piece[: size // 4 * 4], piece[size // 4 * 4 :]
        if piece.endswith("="):
            raise _not_base64(start)
        yield _decoded(piece, start)
    # What is not strict in binascii's strict mode: too much padding.
    if len(rest) % 4 or rest.endswith("==="):
        raise _not_base64(start)
    yield _decoded(rest, start)


def _decoded(piece: str, start: int) -> bytes:
    try:
        return binascii.a2b_base64(piece, strict_mode=True)
    except ValueError:  # binascii.Error, and characters beyond ASCII
        raise _not_base64(start) from None


def _not_base64(start: int) -> RequestError:
    other = "" if start else ", nor a data: or http(s) URL"  # it may be a path
    return RequestError(f" is not valid base64{other}", at="")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet. Addresses that stand for others count
    as these."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            return ip in _UNICAST and ip.is_global and ip.teredo is None
        ip = inner
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)
