"""What a part of the ring sends to its supervisor."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import srt.ring.actor
from srt.args import ServerArgs
from srt.ring.actor import Actor
from srt.ring.places import Ring
from srt.wire.messages import RingMessage
from srt.wire.ring_state import CompilerFacts


async def test_a_beat_is_told_when_it_is_new_and_now_and_then_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a beat is lost, a repetition without news makes up for it."""
    told: list[RingMessage] = []

    def send_now(to: None, beat: RingMessage) -> bool:
        told.append(beat)
        return True

    monkeypatch.setattr(srt.ring.actor, "send_now", send_now)
    monkeypatch.setattr(Ring, "read_args", lambda _: ServerArgs())
    actor = Actor(Ring(tmp_path), 1, [1])
    monkeypatch.setattr(srt.ring.actor, "HEARTBEAT_INTERVAL_S", 0)
    supervisor: Any = None  # only send_now uses it
    beating = asyncio.ensure_future(actor._beat(supervisor))
    for _ in range(actor._beats_to_a_repeat):
        await asyncio.sleep(0)
    assert len(told) == 1
    actor.facts = CompilerFacts(is_warm=True)
    await asyncio.sleep(0)
    assert len(told) == 2
    for _ in range(actor._beats_to_a_repeat):
        await asyncio.sleep(0)
    assert len(told) == 3 and told[2] == told[1] != told[0]
    beating.cancel()
    actor.context.destroy()
