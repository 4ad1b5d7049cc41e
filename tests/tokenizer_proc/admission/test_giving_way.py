"""Who gives way when the server is full, and who never does."""

import random
from typing import Any

import pytest

from srt.callers.key_lines import CallerLimits
from srt.callers.names import caller_of
from srt.ring.crash_file import Left
from srt.wire.constraint import Constraint
from srt.wire.errors import OVERLOADED, RATE_LIMITED, ErrorInfo
from srt.wire.hints import Hints
from srt.wire.messages import (
    AbortReq,
    Continuation,
    GenerateReq,
    Refused,
    ScoreReq,
    TokenizeReq,
    pack_ids,
)
from srt.wire.ring_messages import Credit, GiveWay, Pace, SchedulerLost, Stays, TokenizedReq
from srt.wire.sampling import SamplingParams
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front, request
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.queueing.capacity import MAX_AHEAD, SLACK


def full_front(count: int = 4, **bounds: Any) -> DirectFront:
    """A front that is full with requests of A, which a scheduler has."""
    front = make_front(**{"max_requests": 4, **bounds})
    for i in range(count):
        assert isinstance(front.generate(A, request(f"a{i}"), 0.0), Admission)
    front.sent(TokenizedReq)
    return front


def asked(front: DirectFront) -> list[list[str]]:
    """The requests that the scheduler was asked to end, since the last call."""
    found = front.sent(GiveWay)
    return [message.rids for message in found if isinstance(message, GiveWay)]


def comes(front: DirectFront, client: bytes, rid: str, **fields: Any) -> bool:
    return isinstance(front.generate(client, request(rid, **fields), 0.0), Admission)


def test_the_newest_request_of_the_caller_with_most_gives_way() -> None:
    front = full_front()
    assert comes(front, B, "b0") and asked(front) == [["a3"]]
    front.credit(Credit(A, "a3", EPOCH), 1.0)
    assert front.in_flight == 4
    assert comes(front, B, "b1") and asked(front) == [["a2"]]
    front.credit(Credit(A, "a2", EPOCH), 2.0)
    refused = front.generate(B, request("b2"), 2.0)  # both have two
    assert isinstance(refused, Refused) and refused.error.code == OVERLOADED
    assert not asked(front)


def test_a_question_does_not_give_way_nor_what_gave_way_count_as_an_end() -> None:
    front = make_front(max_requests=2)
    assert comes(front, A, "a0") and front.submit(A, request("a1"), 0.0) is None
    front.submit(A, TokenizeReq("q", EPOCH, text="hello"), 0.0)
    assert front.submit(B, request("b0"), 0.0) is None
    answers = [answer for _, answer in front.giving_way.take_answers()]
    assert [answer.rid for answer in answers if isinstance(answer, Refused)] == ["a1"]
    front = full_front()
    assert comes(front, B, "b0") and asked(front) == [["a3"]]
    front.credit(Credit(A, "a3", EPOCH), 1.0)
    assert front.callers.retry_after_s(caller_of(A, ""), 1, 1.0) == 0.0
    front.credit(Credit(A, "a2", EPOCH), 1.0)
    assert front.callers.retry_after_s(caller_of(A, ""), 1, 1.0) == 30.0


def test_who_has_begun_stays_and_the_next_one_gives_way() -> None:
    front = full_front()
    assert comes(front, B, "b0") and asked(front) == [["a3"]]
    front.giving_way.stay(Stays(A, ["a3"], EPOCH), 0.0)
    assert asked(front) == [["a2"]]
    for rid in ("a2", "a1", "a0"):
        front.giving_way.stay(Stays(A, [rid], EPOCH), 0.0)
    assert asked(front) == [["a1"], ["a0"]]
    assert front.in_flight == 5  # all have begun: B is within its share all the same
    assert comes(front, B, "b1") and not asked(front)
    full = front.generate(B, request("b2"), 0.0)
    assert isinstance(full, Refused)


def test_no_more_are_asked_than_are_needed() -> None:
    front = full_front()
    assert comes(front, B, "b0") and comes(front, b"client-c", "c0")
    assert asked(front) == [["a3"], ["a2"]]
    front.giving_way.stay(Stays(A, ["a3"], EPOCH + 1), 0.0)  # of another incarnation
    assert not asked(front)


def test_all_samples_give_way_together() -> None:
    front = make_front(max_requests=4)
    samples = GenerateReq(
        rid="n", epoch=EPOCH, text="hello", sampling=SamplingParams(max_new_tokens=1, n=3)
    )
    assert isinstance(front.generate(A, samples, 0.0), Admission)
    assert comes(front, A, "a")
    assert comes(front, B, "b0") and asked(front) == [["a"]]
    front.credit(Credit(A, "a", EPOCH), 0.0)
    assert comes(front, B, "b1") and asked(front) == [["n/0", "n/1", "n/2"]]


def test_a_group_of_which_a_part_was_aborted_stays() -> None:
    front = make_front(max_requests=2)
    samples = GenerateReq(
        rid="n", epoch=EPOCH, text="hello", sampling=SamplingParams(max_new_tokens=1, n=2)
    )
    assert isinstance(front.generate(A, samples, 0.0), Admission)
    front.abort(A, AbortReq("n/1", EPOCH))
    assert comes(front, B, "b") and not asked(front)


def test_what_is_not_read_gives_way_first_and_is_refused() -> None:
    front = full_front(3)
    assert front.submit(A, request("a3"), 0.0) is None
    assert comes(front, B, "b0") and not asked(front)
    ((client, refused),) = front.giving_way.take_answers()
    assert isinstance(refused, Refused) and (client, refused.rid) == (A, "a3")
    assert refused.error.code == OVERLOADED and refused.error.retryable
    assert front.in_flight == 4 and front.turns.take() is None


def test_a_score_gives_way_as_a_whole() -> None:
    front = make_front(max_requests=4)
    score = ScoreReq(
        rid="s", epoch=EPOCH, text="a", continuations=[Continuation("b"), Continuation("c")]
    )
    assert isinstance(front.score(A, score), Admission)
    assert comes(front, A, "a0") and comes(front, A, "a1")
    for rid, gone in (("b0", ["a1"]), ("b1", ["a0"])):
        assert comes(front, B, rid) and asked(front) == [gone]
        front.credit(Credit(A, gone[0], EPOCH), 0.0)
    assert comes(front, b"client-c", "c0") and asked(front) == [["s/0", "s/1"]]


def test_what_is_parked_gives_way() -> None:
    front = make_front(max_requests=2)
    fields: dict[str, Any] = {"sampling": {"regex": "a+"}}
    for rid in ("a0", "a1"):
        assert isinstance(front.generate(A, request(rid, **fields), 0.0), Parked)
    assert comes(front, B, "b")
    ((client, refused),) = front.giving_way.take_answers()
    assert isinstance(refused, Refused) and (client, refused.rid) == (A, "a1")
    assert len(front.grammars.parking) == 1 and front.in_flight == 2
    assert [q.constraint for q in front.grammars.parking.questions(EPOCH)] == [
        Constraint("regex", "a+")
    ]


def test_prompt_tokens_are_shared_too() -> None:
    front = make_front(max_requests=100, max_tokens=20)
    for i in range(4):
        assert comes(front, A, f"a{i}")  # of 5 tokens each
    assert isinstance(front.generate(A, request("a4"), 0.0), Refused)
    assert comes(front, B, "b0") and asked(front) == [["a3"]]


def test_what_a_lost_scheduler_had_stays() -> None:
    front = full_front()
    front.dispatch.scheduler_lost(EPOCH + 1, Left())
    front.dispatch.hear([EPOCH + 1], [0])
    front.dispatch.settle(SchedulerLost(EPOCH + 1))
    front.sent(TokenizedReq)
    assert comes(front, B, "b0") and not asked(front)
    front.credit(Credit(A, "a3", EPOCH), 0.0)
    assert comes(front, A, "a4") is False
    assert front.in_flight == 4


def test_weights_divide_a_full_server() -> None:
    table = {"one": CallerLimits(share=1.0), "four": CallerLimits(share=4.0)}
    front = make_front(max_requests=10)
    front.callers.set_limits(table, 0.0)
    for i in range(10):
        assert comes(front, A, f"a{i}", tenant="one")
    admitted = 0
    for i in range(20):
        admitted += comes(front, A, f"b{i}", tenant="four")
        for rids in asked(front):
            front.credit(Credit(A, rids[0], EPOCH), 0.0)
    assert admitted == 8
    holdings = front.dispatch.places.holdings
    assert (holdings.of("one"), holdings.of("four")) == (2, 8)


def test_a_flood_of_one_caller_is_not_waited_for_by_another() -> None:
    front = make_front(max_requests=100, max_queue_wait_s=5.0 * SLACK)
    for i in range(20):
        assert comes(front, A, f"a{i}")
    front.dispatch.pace(Pace(EPOCH, prompt_token_s=0.1, request_s=2.0))
    assert isinstance(front.generate(A, request("late"), 0.0), Refused)
    assert comes(front, B, "b0")


def test_limits_of_a_key() -> None:
    front = make_front(max_requests=100)
    limits = CallerLimits(running=2, max_tokens=6, requests_per_minute=60, share=3.0)
    front.callers.set_limits({"key": limits}, 0.0)
    answer = front.generate(A, request("1", {"max_new_tokens": None}, tenant="key"), 0.0)
    assert isinstance(answer, Admission)
    (part,) = answer.parts
    assert (part.caller, part.weight, part.sampling.max_new_tokens) == ("key", 3.0, 6)
    sampling = {"max_new_tokens": 128, "min_new_tokens": 7}
    long = front.generate(A, request("2", sampling, tenant="key"), 0.0)
    assert isinstance(long, Refused) and long.error.param == "min_new_tokens"
    lowered = front.generate(A, request("3", {"max_new_tokens": 128}, tenant="key"), 0.0)
    assert isinstance(lowered, Admission) and lowered.parts[0].sampling.max_new_tokens == 6
    third = front.generate(A, request("4", {"max_new_tokens": 6}, tenant="key"), 0.0)
    assert isinstance(third, Refused) and "and has 2" in third.error.message
    assert comes(front, A, "5", tenant="another")


def test_rates_of_a_key() -> None:
    front = make_front(max_requests=100)
    table = {"r": CallerLimits(requests_per_minute=2), "t": CallerLimits(tokens_per_minute=12)}
    front.callers.set_limits(table, 0.0)

    def refused(rid: str, tenant: str, now: float = 0.0) -> ErrorInfo | None:
        answer = front.generate(A, request(rid, tenant=tenant), now)
        return answer.error if isinstance(answer, Refused) else None

    assert not refused("r1", "r") and not refused("r2", "r")
    error = refused("r3", "r", 10.0)
    assert error and error.code == RATE_LIMITED and error.retry_after_s == pytest.approx(20.0)
    assert not refused("r3", "r", 30.0)
    assert not refused("t1", "t")  # 5 of 12 tokens
    front.credit(Credit(A, "t1", EPOCH, tokens=3), 0.0)  # and 3 that it has generated
    error = refused("t2", "t")
    assert error and error.retry_after_s == pytest.approx(5.0)  # 1 token is missing
    assert not refused("t2", "t", 5.0)


def test_what_gives_way_or_is_refused_later_does_not_count_for_rates() -> None:
    front = make_front(max_requests=2)
    front.callers.set_limits({"key": CallerLimits(requests_per_minute=2)}, 0.0)
    for rid in ("1", "2"):
        assert front.submit(A, request(rid, tenant="key"), 0.0) is None
    assert front.submit(B, request("b"), 0.0) is None
    assert len(front.giving_way.take_answers()) == 1
    front.callers.rates.check_request("key", 0.0)


def test_retry_after_is_what_the_callers_own_requests_take() -> None:
    front = full_front(3)
    assert comes(front, B, "b")
    first = front.generate(A, request("x"), 0.0)
    assert isinstance(first, Refused) and first.error.retry_after_s == 0.0  # not known
    for i in range(3):
        front.credit(Credit(A, f"a{i}", EPOCH), 10.0)
        assert comes(front, A, f"again{i}")
    later = front.generate(A, request("x"), 10.0)
    assert isinstance(later, Refused) and later.error.retry_after_s == pytest.approx(10.0)


def test_who_is_alone_is_refused_without_a_time() -> None:
    front = full_front(4)
    for i in range(4):
        front.credit(Credit(A, f"a{i}", EPOCH), 10.0)
        assert comes(front, A, f"again{i}")
    refused = front.generate(A, request("x"), 10.0)
    assert isinstance(refused, Refused) and refused.error.retry_after_s == 0.0


def test_tokens_do_not_come_from_requests_that_are_not_read() -> None:
    front = make_front(max_requests=100, max_tokens=12)
    assert comes(front, A, "a0") and comes(front, A, "a1")  # of 5 tokens each
    front.sent(TokenizedReq)
    for i in range(3):
        assert front.submit(A, request(f"unread{i}"), 0.0) is None
    ids = GenerateReq(
        rid="b", epoch=EPOCH, input_ids=pack_ids([1] * 4), sampling=SamplingParams(max_new_tokens=1)
    )
    assert isinstance(front.submit(B, ids, 0.0), Admission)
    assert asked(front) == [["a1"]] and not front.giving_way.take_answers()


def test_a_late_answer_about_a_request_that_has_ended_is_ignored() -> None:
    front = full_front()
    assert comes(front, B, "b0") and asked(front) == [["a3"]]
    front.credit(Credit(A, "a3", EPOCH), 0.0)
    front.giving_way.stay(Stays(A, ["a3"], EPOCH), 0.0)
    assert comes(front, A, "a3") is False
    front.credit(Credit(B, "b0", EPOCH), 0.0)
    assert comes(front, A, "a3")  # the same name: another request
    front.sent(TokenizedReq)
    assert comes(front, B, "b1") and asked(front) == [["a3"]]


def test_new_weights_count_at_once() -> None:
    front = make_front(max_requests=4)
    for i in range(4):
        assert comes(front, A, f"a{i}", tenant="one" if i < 2 else "two")
    front.sent(TokenizedReq)
    assert comes(front, A, "x", tenant="one") is False
    front.callers.set_limits({"one": CallerLimits(share=3.0)}, 0.0)
    assert comes(front, A, "x", tenant="one") and asked(front) == [["a3"]]


def test_nobody_below_its_share_is_ever_refused() -> None:
    """Random traffic of five callers, whose requests end, stay or give way at random."""
    rng = random.Random(4)
    for _ in range(40):
        bound = rng.randrange(2, 12)
        front = make_front(max_requests=bound)
        weights = {f"c{i}": CallerLimits(share=rng.choice([0.5, 1.0, 4.0])) for i in range(5)}
        front.callers.set_limits(weights, 0.0)
        holdings, live = front.dispatch.places.holdings, dict[str, TokenizedReq]()
        begun: set[str] = set()
        for step in range(150):
            caller, rid = rng.choice([*weights, "c0", "c0"]), f"r{step}"
            count = rng.choice([1, 1, 2])
            is_below = holdings.is_within_share("requests", caller, count, bound)
            sampling = {"n": count}
            answer = front.generate(A, request(rid, sampling, tenant=caller), 0.0)
            assert isinstance(answer, Admission) or not is_below
            for sent in front.dispatch.replicas.take():
                message = sent[1]
                if isinstance(message, TokenizedReq):
                    live[message.rid] = message
                elif isinstance(message, GiveWay):
                    if begun & set(message.rids):
                        front.giving_way.stay(Stays(A, message.rids, EPOCH), 0.0)
                        continue
                    for gone in message.rids:
                        live.pop(gone, None)
                        front.credit(Credit(A, gone, EPOCH), 0.0)
            begun |= {rid for rid in live if rng.random() < 0.1}
            for ended in [rid for rid in live if rng.random() < 0.05]:
                begun.discard(ended)
                del live[ended]
                front.credit(Credit(A, ended, EPOCH), 0.0)
            assert front.in_flight <= 2 * bound + 2
        assert len(front.dispatch.places) == sum(holdings.of(c) for c in [*holdings.callers])


def test_pack_ids_prompts_need_no_reading() -> None:
    front = full_front()
    ids = GenerateReq(
        rid="b", epoch=EPOCH, input_ids=pack_ids([1, 2]), sampling=SamplingParams(max_new_tokens=1)
    )
    assert isinstance(front.submit(B, ids, 0.0), Admission) and asked(front) == [["a3"]]


# ---- ahead of time ---------------------------------------------------------------------------

AHEAD: dict[str, Any] = {
    "sampling": {"max_new_tokens": 0},
    "hints": Hints(perf="throughput", is_ahead=True),
}


def test_nobody_gives_way_to_a_request_ahead_of_time() -> None:
    front = full_front()
    assert not comes(front, B, "ahead", **AHEAD)
    assert comes(front, B, "b") and asked(front) == [["a3"]]
    front = full_front(2, max_tokens=12)  # of which each has 5
    assert not comes(front, B, "ahead", **AHEAD)
    assert comes(front, B, "b") and asked(front) == [["a1"]]


def test_a_request_ahead_of_time_takes_no_place_and_has_none_to_give() -> None:
    front = full_front(2)
    assert all(comes(front, A, f"ahead{i}", **AHEAD) for i in range(2))
    assert front.in_flight == 2 and front.tokens_in_flight == 10
    assert comes(front, A, "a2") and comes(front, A, "a3") and not asked(front)
    assert not comes(front, A, "ahead2", **AHEAD)
    assert comes(front, B, "b") and asked(front) == [["a3"]]
    for rid in ("ahead0", "ahead1", "a0"):
        front.credit(Credit(A, rid, EPOCH), 1.0)
    assert front.in_flight == 4 and front.tokens_in_flight == 20
    assert list(front.dispatch.places) == [(A, "a1"), (A, "a2"), (A, "a3"), (B, "b")]


def test_few_requests_ahead_of_time_are_in_flight_at_once() -> None:
    front = make_front(max_requests=100)
    taken = [comes(front, A, f"ahead{i}", **AHEAD) for i in range(MAX_AHEAD + 1)]
    assert taken == [True] * MAX_AHEAD + [False]
    front.credit(Credit(A, "ahead3", EPOCH), 1.0)
    assert comes(front, B, "next", **AHEAD)
    front.reset(EPOCH, [EPOCH])
    front.dispatch.hear([EPOCH], [0])
    assert comes(front, B, "anew", **AHEAD)


def test_a_request_ahead_of_time_waits_for_no_text_and_generates_nothing() -> None:
    front = make_front()
    assert front.submit(B, request("b"), 0.0) is None
    assert isinstance(front.submit(A, request("ahead", **AHEAD), 0.0), Refused)
    wrong = front.submit(A, request("wrong", hints=AHEAD["hints"]), 0.0)
    assert isinstance(wrong, Refused) and wrong.error.param == "max_new_tokens"
    sampling = {"max_new_tokens": 0, "regex": "a"}
    wrong = make_front().submit(A, request("b", sampling=sampling, hints=AHEAD["hints"]), 0.0)
    assert isinstance(wrong, Refused) and wrong.error.param == "regex"


def test_a_prompt_ahead_counts_for_no_rate() -> None:
    """That of its call does. Who has used up its rate has none, which is no refusal of its own."""
    front = make_front(max_requests=10)
    front.callers.set_limits({"t": CallerLimits(requests_per_minute=1, tokens_per_minute=6)}, 0.0)
    assert comes(front, A, "ahead0", tenant="t", **AHEAD)
    assert comes(front, A, "ahead1", tenant="t", **AHEAD)
    front.credit(Credit(A, "ahead0", EPOCH), 0.0)
    assert comes(front, A, "call", tenant="t")
    assert not comes(front, A, "ahead2", tenant="t", **AHEAD)
    assert not comes(front, A, "call2", tenant="t")
    assert front.callers.counts(front.dispatch.places.holdings)["caller_refused_total/t"] == 1
