"""One side of a connection: long messages in pieces, bounds, silence."""

import random
from collections import deque
from typing import Any

import pytest

from srt.cluster import link as module
from srt.cluster.link import PIECE_BYTES, Link, LinkLost
from srt.cluster.protocol import (
    AgentMessage,
    Carry,
    HubMessage,
    Long,
    Piece,
    Ping,
    Pong,
    Way,
)


class Pair:
    """A hub's side and an agent's; what they send lies in `to_hub` and `to_agent`."""

    def __init__(self) -> None:
        self.to_hub: deque[tuple[bytes, ...]] = deque()
        self.to_agent: deque[tuple[bytes, ...]] = deque()
        self.hub = Link(self._adder(self.to_agent), AgentMessage)
        self.agent = Link(self._adder(self.to_hub), HubMessage)

    def _adder(self, queue: deque[tuple[bytes, ...]]) -> Any:
        def add(*frames: bytes) -> bool:
            queue.append(frames)
            return True

        return add

    def at_agent(self) -> list[tuple[Any, list[bytes]]]:
        """What comes out of the agent's side."""
        taken = [self.agent.take(self.to_agent.popleft()) for _ in range(len(self.to_agent))]
        return [(each[0], [*map(bytes, each[1])]) for each in taken if each is not None]


def test_messages_of_any_length_come_as_they_were() -> None:
    rng, pair = random.Random(0), Pair()
    lengths = (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7)
    sent = []
    for place in range(12):
        frames = [rng.randbytes(rng.choice(lengths)) for _ in range(rng.randrange(4))]
        sent.append((Carry(Way.SCHEDULER, place), frames))
        pair.hub.send(*sent[-1])
        pair.hub.ping()
    assert all(sum(map(len, frames)) <= PIECE_BYTES + 16 for frames in pair.to_agent)
    assert pair.at_agent() == sent


def test_what_the_other_side_has_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 10_000)
    pair, message = Pair(), (Carry(Way.EVENTS), [bytes(4000)])
    pair.hub.send(*message)
    pair.hub.send(*message)
    pair.at_agent()
    pair.agent.ping()  # says what has been read
    assert pair.hub.take(pair.to_hub.pop()) is None
    pair.hub.send(*message)
    pair.hub.send(*message)
    with pytest.raises(LinkLost, match="has not read"):
        pair.hub.send(*message)


def test_silence_is_a_loss_but_not_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("srt.cluster.link.time.monotonic", lambda: now)
    pair = Pair()
    now += 3.5
    pair.hub.excuse(2.0)
    pair.hub.ping()
    now += 2.0
    with pytest.raises(LinkLost, match="nothing was heard"):
        pair.hub.ping()
    pair.agent.take(pair.to_agent.popleft())
    assert isinstance(pair.hub.take(pair.to_hub.popleft()), tuple)  # the Pong is for its clock
    pair.hub.ping()


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"\xc1" * 40,),
        (module._encode(Piece()), b"x"),
        (module._encode(Long([2**40])),),
        (module._encode(Long([-1, 5])),),
        (module._encode(Long([])),),
    ],
)
def test_what_is_no_message_ends_the_connection(frames: tuple[bytes, ...]) -> None:
    with pytest.raises(LinkLost):
        Pair().hub.take(frames)


def test_a_piece_beyond_its_message_ends_the_connection() -> None:
    pair = Pair()
    pair.hub.take((module._encode(Long([3, 2])),))
    with pytest.raises(LinkLost):
        pair.hub.take((module._encode(Piece()), b"123456"))


def test_a_ping_is_answered_with_both_times() -> None:
    pair = Pair()
    pair.agent.send(Ping(1.5, 0))
    pair.hub.take(pair.to_hub.popleft())
    ((pong, _),) = pair.at_agent()
    assert isinstance(pong, Pong) and pong.sent_s == 1.5 and pong.now_s > 0


def test_who_claims_to_have_read_more_than_was_sent_is_bounded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 1000)
    pair = Pair()
    pair.hub.take((module._encode(Ping(0.0, 2**60)),))
    with pytest.raises(LinkLost, match="has not read"):
        for _ in range(20):
            pair.hub.send(Carry(Way.SCHEDULER, 1), [bytes(100)])
