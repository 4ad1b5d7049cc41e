"""Which connection has a place, and which one loses it."""

import random

import pytest

from srt.gateway.http import places
from srt.gateway.http.places import Places


class Peer:
    """A connection of the host `peer`."""

    def __init__(self, peer: str = "") -> None:
        self.peer = peer
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


def test_the_host_with_most_loses_its_longest_idle() -> None:
    taken, mine = Places(6), Peer("b")
    assert taken.enter(mine)  # and it stays idle, as with a body that trickles in
    theirs = [Peer("a") for _ in range(5)]
    assert all(map(taken.enter, theirs))
    taken.works(theirs[0])
    others = [Peer("c"), Peer("c")]
    assert all(map(taken.enter, others))
    assert [peer.closed for peer in theirs] == [False, True, True, False, False]
    assert taken.enter(Peer("a")) and theirs[3].closed  # it has most: its own
    assert not mine.closed and not any(peer.closed for peer in others)


def test_hosts_at_work_do_not_close_the_idle_ones_of_others() -> None:
    taken, mine = Places(4), Peer("b")
    theirs = [Peer("a") for _ in range(4)]
    assert taken.enter(mine) and all(map(taken.enter, theirs[:3]))
    for peer in theirs:
        taken.works(peer)
    assert not taken.enter(theirs[3]) and not mine.closed


def test_a_crowd_of_idle_hosts_lets_in_the_next_one() -> None:
    """As one host with as many idle connections does. Those with more do not profit."""
    taken, crowd = Places(4), [Peer(peer) for peer in "abcd"]
    assert all(map(taken.enter, crowd))
    taken.works(crowd[0])
    assert taken.enter(Peer("e"))
    assert [peer.closed for peer in crowd] == [False, True, False, False]
    assert not taken.enter(Peer("a")) and not any(peer.closed for peer in crowd[2:])


@pytest.mark.parametrize("seed", range(10))
def test_hosts_with_idle_connections_shut_out_nobody(seed: int) -> None:
    """Not even by always making new ones."""
    rng = random.Random(seed)
    taken, hosts = Places(20), ["a", "b", "c", "d"][: rng.randint(2, 4)]
    mine: list[Peer] = []
    for number in range(400):
        taken.enter(Peer(rng.choice(hosts)))
        if number % 100 == 50:
            mine.append(Peer("mine"))
            assert taken.enter(mine[-1])
    assert not any(peer.closed for peer in mine)


def test_any_traffic_keeps_to_the_bound() -> None:
    rng = random.Random(0)
    taken, alive = Places(5), list[Peer]()
    for _ in range(5000):
        peer = rng.choice(alive) if alive else Peer()
        match rng.randrange(4):
            case 0:
                alive.append(Peer(rng.choice("abc")))
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
