"""The page at /, its files, and what it watches: events, and the texts of the tree's nodes."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.http.auth import PUBLIC, WATCH
from srt.gateway.http.body import read_body
from srt.gateway.http.routing import get, json_reply, name_of, post
from srt.gateway.http.sse import EventStream
from srt.gateway.wire.operations import EdgeText
from srt.gateway.wire.runs import RunReports, RunTaken
from srt.wire.errors import NOT_FOUND, RequestError

MAX_CHARS = 4096  # of a node's text
# The page loads nothing from elsewhere, runs what is served here, and is part of no other page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # A link in an answer would otherwise have its name looked up before anybody follows it.
    "x-dns-prefetch-control": "off",
    "cache-control": "no-cache",
}
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_ROOT = Path(__file__).parent / "static"


class Asset(NamedTuple):
    """A file, with the quoted tag by which a browser knows that its copy is the same."""

    body: bytes
    media_type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """All files by their path below `static`, read once."""
    found = {}
    for path in sorted(_ROOT.rglob("*")):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[path.relative_to(_ROOT).as_posix()] = Asset(body, _TYPES[path.suffix], tag)
    return found


@get("/", access=PUBLIC)
async def index(request: HttpRequest) -> ASGIApp:
    """The page."""
    return _file(request, assets()["index.html"])


@get("/ui/{name}", access=PUBLIC)
async def file(request: HttpRequest) -> ASGIApp:
    """One of its files."""
    found = assets().get(name_of(request))
    if found is None:
        raise RequestError("there is no such file of the page", code=NOT_FOUND)
    return _file(request, found)


def _file(request: HttpRequest, found: Asset) -> ASGIApp:
    headers = _HEADERS | {"etag": found.tag}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers, media_type=found.media_type)
    return Response(found.body, media_type=found.media_type, headers=headers)


@get("/ui/events", access=WATCH)
async def events(request: HttpRequest) -> ASGIApp:
    """Server-sent events for the page: trees, queues, numbers and runs of programs."""
    page = gateway_of(request).feed.open()
    return EventStream(page.events(), page, frames=lambda frames: frames)


@get("/ui/text", answer=EdgeText, query={"replica": int, "node": int}, access=WATCH)
async def text(request: HttpRequest) -> ASGIApp:
    """The text of a node of the radix tree that has been shown; 404 if it has been evicted."""
    replica, node = _number(request, "replica"), _number(request, "node")
    gateway = gateway_of(request)
    ring = gateway.client.ring
    if ring is None or replica >= len(ring.incarnations):
        raise RequestError(" is none of this server's", at="replica")
    ids, tokens = await gateway.client.edge(replica, node)
    if not ids:
        raise RequestError("there is no such node any more", code=NOT_FOUND)
    whole = gateway.vocab.decode(ids, False)
    cut = len(ids) < tokens or len(whole) > MAX_CHARS
    return json_reply(EdgeText(text=whole[:MAX_CHARS], tokens=tokens, cut=cut))


@post("/ui/runs", RunReports, RunTaken, access=WATCH)
async def runs(request: HttpRequest) -> ASGIApp:
    """Show steps of programs' runs on the page; `lang` posts them where SGL_TRACE is set."""
    body = await read_body(request, RunReports)
    kept, count = gateway_of(request).feed.runs, 0
    for about in msgspec.to_builtins(body.runs):
        steps = about.pop("steps")
        kept.add(about, steps)
        count += len(steps)
    return json_reply(RunTaken(steps=count))


def _number(request: HttpRequest, name: str) -> int:
    given = request.query_params.get(name, "0")
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise RequestError(" must be a number", at=name)
    return int(given)
