"""Single rules of the scheduler core, each in a small scene on the fake executor."""

import math

import numpy as np
import pytest

from scheduler_proc.core.decode_planner import DECODE_RUN
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.steps.step import Step
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish
from srt.wire.sampling import Scoring
from tests.scheduler_proc.core.drafting.reqs import plain, req_of
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import detail_at, hash_of, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar


def small(**config: object) -> Driver:
    defaults = {"max_total_tokens": 200, "max_running_requests": 8, "chunked_prefill_size": 32}
    return Driver(**{**defaults, **config})  # type: ignore[arg-type]


def planned(driver: Driver) -> Step:
    """The next step, not run yet."""
    plan = driver.core.prepare(1.0)
    assert plan is not None
    step = driver.core.seal(plan)
    assert step is not None
    return step


def test_chunks_and_decodes_share_a_step() -> None:
    driver = small()
    driver.add("decoding", [1, 2, 3], max_new=20)
    driver.step()
    driver.add("long", range(100, 180), max_new=1)
    step = planned(driver)
    assert [(row.req.wish.rid, row.extend_len) for row in step.rows] == [
        ("decoding", 1),
        ("long", 31),
    ]
    driver.core.commit(step, driver.executor.run(step.batch))
    driver.run()
    assert driver.outputs["decoding"] == reference_output([1, 2, 3], 20)


def test_a_prompt_is_shared_as_soon_as_its_chunk_is_computed() -> None:
    """Only one of two reqs with the same long prompt computes it, even while that one prefills."""
    driver = small()
    prompt = list(range(90))
    driver.add("a", prompt, max_new=2)
    driver.add("b", [*prompt[:70], 500], max_new=2)
    driver.run()
    assert driver.cached == {"a": 0, "b": 70}
    assert driver.core.state.counters.computed_prompt_tokens == 90 + 1


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("scored", [False, True])
def test_samples_of_a_prompt_share_it(lag: int, scored: bool) -> None:
    """n = 8 for a prompt of 1,000 tokens: it is computed once, and the other samples extend only
    its last token. The first may also want the prompt's log-probabilities."""
    driver = small(lag=lag, max_total_tokens=8192, chunked_prefill_size=300)
    prompt = list(range(1000))
    for i in range(8):
        driver.add(f"r{i}", prompt, max_new=20, logprob_start=0 if scored and i == 0 else None)
    used = 0
    while driver.step():
        used = max(used, 8192 - driver.core.state.memory.pool.free_size)
    assert driver.core.state.counters.computed_prompt_tokens == 1000 + 7
    assert [driver.cached[f"r{i}"] for i in range(8)] == [0] + [999] * 7
    assert used <= 1000 + 8 * (20 + DECODE_RUN)
    assert all(driver.outputs[f"r{i}"] == reference_output(prompt, 20) for i in range(8))


def test_retraction_loses_nothing_and_the_most_advanced_goes_on() -> None:
    driver = small(max_total_tokens=64)
    for rid in range(4):
        driver.add(f"r{rid}", [rid, 1, 2], max_new=30)
    driver.core.state.admissions.ratio.value = 0.0
    driver.run()
    assert driver.core.state.counters.retracted > 0
    for rid in range(4):
        assert driver.outputs[f"r{rid}"] == reference_output([rid, 1, 2], 30)


def test_salts_keep_tenants_apart() -> None:
    driver = small()
    driver.generate([1, 2, 3, 4], salt="a")
    driver.add("other", [1, 2, 3, 4], salt="b")
    driver.add("same", [1, 2, 3, 4], salt="a")
    driver.run()
    assert driver.cached["other"] == 0 and driver.cached["same"] == 3


def test_zero_new_tokens_only_fill_the_cache() -> None:
    driver = small()
    driver.add("warm", range(50), max_new=0)
    driver.run()
    assert driver.finishes["warm"].type == "length" and "warm" not in driver.outputs
    assert driver.core.state.memory.cache.match_len(np.arange(50, dtype=np.int32)) == 50


def test_min_new_tokens_blocks_stop_ids() -> None:
    prompt = [5, 6]
    first = reference_output(prompt, 1)[0]
    driver = small()
    driver.add("stops", prompt, max_new=10, eos=[first])
    driver.add("goes on", prompt, max_new=10, eos=[first], min_new=3)
    driver.run()
    assert driver.outputs["stops"] == [first]
    assert driver.finishes["stops"].matched == first
    expected = reference_output(prompt, 10, frozenset([first]), 3)
    assert driver.outputs["goes on"] == expected and len(expected) > 3


@pytest.mark.parametrize("lag", [0, 1])
def test_the_token_after_the_last_is_never_told_nor_cached(lag: int) -> None:
    """At lag 1 a finished req has one row too many in flight."""
    prompt = [7, 8, 9]
    output = reference_output(prompt, 3)
    driver = small(lag=lag)
    driver.add("r", prompt, max_new=50, eos=[output[-1]])
    driver.run()
    assert driver.outputs["r"] == output
    beyond = np.array(prompt + output + reference_output(prompt + output, 1), np.int32)
    assert driver.core.state.memory.cache.match_len(beyond) == len(prompt) + len(output) - 1


def test_aborted_requests_end_with_the_step_in_flight() -> None:
    """20 are aborted while a step runs: the next one has none of their rows, at lag 0 and 1."""
    for lag in (0, 1):
        driver = small(lag=lag, max_running_requests=32, max_total_tokens=2000)
        for i in range(20):
            driver.add(f"r{i}", [i, 1, 2], max_new=400, client=b"%d" % i)
        for _ in range(5):
            driver.step()
        for i in range(20):
            driver.abort(f"r{i}", b"%d" % i)
        steps = driver.executor.steps
        driver.run()
        assert driver.executor.steps - steps == 0
        assert (
            driver.core.state.memory.pool.free_size + driver.core.state.memory.cache.evictable_size
            == 2000
        )


def test_an_abort_that_comes_too_late_is_forgotten() -> None:
    driver = small()
    driver.generate([1, 2, 3])
    driver.abort("again")
    driver.add("again", [1, 2, 3], max_new=2)
    driver.run()
    assert driver.outputs["again"] == reference_output([1, 2, 3], 2)


def test_a_step_that_builds_on_a_failed_one_is_cancelled_without_harm() -> None:
    """At lag 1 the reqs of the failed step end, and a new req planned after it starts over."""
    driver = small(lag=1)
    driver.add("bad", [1, 2, 3], max_new=9)
    driver.fails = lambda: True
    driver.step()
    driver.fails = lambda: False
    driver.add("good", range(50), max_new=3, logprob_start=5)
    driver.run()
    assert driver.finishes["bad"].error is not None
    assert driver.outputs["good"] == reference_output(list(range(50)), 3)
    assert len(driver.prompt_logprobs["good"]) == 45


def test_decoding_stays_contiguous_and_cheap_when_the_cache_fills_the_pool() -> None:
    """Slots for decoding come in runs from the least recent leaves, not one by one."""
    driver = small(max_total_tokens=2000, check=False)
    for i in range(40):
        driver.generate(range(1000 * i, 1000 * i + 60), max_new=2)
    assert driver.core.state.memory.pool.free_size < 100
    for i in range(8):
        driver.add(f"r{i}", [i, 5, 5], max_new=60)
    gaps = []
    while driver.step():
        for req in driver.core.state.running.values():
            slots = driver.core.state.memory.table.slots[req.held.row, : req.held.kv_len]
            gaps.append(int((np.diff(slots) != 1).sum()) / max(1, len(slots)))
    assert np.mean(gaps) < 0.2


def test_salts_leave_nothing_behind() -> None:
    driver = small()
    for i in range(50):
        driver.add(f"r{i}", [1, 2, 3], salt=f"tenant {i}")
        driver.abort(f"r{i}")
        driver.generate([1, 2], salt=f"other {i}")
    driver.run()
    driver.core.flush_cache()
    assert driver.core.state.memory.cache._roots == {}


def test_prompt_logprobs_cap_the_prefix_match() -> None:
    """From position k on, at most k-1 tokens come from the cache; position 0 has no logprob."""
    driver = small()
    prompt = list(range(40))
    driver.generate(prompt)
    for start in (0, 1, 10, 39, 40):
        driver.add(f"from {start}", prompt, max_new=1, logprob_start=start)
        driver.run()
        values = driver.prompt_logprobs.get(f"from {start}", [])
        assert len(values) == 40 - start
        assert [math.isnan(v) for v in values] == [start == 0 and i == 0 for i in range(40 - start)]
        assert driver.cached[f"from {start}"] == min(39, max(0, start - 1))
    whole = driver.prompt_logprobs["from 1"]
    assert driver.prompt_logprobs["from 10"] == whole[9:]


@pytest.mark.parametrize("lag", [0, 1])
def test_details_come_with_their_tokens(lag: int) -> None:
    """In chunks, beside reqs that ask for other details or for none; position 0 has none."""
    driver = small(lag=lag)
    prompt, asked = list(range(100, 180)), {"top": (3, []), "ids": (0, [9, 9, 4]), "both": (1, [5])}
    for rid, (num_top, ids) in asked.items():
        driver.add(rid, prompt, 4, logprob_start=0, top_logprobs=num_top, logprob_ids=ids)
    driver.add("plain", prompt, 4, logprob_start=0)
    driver.add("not scored", prompt, 4, top_logprobs=3)
    driver.run()
    output = reference_output(prompt, 4)
    for rid, (num_top, ids) in asked.items():
        first, *rest = driver.prompt_details[rid] + driver.details[rid]
        assert first.top_ids == [0] * num_top and len(first.id_logprobs) == len(ids)
        assert all(math.isnan(value) for value in first.top_logprobs + first.id_logprobs)
        known = prompt + output
        assert rest == [detail_at(hash_of(known[:i]), num_top, ids) for i in range(1, 84)]
    assert driver.details["plain"] == driver.prompt_details["plain"] == []
    assert driver.details["not scored"] == []


def test_the_detokenizer_is_told_how_to_stop_and_what_was_asked() -> None:
    driver = small()
    sampling = FilledParams(stop_regex=["a+"], no_stop_trim=True)
    driver.add("r", [1], 1, sampling=sampling, logprob_start=1, top_logprobs=4, logprob_ids=[8])
    driver.abort("r")
    batch = driver.core.take_output(0.0)
    assert batch is not None
    start = batch.starts[0]
    assert (start.stop_regex, start.no_stop_trim) == (["a+"], True)
    assert start.scoring == Scoring(1, 4, [8])


def test_a_failed_step_ends_its_reqs_only() -> None:
    driver = small()
    driver.add("bad", [1, 2, 3], max_new=5)
    step = planned(driver)
    driver.add("good", [4, 5], max_new=2)
    driver.core.fail(step, "out of luck")
    check_invariants(driver.core)
    driver.run()
    error = driver.finishes["bad"].error
    assert error is not None and error.http_status == 500
    assert driver.outputs["good"] == reference_output([4, 5], 2)
    assert driver.core.state.memory.cache.match_len(np.array([1, 2, 3], np.int32)) == 0


def test_flush_needs_an_idle_scheduler() -> None:
    driver = small()
    driver.generate(range(30))
    driver.add("r", [1], max_new=3)
    assert not driver.core.flush_cache()
    driver.run()
    assert driver.core.flush_cache() and driver.core.state.memory.pool.free_size == 200


def test_after_a_flush_nothing_of_ended_requests_is_guessed() -> None:
    driver = Driver(max_total_tokens=200, speculative="auto")
    output = driver.generate([4, 5], max_new=8)
    req, seen = req_of([1, *output[:4]]), driver.core.state.speculation.sources[-1]
    assert plain(seen.match(req, 2)) == (4, output[4:6])
    assert driver.core.flush_cache()
    assert seen.match(req, 2) is None


def test_a_new_epoch_forgets_requests_and_keeps_the_cache() -> None:
    driver = small()
    driver.generate(range(30))
    driver.add("r", range(60), max_new=3)
    driver.step()
    driver.core.reset(5)
    assert not driver.core.has_work and driver.core.take_output(0.0) is None
    check_invariants(driver.core)
    assert driver.core.state.memory.cache.match_len(np.arange(60, dtype=np.int32)) >= 30


@pytest.mark.parametrize("lag", [0, 1])
def test_a_constrained_req_follows_its_grammar_beside_free_ones(lag: int) -> None:
    driver = small(lag=lag)
    driver.add("free", [1, 2, 3], max_new=12)
    driver.add("bound", [4, 5], max_new=30, eos=[EOS], grammar=FakeGrammar(9))
    driver.run()
    expected = reference_output([4, 5], 30, frozenset([EOS]), grammar=FakeGrammar(9))
    assert driver.outputs["bound"] == expected and expected[-1] == EOS
    assert driver.finishes["bound"] == Finish("stop", EOS)
    assert driver.outputs["free"] == reference_output([1, 2, 3], 12)


def test_free_reqs_keep_lag_1_and_constrained_ones_wait_for_their_token() -> None:
    driver = small(lag=1)
    driver.add("free", [1, 2, 3], max_new=12)
    driver.add("bound", [4, 5], max_new=30, eos=[EOS], grammar=FakeGrammar(9))
    driver.step()
    plan = driver.core.prepare(1.0)
    assert plan is not None
    assert [row.req.wish.rid for row in plan.rows] == ["free"]
    assert [req.wish.rid for req in plan.deferred] == ["bound"]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("breaks_at", [0, 1, 4])
def test_a_grammar_that_breaks_ends_its_own_req_only(lag: int, breaks_at: int) -> None:
    driver = small(lag=lag)
    driver.add("free", [1, 2, 3], max_new=12)
    driver.add("bound", [4, 5], max_new=30, eos=[EOS], grammar=FakeGrammar(99, breaks_at))
    driver.run()
    error = driver.finishes["bound"].error
    assert error is not None and "made to break" in error.message
    assert len(driver.outputs.get("bound", [])) == breaks_at
    assert driver.outputs["free"] == reference_output([1, 2, 3], 12)


def test_eos_is_forced_where_nothing_else_may_follow_whatever_min_new_tokens_says() -> None:
    driver = small()
    driver.add("r", [4, 5], max_new=30, min_new=20, eos=[EOS], grammar=FakeGrammar(3))
    driver.run()
    assert len(driver.outputs["r"]) == 4 and driver.finishes["r"] == Finish("stop", EOS)


def test_a_structure_cut_by_max_new_tokens_ends_by_length() -> None:
    driver = small()
    driver.add("r", [4, 5], max_new=3, eos=[EOS], grammar=FakeGrammar(9, breaks_at=3))
    driver.run()
    assert driver.finishes["r"] == Finish("length")
