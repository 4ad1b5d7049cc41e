"""Refuses what web pages of others send to a server without API keys, where everybody is an admin.

A browser sends requests for any page to any server that its machine reaches, and adds no key by
itself, so that a server with keys needs none of this. What gives a page away is what browsers send
with its requests and pages cannot change:

* `Host` has the name by which the page has found the server. A page whose own name is made to
  resolve to the server's address (DNS rebinding) is of the server's origin for the browser, but it
  needs a name for that: addresses, names of this machine and names that the owner allows are taken.
* `Origin` and `Sec-Fetch-Site` say that a request is of another origin's page. Browsers send the
  former with all but plain GETs. Chromium and Firefox send the latter with nearly every request to
  HTTPS and to loopback addresses.
* Without a preflight, a page can send bodies of a form's types only, so bodies of pages are JSON.
* Plain GETs to other addresses have neither: those that have an effect are not for browsers.

`Application` calls `ForeignPages.check` for each request, before its route.
"""

import ipaddress
import logging
import re
import socket
import time
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from srt.gateway.errors import METHOD_NOT_ALLOWED, UNSUPPORTED_MEDIA_TYPE
from srt.wire.errors import FORBIDDEN, RequestError, quoted

log = logging.getLogger(__name__)

PATHS_OF_ANY_HOST = frozenset({"/health", "/ready"})  # probes may have names of their own
LOG_INTERVAL_S = 60.0
MAX_HOST_BYTES = 300  # of the longest name, and a port
MAX_KEPT = 1024  # decisions about hosts, and about origins
_LABEL = "[A-Za-z0-9_-]+"
_HOST = re.compile(
    rf"(?P<name>\[[^\[\]/@]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::(?P<port>[0-9]{{0,5}}))?"
)
_PORTS = {"http": "80", "https": "443"}
_OWN_SITES = (None, b"same-origin", b"none")  # none: the user has entered the address
_FETCH_METADATA = {b"sec-fetch-%s" % what for what in (b"site", b"mode", b"dest", b"user")}
_WITHOUT_KEYS = "on a server without API keys"


class ForeignPages:
    """The rules of one server. `allowed_hosts` are further names that it is called by, and
    `origins` those whose pages may use it; `*` is any."""

    def __init__(self, allowed_hosts: Collection[str], origins: Collection[str]) -> None:
        machine = socket.gethostname().lower()
        self._names = {"localhost", machine, machine.partition(".")[0]}
        self._names.update(name.lower().removesuffix(".") for name in allowed_hosts)
        self._origins = {origin.encode() for origin in origins}
        self._is_own = lru_cache(MAX_KEPT)(self._is_own_host)
        self._told: dict[str, tuple[float, int]] = {}  # by field: when, and how often until now

    def check(self, scope: Any, path: str, *, is_public: bool) -> None:
        """Raise RequestError (403, 415) for a request that a page of another origin has sent, or
        may have. Its `path` is without repeated slashes; `is_public`: its route shows what
        everybody may see."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and path not in PATHS_OF_ANY_HOST and not self._allows_host(host):
            name = quoted(host.decode("latin-1"))
            self._refuse(
                scope,
                "Host",
                f"Host {name} is no name of this server, which has no API keys: call it by an IP "
                "address, localhost or its machine's name, or add the name to --allowed-hosts",
            )
        if origin is None and not _is_fetched(headers):
            return
        if self._is_foreign(headers) and not (is_public and _is_visit(scope["method"], headers)):
            whose = "another origin" if origin is None else quoted(origin.decode("latin-1"))
            which = "is *: the request does not say which" if origin is None else "names it"
            self._refuse(
                scope,
                "Origin",
                f"web pages of {whose} may not use this server, which has no API keys, unless "
                f"--cors-allow-origins {which}",
            )
        kind = headers.get(b"content-type", b"").decode("latin-1")
        if _has_body(headers) and kind.partition(";")[0].strip().lower() != "application/json":
            reason = (
                f"Content-Type {quoted(kind)} is not application/json, which {_WITHOUT_KEYS} the "
                "body of a request with Origin or Sec-Fetch headers must be"
            )
            raise RequestError(reason, code=UNSUPPORTED_MEDIA_TYPE)

    def _allows_host(self, host: bytes) -> bool:
        return "*" in self._names or (len(host) <= MAX_HOST_BYTES and self._is_own(host))

    def _is_own_host(self, host: bytes) -> bool:
        found = _HOST.fullmatch(host.decode("latin-1"))
        if found is None:
            return False
        name = found["name"].lower().removesuffix(".")
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def _is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page of an origin that may not use this server has sent these headers."""
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if b"*" in self._origins or origin in self._origins:
            return False
        site = headers.get(b"sec-fetch-site")
        # What a page has fetched before the user follows a link counts as the user's own visit.
        if site not in _OWN_SITES or (site == b"none" and b"sec-purpose" in headers):
            return True
        is_short = len(host) <= MAX_HOST_BYTES and len(origin or b"") <= MAX_HOST_BYTES
        return origin is not None and not (is_short and _is_same(origin, host))

    def _refuse(self, scope: Any, field: str, reason: str) -> None:
        """Raise the refusal by a header field; the log has one of each field in a minute."""
        now = time.monotonic()
        told_at, count = self._told.get(field, (-LOG_INTERVAL_S, 0))
        if now - told_at >= LOG_INTERVAL_S:
            told_at = now
            peer = (scope.get("client") or ("an unknown peer",))[0]
            log.warning("refused a request from %s: %s (%d so far)", peer, reason, count + 1)
        self._told[field] = told_at, count + 1
        raise RequestError(reason, code=FORBIDDEN)


def may_act(scope: Any) -> bool:
    """Whether a request may have an effect by its method and sender: not a GET of a browser, which
    any page makes it send."""
    if scope["method"] != "GET":
        return True
    headers: dict[bytes, bytes] = dict(scope["headers"])
    is_browser = headers.get(b"user-agent", b"").startswith(b"Mozilla/") or _is_fetched(headers)
    return not is_browser and b"origin" not in headers and b"referer" not in headers


def get_with_effect(path: str) -> RequestError:
    """The refusal (405) of a GET that may not act."""
    reason = (
        f"{path} has an effect: {_WITHOUT_KEYS} a request with Origin, Referer or Sec-Fetch "
        "headers, or with the User-Agent of a browser, must be a POST"
    )
    return RequestError(reason, code=METHOD_NOT_ALLOWED)


@lru_cache(MAX_KEPT)
def _is_same(origin: bytes, host: bytes) -> bool:
    """Whether `origin` has this host and port. A port that is left out is that of the origin's
    scheme: which one a client has spoken to a proxy is not known here."""
    scheme, _, rest = origin.decode("latin-1").partition("://")
    ours, theirs = _HOST.fullmatch(host.decode("latin-1")), _HOST.fullmatch(rest)
    if scheme not in _PORTS or ours is None or theirs is None:
        return False
    (name, port), (other, other_port) = (
        (found["name"].lower().removesuffix("."), found["port"] or _PORTS[scheme])
        for found in (ours, theirs)
    )
    return name == other and int(port) == int(other_port)


def _is_address(name: str) -> bool:
    """Whether `name` is an IP address as a Host has it: one of version 6 in brackets."""
    try:
        if name[0] == "[":
            ipaddress.IPv6Address(name[1:-1])
        else:
            ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def _is_visit(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a user follows a link to what is shown as a page by itself, in no frame: the page
    with the link cannot read it."""
    return (
        method == "GET"
        and headers.get(b"origin") is None
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _is_fetched(headers: dict[bytes, bytes]) -> bool:
    """Whether there are fetch metadata: those of browsers, and of fetch() in Node.js."""
    return not _FETCH_METADATA.isdisjoint(headers)


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
