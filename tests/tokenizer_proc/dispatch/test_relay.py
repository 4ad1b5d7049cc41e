"""The relay: each request that has not ended is at one scheduler, with what was reported of it."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from srt.ring.crash_file import Left, Name, Record
from srt.wire.answer_meta import AnswerMeta
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints
from srt.wire.messages import Admitted, pack_ids
from srt.wire.ring_messages import (
    Abort,
    CacheSnapshotReq,
    Control,
    GrammarMade,
    Progress,
    Reported,
    SchedulerLost,
    SchedulerMessage,
    TokenizedReq,
)
from srt.wire.ring_state import next_incarnation, replica_of
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.dispatch.relay import Relay
from tokenizer_proc.routing.router import Router

A, B = b"a", b"b"
NOTHING = Left()


def part(rid: str, client: bytes = A, seed: int | None = None, grammar: str = "") -> TokenizedReq:
    sampling = FilledParams(max_new_tokens=5, seed=seed)
    return TokenizedReq(client, rid, 0, pack_ids([1, 2]), sampling, grammar=grammar)


class OneRelay(Relay):
    """Of one scheduler, which has incarnation 1 at first."""

    def __init__(self, random_seed: int = -1) -> None:
        super().__init__([1], Placing("model"), random_seed)

    def sends(self, *parts: TokenizedReq, now: float = 0.0) -> None:
        """Requests that have nothing to do with one another."""
        for one in parts:
            self.send(Admission(Admitted(one.rid, 1, AnswerMeta(2)), [one]), now)

    def loses(self, incarnation: int, left: Left = NOTHING) -> list[Name]:
        assert incarnation > self.replicas.incarnations[0]
        guilty = self.lose(incarnation, left)
        assert incarnation == self.replicas.incarnations[0]
        return guilty

    def taken(self) -> list[SchedulerMessage]:
        return [message for _, message in self.replicas.take()]

    def requests_taken(self) -> list[TokenizedReq]:
        return [message for message in self.taken() if isinstance(message, TokenizedReq)]

    def next_one(self, incarnation: int, progress: Sequence[Progress] = ()) -> None:
        """Settle the loss, and have the next scheduler."""
        self.settle(SchedulerLost(incarnation, list(progress)))
        self.hear([incarnation], [0])


def opened(random_seed: int = -1) -> OneRelay:
    relay = OneRelay(random_seed)
    assert relay.hear([1], [0]) == []
    return relay


def test_requests_wait_for_the_first_scheduler() -> None:
    relay = OneRelay()
    relay.sends(part("1"), now=1.0)
    relay.replicas.control(Control(A, "c", 0, "stats"))
    assert relay.replicas.take() == []
    assert [kept.name for kept in relay.hear([1], [0])] == [(A, "1")]
    assert relay.hear([1], [0]) == []
    request, control = relay.taken()
    assert isinstance(request, TokenizedReq) and request.incarnation == 1
    assert control == Control(A, "c", 1, "stats")


def test_seeds_are_given_once_and_kept() -> None:
    relay = opened(random_seed=3)
    relay.sends(part("1"), part("2", seed=8))
    first, second = relay.requests_taken()
    assert first.sampling.seed is not None and second.sampling.seed == 8
    relay.loses(2)
    relay.next_one(2)
    assert relay.requests_taken()[0].sampling == first.sampling
    other = opened(random_seed=3)
    other.sends(part("1"))
    assert other.requests_taken()[0] == first


def test_the_next_scheduler_gets_what_was_reported() -> None:
    relay = opened()
    relay.sends(part("begun"), part("not begun"), part("ended"), now=7.0)
    assert len(relay.replicas.take()) == 3
    relay.credit((A, "ended"))
    relay.loses(2)
    relay.sends(part("new"), now=8.0)
    assert relay.hear([2], [0]) == []  # what was reported is not known yet
    assert relay.replicas.take() == []
    reported = Reported(pack_ids([5]), forced=True)
    assert relay.settle(SchedulerLost(2, [Progress(A, "begun", reported)], more=True)) == []
    assert len(relay.settle(SchedulerLost(2))) == 3
    begun, not_begun, new = relay.requests_taken()
    assert (begun.rid, begun.reported, begun.arrival_s) == ("begun", reported, 7.0)
    waited = (not_begun.rid, not_begun.reported, not_begun.arrival_s)
    assert waited == ("not begun", None, 7.0)
    assert new.incarnation == 2


def test_the_detokenizer_may_hear_of_a_loss_first() -> None:
    relay = opened()
    relay.sends(part("1"))
    relay.replicas.take()
    relay.loses(3)
    assert relay.settle(SchedulerLost(3)) == []
    assert relay.hear([2], [0]) == [] and relay.replicas.take() == []
    assert [kept.req.rid for kept in relay.hear([3], [0])] == ["1"]


def test_aborts_reach_the_scheduler_or_the_next_one() -> None:
    relay = opened()
    relay.sends(part("1"), part("2"))
    relay.replicas.take()
    relay.abort(A, "1")
    relay.abort(A, "unknown")
    assert relay.taken() == [Abort(A, "1", 1)]
    relay.loses(2)
    relay.abort(A, "2")
    assert relay.replicas.take() == []
    relay.next_one(2, [Progress(A, "2", Reported(pack_ids([4])))])
    first, second = relay.requests_taken()
    assert first.reported == Reported(aborted=True)
    assert second.reported == Reported(pack_ids([4]), aborted=True)


def test_a_client_that_has_gone() -> None:
    relay = opened()
    relay.sends(part("sent"), part("other", B))
    relay.replicas.take()
    relay.drop_client(A)
    assert relay.taken() == [Abort(A, "sent", 1)] and relay.take_ended() == []
    relay.sends(part("late"))
    assert relay.replicas.take() == [] and relay.take_ended() == [(A, "late")]
    relay.loses(2)
    relay.next_one(2)
    assert [one.rid for one in relay.requests_taken()] == ["other"]
    assert relay.take_ended() == [(A, "sent")]
    relay.loses(3)
    relay.drop_client(B)
    assert relay.take_ended() == [(B, "other")] and list(relay.requests) == []


def test_what_is_no_request_is_lost_with_the_scheduler() -> None:
    relay = opened()
    relay.replicas.send(GrammarMade("key", 1))
    relay.loses(2)
    relay.replicas.send(GrammarMade("key", 1))
    relay.replicas.control(Control(A, "c", 0, "stats"))
    assert relay.replicas.take() == []
    relay.loses(3)
    relay.next_one(3)
    assert relay.replicas.take() == []
    relay.replicas.control(Control(A, "c", 0, "stats"))
    assert relay.taken() == [Control(A, "c", 3, "stats")]


# ---- who is to blame ---------------------------------------------------------------------------

X, Y, Z = (A, "x"), (A, "y"), (A, "z")
CRASH = "Segmentation fault"


def marks(relay: OneRelay) -> dict[str, str]:
    """How the requests that are sent now are marked."""
    return {
        one.rid: "guilty" if reported.is_guilty else "suspect" if reported.is_suspect else ""
        for one in relay.requests_taken()
        if (reported := one.reported or Reported())
    }


def after(relay: OneRelay, incarnation: int, left: Left) -> dict[str, str]:
    """How requests are marked after a loss."""
    relay.replicas.take()
    relay.loses(incarnation, left)
    relay.next_one(incarnation)
    return marks(relay)


def three() -> OneRelay:
    relay = opened()
    relay.sends(part("x"), part("y"), part("z", grammar="key"))
    return relay


def test_those_of_the_last_step_are_suspects() -> None:
    assert after(three(), 2, Left(Record([X, Y]))) == {"x": "suspect", "y": "suspect", "z": ""}


@pytest.mark.parametrize("is_between", [False, True])
def test_a_crash_in_its_trial_makes_one_guilty(is_between: bool) -> None:
    relay = three()
    after(relay, 2, Left(Record([X, Y])))
    left = Left(Record([X], is_trial=True, is_between=is_between), CRASH)
    assert after(relay, 3, left) == {"x": "guilty", "y": "suspect", "z": ""}
    relay.credit(X)
    left = Left(Record([Y], cleared=[Y]), CRASH)
    assert after(relay, 4, left) == {"y": "suspect", "z": ""}  # its step was the last once more


def test_who_has_passed_is_no_suspect() -> None:
    relay = three()
    after(relay, 2, Left(Record([X, Y])))
    left = Left(Record([X], is_trial=True, cleared=[Y]), CRASH)
    assert after(relay, 3, left) == {"x": "guilty", "y": "", "z": ""}


def test_one_kill_in_a_trial_may_come_from_outside() -> None:
    """A second one in its trial ends it; that of another between them does not count."""
    relay, trial = three(), Left(Record([X], is_trial=True))
    suspects = {"x": "suspect", "y": "suspect", "z": ""}
    assert after(relay, 2, Left(Record([X, Y]))) == suspects
    assert after(relay, 3, Left(Record([X], is_trial=True, is_between=True))) == suspects
    assert after(relay, 4, trial) == suspects
    assert after(relay, 5, Left(Record([Y], is_trial=True))) == suspects
    assert after(relay, 6, trial) == {"x": "guilty", "y": "suspect", "z": ""}


def test_the_note_of_the_thread_that_crashed_tells_who_is_guilty() -> None:
    trial = Record([X], is_trial=True)
    assert after(three(), 2, Left(trial, CRASH, Y)) == {"x": "suspect", "y": "guilty", "z": ""}
    marked = after(three(), 2, Left(trial, CRASH, "key"))
    assert marked == {"x": "suspect", "y": "", "z": "guilty"}


def test_nothing_is_placed_at_one_that_is_silent() -> None:
    """While another is not. Operations go to both."""
    ring = Ring(2, random.Random(1))
    ring.relay.replicas.take()
    ring.relay.hear(ring.incarnations, [0, 1], [0])
    ring.send([*"012345678"], now=0.0)
    for rid in "abcdefgh":
        ring.send([rid], now=0.0)
    assert {replica for replica, _ in ring.relay.replicas.take()} == {1}
    ring.relay.replicas.control(Control(A, "c", 0, "stats"))
    assert {replica for replica, _ in ring.relay.replicas.take()} == {0, 1}
    ring.relay.hear(ring.incarnations, [0, 1], [0, 1])
    ring.send(["last"], now=0.0)
    assert {replica for replica, _ in ring.relay.replicas.take()} == {0}  # which has fewer


def test_a_grammar_stays_guilty_in_its_epoch() -> None:
    relay = three()
    after(relay, 2, Left(Record(), CRASH, "key"))
    relay.sends(part("new", grammar="key"), part("other", grammar="other"))
    assert marks(relay) == {"new": "guilty", "other": ""}
    relay.reset([3])
    relay.hear([3], [0])
    relay.sends(part("new", grammar="key"))
    assert marks(relay) == {"new": ""}


def test_requests_of_a_client_that_has_gone_leave_nothing() -> None:
    relay = opened()
    relay.drop_client(A)
    relay.sends(part("1"), part("2"))
    assert relay.replicas.take() == [] and relay.take_ended() == [(A, "1"), (A, "2")]
    assert not relay._groups


# ---- several replicas --------------------------------------------------------------------------


class Ring:
    """A model of a ring's schedulers, and what each of them has got."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.rng, self.replicas = rng, replicas
        self.incarnations = [replicas + i for i in range(replicas)]
        placing = Placing("model", Router(replicas, seed=1) if replicas > 1 else None)
        self.relay = Relay(self.incarnations, placing)
        self.ready = set(range(replicas))
        self.settled = list(self.incarnations)
        self.live: dict[str, Reported] = {}
        self.where: dict[str, int] = {}  # the incarnation that has it
        self.last: dict[str, int] = {}  # the replica that had it last
        self.got: set[tuple[int, str]] = set()
        self.hear()

    def hear(self) -> None:
        self.relay.hear(self.incarnations, sorted(self.ready))

    def send(self, rids: list[str], now: float) -> None:
        """Requests that belong together."""
        self.relay.send(
            Admission(Admitted(rids[0], 1, AnswerMeta(2)), [part(rid) for rid in rids]), now
        )
        self.live |= {rid: Reported() for rid in rids}

    def lose(self, replica: int) -> None:
        self.ready.discard(replica)
        number = next_incarnation(self.incarnations, replica)
        self.incarnations[replica] = number
        self.relay.lose(number, NOTHING)
        if not any(self.last.get(rid) == replica for rid in self.live):
            self.settled[replica] = number
        self.where = {r: at for r, at in self.where.items() if at % self.replicas != replica}

    def settle(self, replica: int, ids: bytes) -> None:
        """The detokenizer tells of some of its requests: those that it has got and not lost."""
        number, progress = self.incarnations[replica], []
        self.settled[replica] = number
        for rid in self.live:
            if rid not in self.where and self.rng.random() < 0.5:
                progress.append(Progress(A, rid, Reported(ids)))
                self.live[rid] = Reported(ids, aborted=self.live[rid].aborted)
        self.relay.settle(SchedulerLost(number, progress))

    @property
    def open(self) -> set[int]:
        return {i for i in self.ready if self.settled[i] == self.incarnations[i]}

    def check(self) -> None:
        """What is sent now goes to one open replica, is sent to each incarnation once, and nothing
        that could be sent is kept back."""
        for replica, message in self.relay.replicas.take():
            if isinstance(message, CacheSnapshotReq):
                assert message.incarnation == self.incarnations[replica]
            if not isinstance(message, TokenizedReq):
                continue
            assert replica in self.open and message.incarnation == self.incarnations[replica]
            assert message.rid not in self.where
            assert (message.incarnation, message.rid) not in self.got
            self.got.add((message.incarnation, message.rid))
            self.where[message.rid] = message.incarnation
            self.last[message.rid] = replica
            assert (message.reported or Reported()) == self.live[message.rid]
        assert [kept.req.rid for kept in self.relay.requests] == list(self.live)
        is_unsettled = any(
            settled < number
            for settled, number in zip(self.settled, self.incarnations, strict=True)
        )
        if self.open and not is_unsettled:
            assert self.live.keys() <= self.where.keys()


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_random_losses(seed: int, replicas: int) -> None:
    """Requests that belong together stay so, until some of them have ended."""
    rng = random.Random(seed)
    ring = Ring(replicas, rng)
    relay = ring.relay
    actions = ["send", "send", "credit", "abort", "lose", "settle", "ready", "ready", "reset"]
    for turn in range(80):
        action, replica = rng.choice(actions), rng.randrange(replicas)
        rid = rng.choice([*ring.live, "none"])
        if action == "send":
            rids = [f"r{turn}.{i}" for i in range(rng.choice([1, 1, 3]))]
            ring.send(rids, float(turn))
        elif action == "credit":
            relay.credit((A, rid))
            ring.live.pop(rid, None)
            ring.where.pop(rid, None)
        elif action == "abort" and rid in ring.live:
            relay.abort(A, rid)
            known = ring.live[rid]
            ring.live[rid] = Reported(known.ids, aborted=True)
        elif action == "lose":
            ring.lose(replica)
        elif action == "settle" and ring.settled[replica] < ring.incarnations[replica]:
            ring.settle(replica, pack_ids([turn]))
        elif action == "ready":
            ring.ready.add(replica)
            ring.hear()
        elif action == "reset" and rng.random() < 0.1:
            for number in range(replicas):
                ring.incarnations[number] = next_incarnation(ring.incarnations, number)
            ring.settled = list(ring.incarnations)
            relay.reset(ring.incarnations)
            ring.live.clear()
            ring.where.clear()
            ring.last.clear()
            ring.hear()
        ring.check()
        for group in {r.split(".")[0] for r in ring.where}:
            assert len({at for r, at in ring.where.items() if r.split(".")[0] == group}) == 1


def test_a_lost_ones_requests_go_on_at_the_others_at_once() -> None:
    ring = Ring(2, random.Random(0))
    for number in range(6):
        ring.send([f"r{number}"], 0.0)
    ring.check()
    counts = [[at % 2 for at in ring.where.values()].count(i) for i in (0, 1)]
    assert counts == [3, 3]
    ring.lose(0)
    ring.check()
    assert len(ring.where) == 3
    ring.settle(0, b"")
    ring.check()
    assert set(ring.where.values()) == {ring.incarnations[1]} and len(ring.where) == 6


def test_an_operation_goes_to_all_and_a_grammar_to_who_asked() -> None:
    relay = Ring(3, random.Random(0)).relay
    relay.replicas.take()
    relay.replicas.control(Control(A, "c", 0, "stats", counts={"front": 1.0}))
    sent = relay.replicas.take()
    assert [replica for replica, _ in sent] == [0, 1, 2]
    counts = [message.counts for _, message in sent if isinstance(message, Control)]
    assert counts == [{"front": 1.0}, {}, {}]
    assert all(isinstance(one, Control) and one.asked == 3 for _, one in sent)
    relay.replicas.send(GrammarMade("key", 4))
    assert relay.replicas.take() == [(replica_of(4, 3), GrammarMade("key", 4))]


def test_a_wish_counts_while_there_is_a_scheduler() -> None:
    ring = Ring(3, random.Random(0))
    relay = ring.relay
    admission = Admission(Admitted("x", 1, AnswerMeta(2)), [part("x"), part("y")], replica=2)
    assert [kept.replica for kept in relay.send(admission, 0.0)] == [2, 2]
    ring.lose(2)
    moved = relay.settle(SchedulerLost(ring.incarnations[2]))
    assert len(moved) == 2 and len({kept.replica for kept in moved} - {2}) == 1


def test_who_has_lost_nothing_needs_no_word_of_the_detokenizer() -> None:
    """That one may have started after the loss, of which it then knows nothing."""
    relay = opened()
    relay.loses(2)
    relay.hear([2], [0])
    relay.sends(part("1"))
    assert [one.rid for one in relay.requests_taken()] == ["1"]


def test_requests_go_only_to_replicas_that_exist() -> None:
    """The others count neither as open nor in the share of callers' urgent requests."""
    router = Router(4, seed=1)
    dispatch = Dispatch(
        1, [4, 5, 6, 7], Placing("model", router), max_requests=9, max_tokens=9, max_running=32
    )
    dispatch.keep([1, 3])
    dispatch.hear([4, 5, 6, 7], [0, 1, 3])
    assert dispatch.replicas.open == dispatch.waits.open == [1, 3]

    def sent(number: int) -> TokenizedReq:
        one = replace(part(str(number)), hints=Hints(perf="latency"))
        return dispatch.hand_on(Admission(Admitted("x", 1, AnswerMeta(2)), [one]), 5.0).parts[0]

    hints = [sent(number).hints for number in range(5)]  # a quarter of two replicas' 16 rows
    assert [one is not None and one.perf for one in hints] == ["latency"] * 4 + ["throughput"]
    taken = dispatch.replicas.take()
    assert {to for to, message in taken if isinstance(message, TokenizedReq)} == {1, 3}
    assert router._loads.present == {1, 3}
    assert {placed.part.at_s for placed in router._placed.values()} == {5.0}
    dispatch.keep([0, 1, 3])
    assert dispatch.replicas.open == dispatch.waits.open == [0, 1, 3]
    dispatch.keep([])
    waits = sent(5)  # for the first one that is there
    assert dispatch.replicas.take() == [] == dispatch.waits.open
    dispatch.keep([0, 1, 3])
    messages = [message for _, message in dispatch.replicas.take()]
    assert [one.rid for one in messages if isinstance(one, TokenizedReq)] == [waits.rid]
    dispatch.reset(2, [8, 9, 10, 11])
    dispatch.hear([8, 9, 10, 11], [0, 1, 2, 3])
    assert dispatch.replicas.open == [0, 1, 3]
