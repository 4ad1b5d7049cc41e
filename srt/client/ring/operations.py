"""What a client of a ring asks of its schedulers besides requests: operations and snapshots."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from srt.client.ring.link import RingLink
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import ControlReq, ControlResult
from srt.wire.pause import PAUSE_TIMEOUT_S, PauseMode

RETRY_S = 0.05


class RingOperations:
    """Operations through `link`, which the client that has them shares. `rid_of` gives the rid that
    a request of this client, if it is live, has for its user, by its id on the wire."""

    def __init__(self, link: RingLink, rid_of: Callable[[str], str | None]) -> None:
        self._link, self._rid_of = link, rid_of
        self._last_wire_id = 0

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        await self._control("flush_cache", timeout_s)

    async def pause_generation(self, mode: PauseMode | None) -> None:
        op = "continue" if mode is None else "pause"
        left_s, give_up_at = PAUSE_TIMEOUT_S, time.monotonic() + PAUSE_TIMEOUT_S
        while True:
            try:
                await self._control(op, max(1, math.ceil(left_s)), mode=mode or "")
                return
            except RequestError as error:  # such as a restart: it may be asked for twice
                left_s = give_up_at - time.monotonic()
                if not error.info.retryable or left_s <= RETRY_S:
                    raise
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(RingError):  # the next attempt says what is the matter
                await self._link.wait_ready(left_s)
            left_s = give_up_at - time.monotonic()

    async def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = msgspec.json.decode(await self._control("stats"))
        return stats

    async def look(self) -> list[dict[str, Any]]:
        found: dict[str, Any] = msgspec.json.decode(await self._control("look"))
        replicas: list[dict[str, Any]] = found.get("replicas", [{"replica": 0} | found])
        for replica in replicas:
            for shown in (*replica["running"], *replica["waiting"]):
                client, _, wire_id = shown["rid"].partition("/")
                if client == self._link.identity.hex():
                    shown["rid"] = self._rid_of(wire_id) or shown["rid"]
        return replicas

    async def edge(self, replica: int, node: int) -> tuple[list[int], int]:
        found: dict[str, Any] = msgspec.json.decode(await self._control("edge", node=node))
        of_one: dict[str, Any] = found.get("replicas", {0: found})[replica]
        return of_one["ids"], of_one["tokens"]

    async def _control(
        self, op: str, timeout_s: float = 0.0, *, node: int = 0, mode: str = ""
    ) -> bytes:
        await self._link.until_usable()
        req = ControlReq(self._next_wire_id(), self._link.epoch, op, timeout_s, node, mode)
        result: ControlResult = await self._link.ask(req)
        return result.data

    def _next_wire_id(self) -> str:
        """An id that no earlier request of this client had."""
        self._last_wire_id += 1
        return str(self._last_wire_id)
