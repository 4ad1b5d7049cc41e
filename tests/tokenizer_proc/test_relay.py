"""The relay: each scheduler gets every request that has not ended, once, with what was reported."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from srt.wire.messages import pack_ids
from srt.wire.ring_messages import (
    Abort,
    Control,
    GrammarMade,
    Progress,
    Reported,
    SchedulerLost,
    TokenizedReq,
)
from srt.wire.sampling import SamplingParams
from tokenizer_proc.relay import Relay

A, B = b"a", b"b"


def part(rid: str, client: bytes = A, seed: int | None = None) -> TokenizedReq:
    sampling = SamplingParams(max_new_tokens=5, seed=seed)
    return TokenizedReq(client, rid, 0, pack_ids([1, 2]), sampling)


def opened(incarnation: int = 1, random_seed: int = -1) -> Relay:
    relay = Relay(incarnation, random_seed)
    assert relay.hear(incarnation, is_ready=True)
    return relay


def names(relay: Relay) -> list[str]:
    return [message.rid for message in relay.take() if isinstance(message, TokenizedReq)]


def test_requests_wait_for_the_first_scheduler() -> None:
    relay = Relay(1)
    relay.send([part("1")], now=1.0)
    relay.tell(Control(A, "c", 0, "stats"))
    assert relay.take() == []
    assert relay.hear(1, is_ready=True) and not relay.hear(1, is_ready=True)
    request, control = relay.take()
    assert isinstance(request, TokenizedReq) and request.incarnation == 1
    assert control == Control(A, "c", 1, "stats")


def test_seeds_are_given_once_and_kept() -> None:
    relay = opened(random_seed=3)
    relay.send([part("1"), part("2", seed=8)], now=0.0)
    first, second = relay.take()
    assert isinstance(first, TokenizedReq) and isinstance(second, TokenizedReq)
    assert first.sampling.seed is not None and second.sampling.seed == 8
    relay.lose(2)
    relay.settle(SchedulerLost(2))
    relay.hear(2, is_ready=True)
    again = relay.take()[0]
    assert isinstance(again, TokenizedReq) and again.sampling == first.sampling
    other = opened(random_seed=3)
    other.send([part("1")], now=0.0)
    assert other.take()[0] == first


def test_the_next_scheduler_gets_what_was_reported() -> None:
    relay = opened()
    relay.send([part("begun"), part("not begun"), part("ended")], now=7.0)
    assert len(relay.take()) == 3
    relay.credit((A, "ended"))
    assert relay.lose(2) and not relay.lose(2)
    relay.send([part("new")], now=8.0)
    assert not relay.hear(2, is_ready=True)  # what was reported is not known yet
    reported = Reported(pack_ids([5]), forced=True)
    assert not relay.settle(SchedulerLost(2, [Progress(A, "begun", reported)], more=True))
    assert relay.settle(SchedulerLost(2))
    begun, not_begun, new = relay.take()
    assert isinstance(begun, TokenizedReq) and isinstance(not_begun, TokenizedReq)
    assert (begun.rid, begun.reported, begun.arrival_s) == ("begun", reported, 7.0)
    waited = (not_begun.rid, not_begun.reported, not_begun.arrival_s)
    assert waited == ("not begun", None, 7.0)
    assert isinstance(new, TokenizedReq) and new.incarnation == 2


def test_the_detokenizer_may_hear_of_a_loss_first() -> None:
    relay = opened()
    relay.send([part("1")], now=0.0)
    relay.take()
    assert relay.lose(3)
    assert not relay.settle(SchedulerLost(3)) and not relay.lose(3)
    assert not relay.hear(2, is_ready=True) and relay.take() == []
    assert relay.hear(3, is_ready=True) and names(relay) == ["1"]


def test_aborts_reach_the_scheduler_or_the_next_one() -> None:
    relay = opened()
    relay.send([part("1"), part("2")], now=0.0)
    relay.take()
    relay.abort(A, "1")
    relay.abort(A, "unknown")
    assert relay.take() == [Abort(A, "1", 1)]
    relay.lose(2)
    relay.abort(A, "2")
    assert relay.take() == []
    relay.settle(SchedulerLost(2, [Progress(A, "2", Reported(pack_ids([4])))]))
    relay.hear(2, is_ready=True)
    first, second = relay.take()
    assert isinstance(first, TokenizedReq) and first.reported == Reported(aborted=True)
    assert isinstance(second, TokenizedReq)
    assert second.reported == Reported(pack_ids([4]), aborted=True)


def test_a_client_that_has_gone() -> None:
    relay = opened()
    relay.send([part("sent"), part("other", B)], now=0.0)
    relay.take()
    relay.drop_client(A)
    assert relay.take() == [Abort(A, "sent", 1)] and relay.take_ended() == []
    relay.send([part("late")], now=0.0)
    assert relay.take() == [] and relay.take_ended() == [(A, "late")]
    relay.lose(2)
    relay.settle(SchedulerLost(2))
    relay.hear(2, is_ready=True)
    assert names(relay) == ["other"] and relay.take_ended() == [(A, "sent")]
    relay.lose(3)
    relay.drop_client(B)
    assert relay.take_ended() == [(B, "other")] and relay.requests == []


def test_what_is_no_request_is_lost_with_the_scheduler() -> None:
    relay = opened()
    relay.tell(GrammarMade("key", 0))
    relay.lose(2)
    assert relay.take() == []
    relay.tell(Control(A, "c", 0, "stats"))
    relay.settle(SchedulerLost(2))
    relay.hear(2, is_ready=True)
    assert relay.take() == [Control(A, "c", 2, "stats")]


@given(st.integers(0, 10_000))
def test_random_losses(seed: int) -> None:
    """A model: which requests live, and what was reported of them."""
    rng = random.Random(seed)
    relay, incarnation, is_ready, settled = opened(), 1, True, 1
    live: dict[str, Reported | None] = {}
    got: set[tuple[int, str]] = set()
    for turn in range(60):
        action = rng.choice(["send", "credit", "abort", "lose", "settle", "ready", "reset"])
        rid = rng.choice([*live, "none"])
        if action == "send":
            relay.send([part(f"r{turn}")], now=float(turn))
            live[f"r{turn}"] = None
        elif action == "credit":
            relay.credit((A, rid))
            live.pop(rid, None)
        elif action == "abort" and rid in live:
            relay.abort(A, rid)
            live[rid] = replace(live[rid] or Reported(), aborted=True)
        elif action == "lose":
            incarnation, is_ready = incarnation + rng.randint(1, 2), False
            assert relay.lose(incarnation)
        elif action == "settle" and settled < incarnation:
            settled, progress = incarnation, []
            for each, known in live.items():
                if rng.random() < 0.5:
                    ids = pack_ids([turn])
                    progress.append(Progress(A, each, Reported(ids)))
                    live[each] = Reported(ids, aborted=known is not None and known.aborted)
            relay.settle(SchedulerLost(incarnation, progress))
        elif action == "ready":
            is_ready = True
            relay.hear(incarnation, is_ready=True)
        elif action == "reset" and rng.random() < 0.1:
            incarnation = settled = incarnation + 1
            relay.reset(incarnation)
            live.clear()
        sent = [message for message in relay.take() if isinstance(message, TokenizedReq)]
        assert not sent or (is_ready and settled == incarnation)
        for message in sent:
            assert (incarnation, message.rid) not in got and message.incarnation == incarnation
            got.add((incarnation, message.rid))
            assert message.reported == live[message.rid]
        if is_ready and settled == incarnation:
            assert {(incarnation, each) for each in live} <= got
        assert [req.rid for req in relay.requests] == list(live)
