"""For whom the gateway asks: its callers share one client of the ring, but not one turn.

`Tenants` is the client that handlers get. It writes the caller of the HTTP request that is being
handled into each request: by its API key where the server has keys, else by its address.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from srt.generation import (
    Client,
    Generation,
    Request,
    ScoreOutput,
    ScoreRequest,
    TokenizeRequest,
)
from srt.messages import RingEvent

_tenant: ContextVar[str] = ContextVar("tenant", default="")


def set_tenant(name: str) -> None:
    """What the HTTP request of this task, and of those that it starts, is handled for."""
    _tenant.set(name)


def tenant() -> str:
    """What `set_tenant` has said."""
    return _tenant.get()


class Tenants:
    """A `srt.generation.Client` that names the caller; all else is `client`'s."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def ring(self) -> RingEvent | None:
        return self._client.ring

    async def submit(self, request: Request) -> Generation:
        return await self._client.submit(replace(request, tenant=_tenant.get()))

    async def submit_samples(self, request: Request) -> Sequence[Generation]:
        return await self._client.submit_samples(replace(request, tenant=_tenant.get()))

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        return await self._client.tokenize(replace(request, tenant=_tenant.get()))

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        return await self._client.score(replace(request, tenant=_tenant.get()))

    async def abort(self, rid: str) -> None:
        await self._client.abort(rid)

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        await self._client.flush_cache(timeout_s)

    async def stats(self) -> dict[str, Any]:
        return await self._client.stats()
