"""What the core tells of a request's times, with a clock that moves by 0.01 s at each step."""

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_proc.core.requests.outputs import HELD_TOKENS, OutputBuffer
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import TokenBatch, TokenizedReq
from srt.wire.sampling import Scoring
from tests.scheduler_proc.byte_language import retokeniser
from tests.scheduler_proc.core.requests.test_outputs import WATCHED, req_of
from tests.scheduler_proc.core.test_jump_forward import started
from tests.scheduler_proc.driver import Driver

PROMPT = [*range(1, 9)]


def driver_of(**config: Any) -> Driver:
    return Driver(**{"max_total_tokens": 400, "chunked_prefill_size": 16} | config)


def seconds(value: float | None) -> Any:
    return value if value is None else pytest.approx(value, abs=1e-9)


def test_a_queue_and_chunks_take_their_time() -> None:
    """One place, and a prompt of three chunks: the second req waits for the first one's end."""
    driver = driver_of(max_running_requests=1)
    driver.add("a", range(48), 5)
    driver.add("b", PROMPT, 2)
    driver.run()
    assert driver.queued_s["a"] == seconds(0.01) and driver.ttft_s["a"] == seconds(0.03)
    # The first one's last token is that of its seventh step, and the second runs in the next.
    assert driver.queued_s["b"] == driver.ttft_s["b"] == seconds(0.08)


def test_with_overlap_a_token_is_told_a_step_later() -> None:
    driver = driver_of(lag=1)
    driver.add("a", PROMPT, 3)
    driver.run()
    assert (driver.queued_s["a"], driver.ttft_s["a"]) == (seconds(0.01), seconds(0.02))


def test_the_front_says_when_a_request_came() -> None:
    """Also of one that comes after younger ones, because its grammar had to be loaded."""
    driver = driver_of()
    wire = TokenizedReq(b"c", "a", 0, pack_ids(PROMPT), FilledParams(max_new_tokens=1))
    driver.now = 5.0
    driver.core.add(replace(wire, rid="young", arrival_s=4.5), driver.now)
    driver.core.add(replace(wire, rid="old", input_ids=pack_ids([9]), arrival_s=1.0), driver.now)
    driver.run()
    assert driver.queued_s == driver.ttft_s == {"young": seconds(0.51), "old": seconds(4.01)}


@pytest.mark.parametrize("lag", [0, 1])
def test_after_a_retraction_the_first_times_count(lag: int) -> None:
    driver = driver_of(lag=lag, max_total_tokens=64)
    for i in range(4):
        driver.add(f"r{i}", [i, 1, 2], max_new=30)
    driver.core.state.admissions.ratio.value = 0.0
    for _ in range(2):
        driver.step()
    early = dict(driver.ttft_s)
    driver.run()
    assert driver.core.state.counters.retracted > 0
    assert list(early.values()) == [seconds(0.01 + 0.01 * lag)] * 4 and driver.ttft_s == early
    assert list(driver.queued_s.values()) == [seconds(0.01)] * 4


@pytest.mark.parametrize("logprob_start", [None, -1, 0])
def test_a_request_goes_on_at_another_core(logprob_start: int | None) -> None:
    """Its first times are those of the first core, even if no token of it has been sent."""
    driver = driver_of()
    driver.add("begun", PROMPT, 10, logprob_start=logprob_start)
    for _ in range(3):
        driver.step()
    assert "begun" not in driver.outputs  # held back
    driver.add("waits", [7, 7], 2)
    driver.lose()
    driver.run()
    assert driver.num_resumed == 1
    assert (driver.queued_s["begun"], driver.ttft_s["begun"]) == (seconds(0.01),) * 2
    assert (driver.queued_s["waits"], driver.ttft_s["waits"]) == (seconds(0.01),) * 2


def test_what_did_not_happen_has_no_time() -> None:
    driver = driver_of()
    driver.add("no tokens", PROMPT, 0)
    driver.add("aborted", [9, 9], 5)
    driver.abort("aborted")
    driver.add("late", [8, 8], 5, deadline=0.005)
    driver.run()
    assert driver.queued_s == {"no tokens": seconds(0.01), "aborted": None, "late": None}
    assert driver.ttft_s == {}


def test_forced_tokens_are_tokens() -> None:
    """Those forced before the admission count from then on; a whole answer that is forced needs
    none."""
    driver = driver_of()
    driver.retokeniser = retokeniser()
    for rid, pattern in (("begins", "abcabc[abc]{5}"), ("whole", "abcabcabc")):
        driver.add(rid, PROMPT, 20, grammar=started(pattern))
    assert driver.ttft_s == {}
    driver.run()
    assert driver.queued_s == {"begins": seconds(0.01), "whole": None}
    assert driver.ttft_s == {"begins": seconds(0.01), "whole": seconds(0.01)}


@pytest.mark.parametrize("fields", [{}, {"scoring": Scoring(start=0)}, *WATCHED])
def test_a_first_token_is_told_once_and_at_once(fields: dict[str, Any]) -> None:
    """Held back or not, after log-probabilities of the prompt or without; with the batch's time."""
    outputs, req = OutputBuffer(), req_of(**fields)
    batches: list[TokenBatch | None] = []
    if req.wish.scoring is not None:
        outputs.prompt_logprobs(req, 0, req.tokens.known[:1])
        batches.append(outputs.take(0, 1.0))
        assert batches[0] is not None and batches[0].starts and not batches[0].firsts
    for i in range(HELD_TOKENS + 1):
        outputs.token(req, i, 0.0)
        batches.append(outputs.take(0, 2.0 + i))
    outputs.end(req, Finish("length"))
    batches.append(outputs.take(0, 99.0))
    told = [(batch.time_s, batch.firsts) for batch in batches if batch is not None and batch.firsts]
    assert told == [(2.0, [0])]
    assert batches[-1] is not None and (batches[-1].time_s, batches[-1].firsts) == (99.0, [])
