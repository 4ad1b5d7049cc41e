"""What hints come to at the front: arrivals of applications, shares of callers, deadlines."""

from typing import Any

import pytest

from srt.wire.errors import BAD_REQUEST, TIMED_OUT
from srt.wire.hints import MAX_DEADLINE_MS, Hints
from srt.wire.messages import AbortReq, Refused
from srt.wire.ring_messages import Credit, TokenizedReq
from tests.tokenizer_proc.admission.test_front import (
    EPOCH,
    A,
    B,
    admitted,
    make_front,
    request,
    samples,
)
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.hint_shares import APP_IDLE_S, APP_MOST_AGE_S


def taken(
    front: DirectFront, rid: str, now: float, client: bytes = A, tenant: str = "", **hints: Any
) -> Hints:
    """The hints of a request as the scheduler gets them."""
    req = request(rid, tenant=tenant, hints=Hints(**hints))
    answer = front.generate(client, req, now)
    assert isinstance(answer, Admission), answer
    part = front.sent(TokenizedReq)[-1]
    assert isinstance(part, TokenizedReq)
    assert part.hints is not None
    return part.hints


def test_without_hints_nothing_is_added() -> None:
    assert admitted(make_front(), request()).hints is None


def test_hints_of_a_request_reach_the_scheduler_with_its_arrival() -> None:
    given: dict[str, Any] = {
        "app": "a",
        "perf": "latency",
        "group": "g",
        "group_size": 3,
        "depth": 2,
    }
    hints = taken(make_front(), "r", 5.0, tenant="t", deadline_ms=1500, **given)
    expected = Hints(arrival_s=5.0, due_s=6.5, deadline_ms=1500, **given)
    assert hints == expected


def test_what_the_front_sets_is_not_taken_from_clients() -> None:
    assert not taken(make_front(), "r", 5.0, is_lowered=True).is_lowered


def test_an_application_came_when_its_first_request_did() -> None:
    front = make_front(max_requests=10)
    assert taken(front, "1", 1.0, app="a").arrival_s == 1.0
    assert taken(front, "2", 9.0, app="a").arrival_s == 1.0
    assert taken(front, "3", 9.0, app="b").arrival_s == 9.0
    assert taken(front, "4", 10.0, B, app="a").arrival_s == 10.0  # another caller's
    assert taken(front, "5", 11.0, tenant="t", app="a").arrival_s == 11.0
    assert taken(front, "6", 12.0).arrival_s == 12.0  # of no application
    later = 9.0 + APP_IDLE_S + 1.0
    assert taken(front, "7", later, app="a").arrival_s == later


def test_no_application_is_before_others_for_ever() -> None:
    front = make_front(max_requests=100)
    for number in range(30):
        now = 1000.0 + 50.0 * number
        hints = taken(front, str(number), now, app="a")
        assert hints.arrival_s == max(1000.0, now - APP_MOST_AGE_S)
    assert taken(front, "given", 1e4, arrival_s=1.0).arrival_s == 1e4 - APP_MOST_AGE_S
    assert taken(front, "future", 1e4, arrival_s=2e4).arrival_s == 1e4


@pytest.mark.parametrize("urgent", [{"perf": "latency", "tpot_ms": 20.0}, {"deadline_ms": 60_000}])
def test_beyond_a_quarter_of_the_rows_a_caller_s_urgent_requests_count_as_throughput(
    urgent: dict[str, Any],
) -> None:
    front = make_front(max_requests=10, max_running=8)
    assert not taken(front, "1", 1.0, **urgent).is_lowered
    assert not taken(front, "2", 1.0, **urgent).is_lowered
    lowered = taken(front, "3", 1.0, **urgent)
    assert (lowered.is_lowered, lowered.perf, lowered.due_s) == (True, "throughput", 0.0)
    assert lowered.tpot_ms == 0.0
    assert not taken(front, "4", 1.0, perf="throughput").is_lowered
    assert not taken(front, "5", 1.0, B, **urgent).is_lowered
    assert not taken(front, "6", 1.0, tenant="t", **urgent).is_lowered
    front.dispatch.credit(Credit(A, "3", EPOCH))  # it had no share
    assert taken(front, "7", 1.0, **urgent).is_lowered
    front.dispatch.credit(Credit(A, "1", EPOCH))
    assert not taken(front, "8", 1.0, **urgent).is_lowered


@pytest.mark.parametrize(("present", "replicas", "most"), [(15, 22, 15), (1, 3, 1), (0, 2, 1)])
def test_the_rows_of_replicas_that_do_not_exist_are_not_shared_out(
    present: int, replicas: int, most: int
) -> None:
    """Each has four, of which a quarter is one."""
    front = make_front(max_requests=100, max_running=4 * replicas)
    front.dispatch.hints.keep(present, replicas)
    lowered = [taken(front, str(i), 1.0, perf="latency").is_lowered for i in range(most + 1)]
    assert lowered == [False] * most + [True]


def test_a_prompt_ahead_of_an_urgent_call_has_its_class_and_no_share() -> None:
    front = make_front(max_requests=10, max_running=4)
    hints = Hints(perf="latency", is_ahead=True)
    ahead = admitted(front, request("1", {"max_new_tokens": 0}, hints=hints))
    assert ahead.hints is not None and ahead.hints.perf == "latency"
    assert not taken(front, "2", 1.0, perf="latency").is_lowered
    assert taken(front, "3", 1.0, perf="latency").is_lowered


def test_samples_count_each_and_a_new_epoch_frees_all() -> None:
    front = make_front(max_requests=10, max_running=8)
    several = request("n", {"n": 2, "temperature": 1.0}, hints=Hints(perf="latency"))
    assert [part.hints.perf for part in samples(front, several) if part.hints] == ["latency"] * 2
    assert taken(front, "1", 1.0, perf="latency").is_lowered
    front.reset(EPOCH, [EPOCH])
    front.dispatch.hear([EPOCH], [0])
    assert not taken(front, "2", 1.0, perf="latency").is_lowered


def test_one_ahead_of_time_has_the_class_of_its_call_and_takes_none_of_the_share() -> None:
    front = make_front(max_requests=10, max_running=4)
    for number in range(3):
        req = request(
            f"{number}", {"max_new_tokens": 0}, hints=Hints(perf="latency", is_ahead=True)
        )
        part = admitted(front, req)
        assert part.hints and part.hints.perf == "latency" and not part.hints.is_lowered
    assert not taken(front, "call", 1.0, perf="latency").is_lowered
    assert taken(front, "next", 1.0, perf="latency").is_lowered


def test_a_deadline_that_has_passed_refuses_a_request_and_a_goal_does_not() -> None:
    front = make_front()
    req = request("r", hints=Hints(deadline_ms=100))
    assert front.submit(A, req, 1.0) is None
    piece = front.turns.take()
    assert piece is not None
    answer = front.has_read(piece, front.text.read(req), 1.2)
    assert isinstance(answer, Refused)
    assert (answer.error.code, answer.error.param) == (TIMED_OUT, "hints.deadline_ms")
    assert front.in_flight == 0
    assert taken(front, "late", 9.0, due_s=1.0).due_s == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("app", "a" * 257),
        ("group", "g" * 257),
        ("group_size", -1),
        ("depth", -1),
        ("depth", 2**20),
        ("deadline_ms", -1),
        ("deadline_ms", MAX_DEADLINE_MS + 1),
        ("tpot_ms", -1.0),
        ("tpot_ms", float("nan")),
        ("tpot_ms", 60_001.0),
        ("tpot_ms", 10.0),  # without the class latency
        ("arrival_s", -1.0),
        ("due_s", float("nan")),
    ],
)
def test_hints_out_of_bounds_are_refused_by_name(name: str, value: Any) -> None:
    front = make_front()
    answer = front.submit(A, request(hints=Hints(**{name: value})), 1.0)
    assert isinstance(answer, Refused)
    assert (answer.error.code, answer.error.param) == (BAD_REQUEST, f"hints.{name}")


def test_an_aborted_request_s_share_is_free_when_it_has_ended() -> None:
    front = make_front(max_running=4)
    assert not taken(front, "1", 1.0, perf="latency").is_lowered
    front.abort(A, AbortReq("1", EPOCH))
    front.dispatch.credit(Credit(A, "1", EPOCH))
    assert not taken(front, "2", 1.0, perf="latency").is_lowered


def test_a_key_has_one_share_by_whichever_client_it_comes() -> None:
    front = make_front(max_requests=10, max_running=8)
    for rid, client in (("1", A), ("2", B)):
        assert not taken(front, rid, 1.0, client, tenant="key", perf="latency").is_lowered
    assert taken(front, "3", 1.0, A, tenant="key", perf="latency").is_lowered
    assert taken(front, "4", 1.0, A, tenant="key", app="a").arrival_s == 1.0
    assert taken(front, "5", 2.0, B, tenant="key", app="a").arrival_s == 1.0
