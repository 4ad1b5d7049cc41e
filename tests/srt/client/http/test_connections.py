"""Connections of one request each: they are used again, and come back however a request ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import pytest

from srt.client.http.client import HttpClient
from srt.client.http.connections import MAX_IDLE, HttpConnections
from srt.wire.errors import ConfigError


class Held(httpx2.AsyncBaseTransport):
    """Answers once `may_end` is set; counts."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.live = self.most = 0
        self.closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert not self.closed
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await self.world.may_end.wait()
            if request.url.path == "/fails":
                raise httpx2.ConnectError("no")
        finally:
            self.live -= 1

        async def body() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        return httpx2.Response(200, content=body())

    async def aclose(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.made: list[Held] = []
        self.connections = HttpConnections(self._make)

    def _make(self) -> Held:
        self.made.append(Held(self))
        return self.made[-1]


async def test_each_request_has_its_own_and_some_are_kept() -> None:
    world = World()
    count = MAX_IDLE + 4
    async with httpx2.AsyncClient(base_url="http://x", transport=world.connections) as http:
        asked = [asyncio.ensure_future(http.get("/")) for _ in range(count)]
        await asyncio.sleep(0.01)
        assert len(world.made) == count
        world.may_end.set()
        answers = await asyncio.gather(*asked)
        assert {answer.text for answer in answers} == {"ab"}
        assert max(each.most for each in world.made) == 1
        assert sum(each.closed for each in world.made) == 4
        await asyncio.gather(*(http.get("/") for _ in range(MAX_IDLE)))
        assert len(world.made) == count
    assert all(each.closed for each in world.made)


async def test_failures_and_bodies_that_are_left_give_theirs_back() -> None:
    world = World()
    world.may_end.set()
    async with httpx2.AsyncClient(base_url="http://x", transport=world.connections) as http:
        for _ in range(3):
            with pytest.raises(httpx2.ConnectError):
                await http.get("/fails")
            async with http.stream("GET", "/") as response:
                async for _ in response.aiter_raw():
                    break
        world.may_end.clear()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(http.get("/"), 0.001)
    assert len(world.made) == 1


async def test_a_close_ends_those_in_use() -> None:
    world = World()
    world.may_end.set()
    http = httpx2.AsyncClient(base_url="http://x", transport=world.connections)
    async with http.stream("GET", "/"):
        await http.aclose()
        assert world.made[0].closed
    async with httpx2.AsyncClient(base_url="http://x", transport=world.connections) as other:
        await other.get("/")  # by a connection of its own
    assert len(world.made) == 2


def test_a_transport_of_another_library_is_refused_by_name() -> None:
    class Foreign:
        """Stands for httpx's, which programs used to give."""

    with pytest.raises(ConfigError, match=r"transport must be one of httpx2's.*Foreign"):
        HttpClient("http://x", transport=cast(Any, Foreign()))
