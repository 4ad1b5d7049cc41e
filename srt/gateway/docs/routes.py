"""GET /docs and /openapi.json: the routes, their bodies and their answers.

Both are open, since a browser's address bar has no API key.
"""

import asyncio
from functools import cache
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.docs.page import page
from srt.gateway.http.auth import PUBLIC
from srt.gateway.http.openapi import openapi_document
from srt.gateway.http.routing import get, json_reply
from srt.gateway.routes import HANDLERS

# The page has no scripts, and loads nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@get("/docs", access=PUBLIC)
async def docs(request: HttpRequest) -> ASGIApp:
    """The routes with their bodies and answers, as a page."""
    headers = {"content-security-policy": _POLICY}
    html = await asyncio.to_thread(_page, *_facts(request))  # at first it takes a fifth of a second
    return Response(html, media_type="text/html", headers=headers)


@get(["/openapi.json", "/docs/openapi.json"], access=PUBLIC)
async def openapi(request: HttpRequest) -> ASGIApp:
    """The same as an OpenAPI document."""
    return json_reply(_document(*_facts(request)))


def _facts(request: HttpRequest) -> tuple[str, bool, bool]:
    info = gateway_of(request).info
    return info.version, bool(info.api_keys), info.unknown_fields != "refuse"


@cache
def _page(version: str, has_keys: bool, takes_others: bool) -> bytes:
    return page(_document(version, has_keys, takes_others)).encode()


@cache
def _document(version: str, has_keys: bool, takes_others: bool) -> dict[str, Any]:
    return openapi_document(HANDLERS, version, has_keys=has_keys, takes_others=takes_others)
