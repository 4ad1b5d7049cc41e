"""Room for large bodies: bounded for all, and for each caller; who has most gives way."""

import asyncio
import random
from contextlib import ExitStack

import pytest

from srt.gateway.limits.large_bodies import LargeBodies, Room
from srt.wire.errors import OVERLOADED, RequestError
from tests.running.profiles import seeds
from tests.waiting import SOON_S


def test_bounds() -> None:
    large = LargeBodies(100, 60)
    with large.room("a") as first:
        first.take(50)
        with large.room("a") as second, large.room("b") as others:
            for room, size, reason in (
                (second, 11, "of this caller"),
                (others, 51, "bodies arrive"),
            ):
                with pytest.raises(RequestError, match=reason) as caught:
                    room.take(size)
                assert (caught.value.info.code, caught.value.info.retryable) == (OVERLOADED, True)
            others.take(50)
            first.give_back(50)
            others.take(10)
            second.take(40)
        with large.room("c") as third:
            third.take(60)  # those of the two were given back


class Body:
    """A body that arrives until it is told to end."""

    def __init__(self, large: LargeBodies, caller: str, size: int) -> None:
        self._room, self._size = large.room(caller), size
        self.go_on = asyncio.Event()
        self.task = asyncio.ensure_future(self._arrive())

    async def _arrive(self) -> str:
        with self._room:
            async with self._room.giving_way():
                self._room.take(self._size)
                await self.go_on.wait()
            await asyncio.sleep(0)
            return "read"

    async def reason(self) -> str:
        async with asyncio.timeout(SOON_S):
            try:
                return await self.task
            except RequestError as error:
                assert (error.info.code, error.info.retryable) == (OVERLOADED, True)
                return error.info.message


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_newest_of_who_has_most_gives_way() -> None:
    large = LargeBodies(100, 60)
    bodies = [Body(large, caller, 30) for caller in ("a", "b", "a")]
    await turn()
    late = Body(large, "c", 30)
    assert "made room for another caller's" in await bodies[2].reason()
    refused = Body(large, "d", 40)  # as much as nobody else has
    assert "too many large bodies arrive" in await refused.reason()
    for body in (*bodies[:2], late):
        body.go_on.set()
        assert await body.reason() == "read"


async def test_one_that_has_arrived_stays() -> None:
    large = LargeBodies(100, 60)
    with ExitStack() as held:
        rooms: list[Room] = [held.enter_context(large.room(caller)) for caller in "aab"]
        for room in rooms:
            async with room.giving_way():
                room.take(30)
        with large.room("c") as late, pytest.raises(RequestError, match="arrive at once"):
            late.take(20)
        gone: list[int] = []
        rooms[0].on_give_way = lambda: gone.append(0)
        with large.room("c") as late:
            late.take(20)
        assert gone == [0]
        with pytest.raises(RequestError, match="made room for another"):
            rooms[0].take(1)


@pytest.mark.parametrize("seeds_of", seeds(3))
async def test_nobody_is_shut_out(seeds_of: int) -> None:
    for seed in range(20 * seeds_of, 20 * (seeds_of + 1)):
        await _fill_and_send(seed)


async def _fill_and_send(seed: int) -> None:
    """Two to four callers begin bodies that never end; another one's arrive all the same."""
    rng = random.Random(seed)
    large = LargeBodies(1000, rng.choice((250, 500)))
    callers = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    theirs = []
    for _ in range(rng.choice((10, 60))):
        theirs.append(Body(large, rng.choice(callers), rng.randint(1, 250)))
        await turn()
        if rng.random() < 0.1:
            rng.choice(theirs).go_on.set()
    mine = [Body(large, "mine", size) for size in (80, 80, 40)]
    await turn()
    for body in mine:
        assert not body.task.done()
        body.go_on.set()
        assert await body.reason() == "read"
    for body in theirs:
        body.go_on.set()
        assert await body.reason()
