"""Bounds what is large of all clients together: memory, and turns of the loop."""

import asyncio
from collections import Counter

from srt.wire.errors import OVERLOADED, RequestError

LARGE_BYTES = 64 * 1024  # bodies up to this size always find room
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_TENANT_BYTES = 64 * 1024 * 1024  # so that no tenant keeps out all others


class LargeBodies:
    """The bytes of large bodies, or of something else that is large, that are held at once: at most
    `max_held`, and `max_tenant` of one tenant. `turn` is held for each piece that is decoded, so
    that many large ones delay others no more than one; `what` names them in refusals."""

    def __init__(
        self,
        max_held: int = MAX_HELD_BYTES,
        max_tenant: int = MAX_TENANT_BYTES,
        what: str = "large bodies",
    ) -> None:
        self.turn = asyncio.Lock()
        self._max_held, self._max_tenant, self._what = max_held, max_tenant, what
        self._held: Counter[str] = Counter()  # bytes, by tenant

    def take(self, size: int, tenant: str) -> None:
        """Room for `size` more bytes. Raises RequestError (429) if there is none."""
        held = self._held[tenant] + size
        if held > self._max_tenant or self._held.total() + size > self._max_held:
            reason = f"too many {self._what} arrive at once"
            raise RequestError(reason, code=OVERLOADED, retryable=True)
        self._held[tenant] = held

    def give_back(self, size: int, tenant: str) -> None:
        """Give back room that was taken."""
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]

    def room(self, tenant: str) -> "Room":
        """What one request of `tenant` takes in a `with` block, at whose end all is given back."""
        return Room(self, tenant)


class Room:
    """The room that one request has `taken`."""

    def __init__(self, held: LargeBodies, tenant: str) -> None:
        self._all = held
        self._tenant = tenant
        self.taken = 0

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.taken:
            self.give_back(self.taken)

    def take(self, size: int) -> None:
        """Room for `size` more bytes. Raises RequestError (429) if there is none."""
        self._all.take(size, self._tenant)
        self.taken += size

    def give_back(self, size: int) -> None:
        """Give back some of it before the end."""
        self._all.give_back(size, self._tenant)
        self.taken -= size
