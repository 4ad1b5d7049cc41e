"""The caller of each request: callers share the gateway's one client of the ring, but not one turn,
nor request ids, nor, if they have keys, the prefix cache.

`Tenants` is the client that handlers get. It writes the caller of the HTTP request that is being
handled into each request: by its API key where the server has keys, else by its address.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec.structs import replace

from srt.client.generation import (
    Generation,
    Request,
    ScoreOutput,
    ScoreRequest,
    ServerClient,
    TokenizeRequest,
)
from srt.gateway.limits.keys import Caller
from srt.wire.errors import FORBIDDEN, RequestError
from srt.wire.pause import PauseMode
from srt.wire.ring_state import RingEvent

MAX_SALT_CHARS = 256
Name = tuple[str, str]  # the tenant, and the rid that it gave

_EVERYBODY = Caller()
_caller: ContextVar[Caller] = ContextVar("caller", default=_EVERYBODY)
PREFIX_HEADER = "x-return-prefix"
_returns_prefix: ContextVar[bool] = ContextVar("returns_prefix", default=False)
_T = TypeVar("_T", Request, ScoreRequest)


def set_caller(caller: Caller) -> None:
    """Set the caller of the HTTP request that this task, and those it starts, work for."""
    _caller.set(caller)


def set_wishes(headers: Mapping[str, str]) -> None:
    """Take over what the HTTP request's headers ask of its answer."""
    _returns_prefix.set(headers.get(PREFIX_HEADER, "").lower() in ("1", "true"))


def tenant() -> str:
    """The name of the caller."""
    return _caller.get().tenant


def is_admin() -> bool:
    """Whether the caller may affect others' requests."""
    return _caller.get().is_admin


def check_admin(what: str) -> None:
    """Raise RequestError (403) unless the caller is an admin."""
    if not is_admin():
        raise RequestError(f"{what} needs an admin's API key (--admin-api-key)", code=FORBIDDEN)


class Tenants:
    """A `srt.client.generation.ServerClient` that names the caller; all else is `client`'s."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    @property
    def ring(self) -> RingEvent | None:
        return self._client.ring

    async def submit(self, request: Request) -> Generation:
        return await self._client.submit(_wished(_named(request)))

    async def submit_samples(self, request: Request) -> Sequence[Generation]:
        return await self._client.submit_samples(_wished(_named(request)))

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        return await self._client.tokenize(replace(request, tenant=tenant()))

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        return await self._client.score(_named(request))

    async def abort(self, rid: str, tenant: str = "") -> None:
        await self._client.abort(rid, tenant)

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        await self._client.flush_cache(timeout_s)

    async def pause_generation(self, mode: PauseMode | None) -> None:
        await self._client.pause_generation(mode)

    async def stats(self) -> dict[str, Any]:
        return await self._client.stats()

    async def look(self) -> list[dict[str, Any]]:
        return await self._client.look()

    async def edge(self, replica: int, node: int) -> tuple[list[int], int]:
        return await self._client.edge(replica, node)


def _named(request: _T) -> _T:
    """`request` with the caller's name, and with the caller's part of the cache."""
    return replace(request, tenant=tenant(), cache_salt=own_salt(request.cache_salt))


def _wished(request: Request) -> Request:
    """`request` with what the headers ask for. Only who has an admin's key is told what others have
    written: without keys, everybody would be."""
    caller, given = _caller.get(), request.sampling
    returns = given.return_prefix or _returns_prefix.get()
    reveals = returns and caller.is_admin and caller.has_key
    if (returns, reveals) == (given.return_prefix, given.reveals_prefix):
        return request
    sampling = replace(given, return_prefix=returns, reveals_prefix=reveals)
    return replace(request, sampling=sampling)


def own_salt(salt: str) -> str:
    """The caller's part of the cache, by the salt that it gave. RequestError if that is too
    long."""
    caller = _caller.get()
    if not caller.has_own_cache:
        return salt
    if len(salt) > MAX_SALT_CHARS:
        raise RequestError(f" must have at most {MAX_SALT_CHARS} characters", at="cache_salt")
    return hashlib.sha256(f"{caller.tenant}/{salt}".encode()).hexdigest()
