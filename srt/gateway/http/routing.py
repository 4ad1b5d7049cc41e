"""Routes, their JSON responses, and the application that finds them.

Starlette brings requests, responses and CORS. A route is found here: by two look-ups, where
Starlette's router would try a pattern for each of more than fifty routes.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from srt.gateway.context import IGNORED, RENAMED, Gateway, HttpRequest
from srt.gateway.errors import METHOD_NOT_ALLOWED, ErrorBody, failure
from srt.gateway.http.auth import PUBLIC, Access, require_key
from srt.gateway.http.foreign import ForeignPages, get_with_effect, may_act
from srt.gateway.http.ignored import IgnoredNames
from srt.gateway.limits.tenant import set_wishes
from srt.gateway.wire.fields import NO_EXTRAS, Kind
from srt.wire.errors import NOT_FOUND, RequestError, RingError

Handler = Callable[[HttpRequest], Awaitable[ASGIApp]]
_NAME = "{name}"
_SLASHES = re.compile("/{2,}")
JSON = "application/json"
_encode = msgspec.json.Encoder().encode


class Route(Struct, frozen=True, eq=False):
    """A function with what it answers. `{name}` at a path's end is any rest, slashes included;
    `access` says who may call.

    The rest is for the documentation: the types that the route reads and writes, which msgspec
    knows. `kind` are the further fields of the body, `events` those of a stream; `query` are
    optional parameters of the URL, and `error` is the body of errors.
    """

    fn: Handler
    paths: Sequence[str]
    methods: Collection[str]
    body: Any = None
    answer: Any = None
    kind: Kind = NO_EXTRAS
    events: Any = None
    media_type: str = JSON
    query: dict[str, Any] = {}
    access: Access = "key"
    error: Any = ErrorBody


def route(
    path: str | list[str],
    body: Any = None,
    answer: Any = None,
    *,
    methods: Collection[str],
    **options: Any,
) -> Callable[[Handler], Route]:
    """A decorator that makes a route of a function; `options` are further fields of `Route`."""
    paths = [path] if isinstance(path, str) else path
    return lambda fn: Route(fn, paths, methods, body, answer, **options)


def routes_of(*modules: ModuleType) -> list[Route]:
    """The routes that `modules` define, in their order."""
    found = (value for module in modules for value in vars(module).values())
    return [value for value in found if isinstance(value, Route)]


get = partial(route, methods=("GET",))  # and HEAD, which `checking_heads` makes a GET
post = partial(route, methods=("POST",))
put = partial(route, methods=("PUT",))
delete = partial(route, methods=("DELETE",))


def name_of(request: HttpRequest) -> str:
    """What stands for `{name}` in the path of a request."""
    return str(request.path_params["name"])


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ASGIApp:
    """`value` as a JSON response."""
    return Response(_encode(value), status, headers, JSON)


class Application:
    """The ASGI application of `routes` over `gateway`. Repeated slashes of a path, and those at its
    end, mean nothing. OPTIONS is answered with a route's methods."""

    def __init__(self, gateway: Gateway, routes: Sequence[Route]) -> None:
        self.gateway = gateway
        self._pages = ForeignPages(gateway.info.allowed_hosts, gateway.info.cors_origins)
        self._ignored = IgnoredNames()
        self._at: dict[str, dict[str, Route]] = {}
        self._below: dict[str, dict[str, Route]] = {}  # by what is in front of the name
        for each in routes:
            for path in each.paths:
                table = self._below if path.endswith(_NAME) else self._at
                methods = table.setdefault(path.removesuffix(_NAME), {})
                methods.update(dict.fromkeys(each.methods, each))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        try:
            answer = await self._answer(HttpRequest(scope, receive))
        except Exception as exc:
            if isinstance(exc, RequestError) and RENAMED in scope:
                exc = exc.renamed(scope[RENAMED])
            answer = failure(exc, scope=scope)
        except asyncio.CancelledError:  # at the end of its grace period, or of the server's drain
            stopped = RingError("the server has stopped before the answer was complete")
            await failure(stopped, scope=scope)(scope, receive, send)
            raise
        if scope.get(IGNORED):
            send = self._ignored.telling(scope[IGNORED], send)
        await answer(scope, receive, send)

    async def _answer(self, request: HttpRequest) -> ASGIApp:
        path = request.scope["path"] or "/"
        if "//" in path or path.endswith("/"):
            path = _SLASHES.sub("/", path).rstrip("/") or "/"
        methods = self._methods(path, request.scope)
        found = methods.get(request.method)
        if self.gateway.keys.is_open:
            is_public = found is not None and found.access == PUBLIC
            self._pages.check(request.scope, path, is_public=is_public)
            # GET of a route that POST calls too has an effect.
            if found is not None and "POST" in found.methods and not may_act(request.scope):
                return failure(get_with_effect(path), {"allow": "OPTIONS, POST"}, request.scope)
        if not methods:
            raise RequestError("Not Found", code=NOT_FOUND)
        if found is None:
            allowed = {"allow": ", ".join(sorted([*methods, "OPTIONS"]))}
            if request.method != "OPTIONS":
                refused = RequestError("Method Not Allowed", code=METHOD_NOT_ALLOWED)
                return failure(refused, allowed, request.scope)
            await require_key(request, "key")
            return Response(status_code=204, headers=allowed)
        await require_key(request, found.access)
        set_wishes(request.headers)
        return await found.fn(request)

    def _methods(self, path: str, scope: Scope) -> dict[str, Route]:
        """The routes of a request's path, by method."""
        if path in self._at:
            return self._at[path]
        for start, methods in self._below.items():
            if path.startswith(start):
                scope["path_params"] = {"name": path.removeprefix(start)}
                return methods
        return {}
