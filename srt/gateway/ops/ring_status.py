"""The ring as the gateway sees it: its last event, and its statistics within a time limit."""

import asyncio
from typing import Any

from srt.client.generation import Client
from srt.gateway.wire.operations import RingState
from srt.wire.errors import RequestError
from srt.wire.ring_state import RingEvent

STATS_TIMEOUT_S = 1.0


def ring_state(ring: RingEvent | None) -> RingState | None:
    """The last ring event as JSON; None before the first one."""
    if ring is None:
        return None
    return RingState(
        ready=ring.ready,
        draining=ring.draining,
        epoch=ring.epoch,
        parts=ring.parts,
        reason=ring.reason,
        incarnation=ring.incarnation,
        incarnations=ring.incarnations,
    )


def is_ready(ring: RingEvent | None) -> bool:
    """Whether new requests can be served."""
    return ring is not None and ring.ready and not ring.draining


async def stats_or_none(client: Client) -> dict[str, Any] | None:
    """The scheduler's statistics, or None if it does not answer within STATS_TIMEOUT_S."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await client.stats()
    except (TimeoutError, RequestError):
        return None
