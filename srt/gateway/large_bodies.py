"""Bounds what large bodies of all clients take together: memory, and turns of the loop."""

import asyncio
from collections import Counter

from srt.wire.errors import OVERLOADED, RequestError

LARGE_BYTES = 64 * 1024  # bodies up to this size always find room
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_TENANT_BYTES = 64 * 1024 * 1024  # so that no tenant keeps out all others


class LargeBodies:
    """The bytes of large bodies that are held while they arrive and are decoded. `turn` is held
    for each piece that is decoded, so that many large bodies delay others no more than one."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._held: Counter[str] = Counter()  # bytes, by tenant

    def take(self, size: int, tenant: str) -> None:
        """Room for `size` more bytes. Raises RequestError (429) if there is none."""
        held = self._held[tenant] + size
        if held > MAX_TENANT_BYTES or self._held.total() + size > MAX_HELD_BYTES:
            reason = "too many large bodies arrive at once"
            raise RequestError(reason, code=OVERLOADED, retryable=True)
        self._held[tenant] = held

    def give_back(self, size: int, tenant: str) -> None:
        """Give back room that was taken."""
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]
