"""A recorded run replays exactly: with failed steps, and with grammars that were too slow."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.grammar import allowance
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.process.construction import make_core
from scheduler_proc.trace.recorded import replay
from srt.args import ServerArgs
from srt.wire.errors import ConfigError
from srt.wire.filled_params import FilledParams
from srt.wire.ring_messages import Abort, TokenizedReq
from tests.scheduler_proc.byte_language import grammar_of, retokeniser
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar


def make(trace: Path, **config: object) -> Driver:
    defaults = {"max_total_tokens": 200, "max_running_requests": 8, "chunked_prefill_size": 32}
    return Driver(trace=trace, **{**defaults, **config})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "speculative",
    ["auto", *(pytest.param(name, marks=pytest.mark.full) for name in ("off", "own"))],
)
def test_a_recorded_trace_replays_exactly(tmp_path: Path, speculative: str) -> None:
    """Random policy, aborts, pauses, a lost client, penalties, guesses: the replay makes the same
    plans and ends in the same state."""
    config = {"schedule_policy": "random", "max_total_tokens": 150, "random_seed": 3}
    driver = make(tmp_path / "trace", lag=1, speculative=speculative, **config)
    assert (tmp_path / "trace").stat().st_mode & 0o777 == 0o600  # it has prompts
    driver.core.measure(StepCosts(base_s=1.0, row_s=0.01, token_s=0.01, draft_s=0.01))
    rng = np.random.default_rng(0)
    for i in range(40):
        client = b"c%d" % (i % 3)
        bias = {token: 18.0 + token for token in range(3)}  # that outputs repeat
        sampling = FilledParams(frequency_penalty=i % 2, logit_bias=bias)
        prompt = rng.integers(0, 3, 20).tolist()
        driver.add(
            f"r{i}",
            prompt,
            max_new=40,
            client=client,
            sampling=sampling,
            logprob_start=3,
            top_logprobs=i % 3,
        )
        for _ in range(rng.integers(0, 4)):
            driver.step()
        if i == 20:
            for name in [
                req.key for req in driver.core.state.live.by_name.values() if req.key[0] == b"c1"
            ]:
                driver.core.abort(Abort(*name, 0))
        if i % 9 == 0:
            driver.abort(f"r{i}", client)
        if i % 10 == 5:
            driver.pause_in("retract" if i == 25 else "in_place")
            driver.step()
            driver.step()
            assert driver.core.flush_cache() == (i == 25)
            driver.pause_in(None)
    driver.run()
    assert driver.core.flush_cache()
    driver.generate([0, 1, 2], max_new=3)
    driver.close()
    assert driver.core.state.counters.retracted > 0
    assert (driver.core.state.counters.verified_drafts > 0) == (speculative != "off")
    again = replay(tmp_path / "trace")
    assert again.state.counters == driver.core.state.counters
    assert again.state.memory.cache.evicted_total == driver.core.state.memory.cache.evicted_total


@pytest.mark.parametrize("lag", [0, 1])
def test_a_trace_with_failed_steps_replays(tmp_path: Path, lag: int) -> None:
    """Some steps fail once, some rows always do, and at lag 1 the step planned after a failed one
    is cancelled: the replay repeats all of it."""
    driver = make(tmp_path / "trace", lag=lag, max_total_tokens=400)
    steps = iter(range(10_000))
    driver.fails = lambda: next(steps) in (4, 15)
    driver.executor.poison = frozenset([77])
    for i in range(12):
        driver.add(f"r{i}", [i, 1, 2, 77 if i in (3, 6, 9) else 3], max_new=9)
        driver.step()
        driver.step()
    driver.run()
    driver.close()
    failed = {rid for rid, finish in driver.finishes.items() if finish.error is not None}
    assert failed >= {"r3", "r6", "r9"}
    assert replay(tmp_path / "trace").state.counters == driver.core.state.counters


def test_a_replay_notices_a_difference(tmp_path: Path) -> None:
    driver = make(tmp_path / "trace")
    driver.add("r", [1, 2, 3], max_new=2)
    driver.run()
    driver.close()
    data = (tmp_path / "trace").read_bytes()
    (tmp_path / "trace").write_bytes(data.replace(b"\xa3app", b"\xa3apq"))
    with pytest.raises(KeyError):
        replay(tmp_path / "trace")
    at = data.index(b"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00")
    (tmp_path / "trace").write_bytes(data[: at + 8] + b"\xff" + data[at + 9 :])
    replay(tmp_path / "trace")  # other tokens, same shapes: the same plans
    (tmp_path / "trace").write_bytes(data.replace(b"prepare", b"prepar_", 1))
    with pytest.raises(ValueError, match="prepar_"):
        replay(tmp_path / "trace")


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("jumps", [False, True])
def test_a_trace_of_grammars_that_took_too_long_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int, jumps: bool
) -> None:
    """The machine was slow during the recording, and is not during the replay."""
    driver = make(tmp_path / "trace", lag=lag, retokeniser=retokeniser() if jumps else None)
    ticks = (0.009 * number for number in count())
    with monkeypatch.context() as slow:
        slow.setattr(allowance, "thread_time", lambda: next(ticks))
        for i in range(6):
            is_bound = i % 2 == 0
            grammar = MeteredGrammar(FakeGrammar(3 * i + 3)) if is_bound else None
            key = str(i) if is_bound else ""
            driver.add(f"r{i}", [i, 1], 30, eos=[EOS], grammar=grammar, grammar_key=key)
            driver.step()
        driver.run()
    driver.close()
    errors = [finish.error.message for finish in driver.finishes.values() if finish.error]
    assert len(errors) == 2 and all("takes too long" in error for error in errors)

    def grammars(req: TokenizedReq) -> Grammar:
        return FakeGrammar(3 * int(req.grammar) + 3)  # not metered this time

    again = replay(tmp_path / "trace", grammars, driver.retokeniser)
    assert again.state.counters == driver.core.state.counters


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("jumps", [False, True])
def test_a_trace_of_drafts_that_took_too_long_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int, jumps: bool
) -> None:
    """The requests go on without, as they do in the replay, where nothing takes long."""
    config = {"speculative": "own", "retokeniser": retokeniser() if jumps else None}
    driver = make(tmp_path / "trace", lag=lag, max_total_tokens=400, **config)
    pattern = "(ab|ba|n: n){40}"
    ticks = (0.0008 * number for number in count())
    with monkeypatch.context() as slow:
        slow.setattr(allowance, "thread_time", lambda: next(ticks))
        for i in range(3):
            grammar = MeteredGrammar(grammar_of(pattern).start(), left_s=9.0)
            driver.add(f"r{i}", [i, *b"abbaab"], 40, grammar=grammar, grammar_key=pattern)
        driver.run()
    driver.close()
    assert all(finish.error is None for finish in driver.finishes.values())
    assert driver.core.state.counters.drafted_tokens["own"] > 0
    trace = (tmp_path / "trace").read_bytes()
    assert b"more than 20 ms" in trace and b"more than 100 ms" not in trace

    def grammars(req: TokenizedReq) -> Grammar:
        return grammar_of(req.grammar).start()

    again = replay(tmp_path / "trace", grammars, driver.retokeniser)
    assert again.state.counters == driver.core.state.counters


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    args = ServerArgs(record_trace=str(tmp_path))
    with pytest.raises(ConfigError, match=r"--record-trace .*: cannot be written"):
        make_core(args, 0, 1, FakeExecutor(64, 64))
