"""Requests that go on at another core: how their grammars are read again, healed prompts, draws,
log-probabilities and traces. The random tests of the core and of jumps lose cores, too."""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.requests import resume
from scheduler_proc.core.requests.resume import SLICE_S, reading
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.trace.recorded import replay
from srt.wire.errors import UNAVAILABLE
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.pause import NO_PAUSE
from srt.wire.ring_messages import Abort, PauseSet, Reported, TokenizedReq
from tests.running.profiles import some
from tests.scheduler_proc.byte_language import retokeniser
from tests.scheduler_proc.core.test_healing import ENDINGS, grammar_for
from tests.scheduler_proc.core.test_jump_forward import PATTERNS, PENALTIES, started
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import VOCAB, FakeExecutor
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.process.test_grammar_loading import Compiled, Intake, bound, request
from tests.waiting import SOON_S

POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "app")


class DrawingExecutor(FakeExecutor):
    """Its tokens depend on the draws, where nothing else rules, and so do their
    log-probabilities."""

    def run(self, batch: ForwardBatch) -> StepResult:
        result = super().run(batch)
        uniform = batch.samples.uniform
        ids = result.next_ids.copy()
        ruled = {s.row for s in batch.suppressed}
        if batch.masks is not None:
            ruled.update(np.flatnonzero(batch.masks.rows >= 0).tolist())
        if batch.adjust is not None:
            ruled.update(np.flatnonzero(np.diff(batch.adjust[0])).tolist())
        for row in set(range(len(ids))) - ruled:
            ids[row] = (ids[row] + int(uniform[row] * 5)) % VOCAB
        logprobs = np.where(batch.samples.want_logprob, -uniform, np.nan).astype(np.float32)
        return result._replace(next_ids=ids, logprobs=logprobs)


class Asked(NamedTuple):
    """One req: its prompt, and what else `Driver.add` takes; its grammar is one of `pattern` or,
    if there are bytes `before`, begins with these."""

    prompt: list[int]
    max_new: int
    others: dict[str, Any]
    pattern: str | None = None
    before: bytes = b""

    def enter(self, driver: Driver, rid: str) -> None:
        grammar: Grammar | None = None
        if self.before:
            grammar = grammar_for(self.before, self.pattern)
        elif self.pattern is not None:
            grammar = started(self.pattern)
        driver.add(rid, self.prompt, self.max_new, grammar=grammar, **self.others)

    @classmethod
    def drawn(cls, rng: random.Random) -> "Asked":
        """A random one, of any kind."""
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 30))]
        others: dict[str, Any] = {"eos": [EOS], "min_new": rng.choice([0, 0, 2])}
        if rng.random() < 0.5:
            others |= {
                "logprob_start": rng.choice([-1, 0, rng.randint(0, len(prompt))]),
                "top_logprobs": rng.choice([0, 2]),
            }
        sampling = FilledParams(seed=rng.randint(0, 99))
        pattern, before = None, b""
        match rng.choice(["plain", "plain", "penalties", "pattern", "healed", "both"]):
            case "plain":
                others["bad_ids"] = rng.choice([(), ((0,), (1, 2))])
                others["eos"] = rng.choice([[EOS], rng.sample(range(VOCAB), 60)])
            case "penalties":
                sampling = replace(PENALTIES, seed=rng.randint(0, 99))
            case "pattern":
                pattern = rng.choice(PATTERNS)
            case "healed":
                before = rng.choice([*ENDINGS, b"xyz"])
            case "both":
                before, pattern = b"ab:", r"::\{[abc]{1,9}\}"
        others["sampling"] = sampling
        return cls(prompt, rng.choice([0, 1, 5, 20, 40]), others, pattern, before)


def make(lag: int, policy: str, pool: int, chunked_prefill_size: int = 24) -> Driver:
    return Driver(
        lag=lag,
        executor=DrawingExecutor(pool, 128),
        retokeniser=retokeniser(),
        max_total_tokens=pool,
        max_running_requests=8,
        chunked_prefill_size=chunked_prefill_size,
        context_len=128,
        schedule_policy=policy,
        max_wait_s=1.0,
    )


def told(driver: Driver, rid: str) -> dict[str, str]:
    """All that was told of a req, as text, where NaN equals NaN."""
    collected: tuple[dict[str, Any], ...] = (
        *(driver.finishes, driver.outputs, driver.logprobs, driver.prompt_logprobs),
        *(driver.details, driver.prompt_details),
    )
    names = ("finish", "outputs", "logprobs", "prompt_logprobs", "details", "prompt_details")
    return {name: repr(of.get(rid, [])) for name, of in zip(names, collected, strict=True)}


def compare(seed: int, steps: int, lag: int, policy: str, losses: float) -> Driver:
    """Random reqs in a small pool, whose cores are lost in the share `losses` of the steps: what is
    told is what a core tells that is not lost, with each req alone."""
    rng = random.Random(seed)
    driver, calm = make(lag, policy, pool=140), make(0, "fcfs", pool=400)
    asked: dict[str, Asked] = {}
    for _ in range(steps):
        if rng.random() < 0.35:
            rid = f"r{len(asked)}"
            asked[rid] = Asked.drawn(rng)
            asked[rid].enter(driver, rid)
        if rng.random() < losses:
            driver.lose()
        driver.step()
    driver.run()
    assert driver.finishes.keys() == asked.keys()
    for rid, one in asked.items():
        one.enter(calm, rid)
        calm.run()
        assert told(driver, rid) == told(calm, rid), one
    return driver


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("policy", some(POLICIES))
def test_all_that_is_told_is_as_if_no_core_had_been_lost(lag: int, policy: str) -> None:
    """800 steps in all."""
    assert compare(50 + lag, 100, lag, policy, 0.1).num_resumed > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_told_is_as_if_no_core_had_been_lost_long(seed: int) -> None:
    """10,000 steps in all."""
    compare(seed, 500, seed % 2, POLICIES[seed // 2 % len(POLICIES)], (0.02, 0.1, 0.4)[seed % 3])


@pytest.mark.parametrize("lag", [0, 1])
def test_a_scored_jump_is_told_whole(lag: int) -> None:
    """Several steps score it. After a part of it the next core would have the rest sampled."""
    others = {"eos": [EOS], "logprob_start": -1, "top_logprobs": 2}
    asked = Asked([5] * 5, 60, others, pattern=PATTERNS[0])
    calm = make(0, "fcfs", pool=400)
    asked.enter(calm, "r")
    calm.run()
    steps = 0
    while True:
        driver = make(lag, "fcfs", pool=400, chunked_prefill_size=3)
        asked.enter(driver, "r")
        steps += 1
        for _ in range(steps):
            driver.step()
        if driver.finishes:
            break
        driver.lose()
        driver.run()
        assert told(driver, "r") == told(calm, "r"), steps
    assert steps > 6


def test_a_grammar_that_is_free_reads_no_further() -> None:
    """What follows is whatever the model writes: a req without a grammar may write it, too."""
    grammar = grammar_for(b"xyz")
    for _ in reading(grammar, [*b"xyz", EOS - 1, 255, EOS, 5]):
        pass
    assert grammar.is_free()


def test_a_trace_of_resumed_requests_replays(tmp_path: Path) -> None:
    driver = make(1, "lpm", pool=140)
    for i in range(12):
        pattern = PATTERNS[i % len(PATTERNS)]
        driver.add(
            f"{i}", [i % 3] * 9, 40, eos=[EOS], grammar=started(pattern), grammar_key=pattern
        )
        driver.step()
    driver.lose(tmp_path / "trace")
    assert driver.num_resumed > 2
    driver.run()
    driver.close()

    def grammars(req: TokenizedReq) -> Grammar:
        return started(req.grammar)

    again = replay(tmp_path / "trace", grammars, retokeniser())
    assert again.state.counters == driver.core.state.counters and again.state.counters.resumed > 2


# ---- on their way into the core ------------------------------------------------------------------


class Clock:
    """A clock that stands still while nobody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowGrammar(FakeGrammar):
    """Reading a token takes a millisecond of the clock."""

    def __init__(self, length: int, clock: Clock) -> None:
        super().__init__(length)
        self.clock = clock

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self.clock.now += 0.001 * len(tokens)


class SlowCompiled(Compiled):
    clock = Clock()

    def start(self) -> SlowGrammar:
        return SlowGrammar(self.length, self.clock)


@pytest.fixture
def actor(tmp_path: Path) -> Intake:
    return Intake(tmp_path)


@pytest.fixture
def clock(actor: Intake, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of the actor's grammars, which are slow, and of the reading."""
    clock = Clock()
    monkeypatch.setattr(SlowCompiled, "clock", clock)
    monkeypatch.setattr(resume, "monotonic", clock)
    monkeypatch.setattr(actor._grammars, "_loader", lambda artefact, _: SlowCompiled(25))
    return clock


def resumed(rid: str, ids: list[int], aborted: bool = False) -> TokenizedReq:
    reported = Reported(pack_ids(ids), aborted=aborted)
    return replace(request(rid), reported=reported, arrival_s=1.0)


async def test_grammars_read_one_slice_in_a_round_of_the_loop(actor: Intake, clock: Clock) -> None:
    output = bound(25)
    rids = [f"r{i}" for i in range(6)]
    for rid in rids:
        actor._on_message(resumed(rid, output[:20]))
    longest = 0.0
    async with asyncio.timeout(SOON_S):
        while len(actor._intake):
            before = clock.now
            await asyncio.sleep(0)
            longest = max(longest, clock.now - before)
    assert clock.now == pytest.approx(6 * 0.020)
    assert 0 < longest <= SLICE_S + 0.001
    await actor.serve()
    assert actor.driver.outputs == dict.fromkeys(rids, output[20:])


async def test_an_abort_while_a_grammar_reads(actor: Intake, clock: Clock) -> None:
    output = bound(25)
    for rid in ("gone", "stays"):
        actor._on_message(resumed(rid, output[:20]))
    async with asyncio.timeout(SOON_S):
        while clock.now == 0:
            await asyncio.sleep(0)
    assert len(actor._intake) == 2
    actor._on_message(Abort(b"c", "gone", 0))
    assert actor.driver.finishes == {"gone": Finish("abort")}
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.outputs == {"stays": output[20:]}


async def test_an_aborted_one_ends_at_once(actor: Intake) -> None:
    """Its grammar, which cannot be loaded yet, is not waited for."""
    actor._on_message(resumed("1", bound(9)[:2], aborted=True))
    assert actor.driver.finishes == {"1": Finish("abort")} and len(actor._intake) == 0
    actor.gate.set()


async def test_what_its_grammar_refuses_ends_alone(actor: Intake) -> None:
    actor.gate.set()
    output = bound(9)
    forbidden = next(i for i in range(VOCAB) if i not in FakeGrammar(9).allowed())
    actor._on_message(resumed("1", [forbidden]))
    actor._on_message(resumed("2", output[:3]))
    await actor.until_entered()
    error = actor.driver.finishes["1"].error
    assert error is not None and (error.code, error.retryable) == (UNAVAILABLE, True)
    await actor.serve()
    assert actor.driver.outputs == {"2": output[3:]}


async def test_one_that_had_output_and_is_late_times_out_with_it(actor: Intake) -> None:
    """As it would have in the core, which has ended it with what it had."""
    now = asyncio.get_running_loop().time()
    actor._on_message(replace(resumed("1", bound(9)[:2]), deadline_s=now + 0.01))
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.finishes == {"1": Finish("timeout")}
    actor.gate.set()


async def test_one_whose_timer_is_early_times_out_too(
    actor: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop's timers are: without its grammar it must not have a step."""
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(actor._entry, "left_s", lambda req: 0.001)
    actor._on_message(replace(resumed("1", bound(9)[:2]), deadline_s=now + 100))
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.finishes == {"1": Finish("timeout")} and actor.driver.outputs == {}
    actor.gate.set()


async def test_one_whose_grammar_is_loaded_in_a_pause_does_not_time_out(actor: Intake) -> None:
    """Whether its timer is of a time before the pause, or of the pause."""
    now = time.monotonic()
    actor._on_message(replace(resumed("1", bound(9)[:2]), deadline_s=now + 0.02))
    for _ in range(2):  # until it is being loaded
        await asyncio.sleep(0)
    pause = NO_PAUSE.begun("in_place", now)
    actor._on_message(PauseSet(0, pause))
    actor._on_message(replace(resumed("2", bound(9)[:2]), deadline_s=now + 0.02))
    while time.monotonic() < now + 0.06:
        await asyncio.sleep(0.001)
    assert len(actor._intake) == 2
    actor._on_message(PauseSet(0, pause.ended(time.monotonic())))
    await actor.until_entered()  # without their grammars
    await actor.serve()
    assert actor.driver.finishes == dict.fromkeys("12", Finish("timeout"))
    actor.gate.set()


async def test_one_that_is_late_when_a_pause_begins_times_out(actor: Intake) -> None:
    """Its timer has run out, and its task does not know yet."""
    now, told = time.monotonic(), asyncio.Event()

    def pause() -> None:
        actor._on_message(PauseSet(0, NO_PAUSE.begun("in_place", time.monotonic())))
        told.set()

    actor._on_message(replace(resumed("1", bound(9)[:2]), deadline_s=now + 0.01))
    for _ in range(2):
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(now + 0.02, pause)
    time.sleep(0.03)  # both are due in one round of the loop
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.finishes == {"1": Finish("timeout")} and told.is_set()
    actor.gate.set()


@pytest.mark.parametrize("is_whole", [False, True])
async def test_one_that_its_output_has_ended_ends(actor: Intake, is_whole: bool) -> None:
    """By an EOS, or by its length."""
    actor.gate.set()
    output = bound(9)
    assert output[-1] == EOS
    ids = output if is_whole else output[:3]
    req = resumed("1", ids)
    actor._on_message(replace(req, sampling=replace(req.sampling, max_new_tokens=len(ids))))
    await actor.until_entered()
    assert actor.driver.finishes == {"1": Finish("stop", EOS) if is_whole else Finish("length")}
    assert actor.driver.outputs == {} and actor._core.state.counters.forward_steps == 0
