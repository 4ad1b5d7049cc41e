"""Bounds what is large of all clients together: memory, and turns of the loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

from srt.callers.shares import Shares
from srt.wire.errors import OVERLOADED, RequestError

LARGE_BYTES = 64 * 1024  # bodies up to this size always find room
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_CALLER_BYTES = 64 * 1024 * 1024


class LargeBodies:
    """The bytes of large bodies, or of something else that is large, that are held at once: at most
    `max_held`, and `max_caller` of one caller. Without room, the newest one that still arrives, of
    the caller that holds most, gives way. `turn` is held for each piece that is decoded, so that
    many large ones delay others no more than one; `what` names them in refusals."""

    def __init__(
        self,
        max_held: int = MAX_HELD_BYTES,
        max_caller: int = MAX_CALLER_BYTES,
        what: str = "large bodies",
    ) -> None:
        self.turn = asyncio.Lock()
        self._what = what
        self._shares: Shares[str, Room] = Shares(
            max_held, max_caller, give_way=Room.give_way, order=_newest_that_may
        )

    def room(self, caller: str) -> "Room":
        """What one request of `caller` takes in a `with` block, at whose end all is given back."""
        return Room(self._shares, caller, self._what)


class Room:
    """The room that one request takes. It may give way while it has `on_give_way`, which is called
    then; from then on it has no room."""

    def __init__(self, shares: "Shares[str, Room]", caller: str, what: str) -> None:
        self._shares, self._caller, self._what = shares, caller, what
        self._gave_way = False
        self.on_give_way: Callable[[], object] | None = None

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *exc: object) -> None:
        self._shares.give_back(self)

    def take(self, size: int) -> None:
        """Room for `size` more bytes. Raises RequestError (429) if there is none."""
        if self._gave_way:
            raise self._error()
        whose = self._shares.take(self._caller, self, size)
        if whose:
            by = " of this caller" if whose == "caller" else ""
            reason = f"too many {self._what}{by} arrive at once"
            raise RequestError(reason, code=OVERLOADED, retryable=True)

    def give_back(self, size: int) -> None:
        """Give back some of it before the end."""
        self._shares.give_back(self, size)

    def give_way(self) -> None:
        """Another caller has the room now."""
        self._gave_way = True
        if self.on_give_way is not None:
            self.on_give_way()

    @asynccontextmanager
    async def giving_way(self) -> AsyncIterator[None]:
        """A block that ends with RequestError (429) when the room is given to another caller."""
        loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)
        self.on_give_way = lambda: scope.reschedule(loop.time())
        try:
            async with scope:
                yield
        except TimeoutError:
            if not self._gave_way:
                raise
            raise self._error() from None
        finally:
            self.on_give_way = None

    def _error(self) -> RequestError:
        reason = (
            f"the request made room for another caller's: of all callers this one had the most "
            f"{self._what} arriving"
        )
        return RequestError(reason, code=OVERLOADED, retryable=True)


def _newest_that_may(rooms: Collection[Room]) -> Iterable[Room]:
    return [room for room in reversed(list(rooms)) if room.on_give_way is not None]
