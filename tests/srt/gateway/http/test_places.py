"""Which connection has a place, and which one loses it."""

import random

import pytest

from srt.gateway.http import places
from srt.gateway.http.places import Places


class Peer:
    def __init__(self) -> None:
        self.closed = False

    def close_idle(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MIN_IDLE_S", 0.0)
    monkeypatch.setattr(places, "PROBE_PLACES", 2)


def test_the_longest_idle_one_is_closed() -> None:
    first, second, third, fourth = peers = [Peer() for _ in range(4)]
    taken = Places(2)
    assert taken.enter(first) and taken.enter(second)
    taken.works(first)
    taken.waits(first)
    taken.waits(first)
    assert taken.enter(third) and second.closed
    taken.waits(second)  # it is closed, so this does nothing
    assert taken.enter(fourth) and first.closed
    assert [peer.closed for peer in peers] == [True, True, False, False]


def test_those_at_work_stay() -> None:
    working, probe, later, last = [Peer() for _ in range(4)]
    taken = Places(1)
    assert taken.enter(working)
    taken.works(working)
    assert not taken.enter(probe) and not taken.enter(later)
    taken.works(later)
    assert not taken.enter(last) and probe.closed and not later.closed
    taken.leave(working)
    assert taken.enter(Peer())


def test_a_young_connection_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MIN_IDLE_S", 60.0)
    first = Peer()
    taken = Places(1)
    assert taken.enter(first) and not taken.enter(Peer()) and not first.closed


def test_any_traffic_keeps_to_the_bound() -> None:
    rng = random.Random(0)
    taken, alive = Places(5), list[Peer]()
    for _ in range(5000):
        peer = rng.choice(alive) if alive else Peer()
        match rng.randrange(4):
            case 0:
                alive.append(Peer())
                taken.enter(alive[-1])
            case 1:
                taken.works(peer)
            case 2:
                taken.waits(peer)
            case _:
                taken.leave(peer)
                peer.closed = True
        alive = [peer for peer in alive if not peer.closed]
        assert len(alive) <= 5 + 2 + 1
