"""Suspects are tried alone, whatever the traffic, and nobody is lost or stands still for it."""

import random
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import Step
from scheduler_proc.trace.recorded import replay
from srt.ring.crash_file import Name
from srt.wire.filled_params import FilledParams
from tests.running.profiles import seeds
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.media.pictures import numbers_of

POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "app")


def name(rid: str) -> Name:
    return b"c", rid


class Watched:
    """A driver, and for each step that it ran its rows: rid, whether it was a suspect then, whether
    it decodes."""

    def __init__(self, suspects: list[str], **config: Any) -> None:
        self.driver = Driver(**config)
        self.driver.core.suspect([name(rid) for rid in suspects])
        self.steps: list[list[tuple[str, bool, bool]]] = []
        commit = self.driver.core.commit

        def committed(step: Step, result: StepResult) -> None:
            keys = self.driver.core.state.trials.suspects
            rows = [(r.req.key[1], r.req.key in keys, r.is_decode) for r in step.rows]
            self.steps.append(rows)
            commit(step, result)

        self.driver.core.commit = committed  # type: ignore[method-assign]

    def check(self) -> None:
        """Suspects have steps to themselves, each until its first decode, one after the other."""
        for rows in self.steps:
            assert len(rows) == 1 or not any(suspect for _, suspect, _ in rows)
        for rid in {rid for rows in self.steps for rid, suspect, _ in rows if suspect}:
            decodes = [decode for rows in self.steps for r, s, decode in rows if r == rid and s]
            assert decodes.count(True) <= 1 and not any(decodes[:-1])


@pytest.mark.parametrize("speculative", ["off", "own"])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_trial_is_the_prompt_and_one_decode(lag: int, speculative: str) -> None:
    """That which waits for what may be guessed beside it too."""
    sizes = {"max_total_tokens": 400, "chunked_prefill_size": 16}
    watched = Watched(["a", "c"], lag=lag, speculative=speculative, **sizes)
    prompts = {rid: [i, *range(39)] for i, rid in enumerate("abc")}
    for rid, prompt in prompts.items():
        watched.driver.add(rid, prompt, 5)
    watched.driver.run()
    watched.check()
    trials = [rows for rows in watched.steps if rows[0][1]]
    assert trials[:4] == [[("a", True, False)]] * 3 + [[("a", True, True)]]
    assert [rows[0][0] for rows in trials[4:]] == ["c"] * 4
    assert ["b" in [rid for rid, _, _ in rows] for rows in watched.steps[:8]] == [False, True] * 4
    assert watched.driver.outputs == {r: reference_output(p, 5) for r, p in prompts.items()}
    assert watched.driver.core.state.trials.suspects == frozenset()


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_comes_late_has_steps_in_turn_with_the_others(lag: int) -> None:
    watched = Watched(["late", "never"], lag=lag, max_total_tokens=400)
    watched.driver.add("a", range(10), 40)
    for _ in range(5):
        watched.driver.step()
    before = len(watched.steps)
    watched.driver.add("late", range(50, 60), 40)
    watched.driver.run()
    watched.check()
    alone = [rows for rows in watched.steps[before:] if rows[0][1]]
    assert alone == [[("late", True, False)], [("late", True, True)]]
    between = watched.steps[watched.steps.index(alone[0]) + 1]
    assert [rid for rid, _, _ in between] == ["a"]
    assert watched.driver.core.state.trials.suspects == {name("never")}


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_has_no_room_waits_while_others_go_on_and_nobody_else_enters(lag: int) -> None:
    watched = Watched(["big"], lag=lag, max_total_tokens=100)
    watched.driver.add("a", range(30), 40)
    for _ in range(3):
        watched.driver.step()
    watched.driver.add("big", range(200, 290), 5)
    watched.driver.add("small", range(20), 5)  # cached, and so the policy's first
    watched.driver.run()
    watched.check()
    order = [rid for rows in watched.steps for rid, _, _ in rows]
    assert order.index("big") > max(i for i, rid in enumerate(order) if rid == "a")
    assert order.index("small") > order.index("big")


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_waits_for_a_prefix_lets_nobody_else_enter(lag: int) -> None:
    watched = Watched(["same"], lag=lag, max_total_tokens=400, chunked_prefill_size=16)
    watched.driver.add("a", range(60), 20)
    watched.driver.step()
    watched.driver.add("same", [*range(60), 5], 5)
    watched.driver.add("other", range(200, 205), 5)
    watched.driver.run()
    watched.check()
    order = [rid for rows in watched.steps for rid, _, _ in rows]
    assert order[:4] == ["a"] * 4 and order.index("other") > order.index("same")
    assert watched.driver.cached["same"] >= 48


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_ends_before_its_trial_is_forgotten(lag: int) -> None:
    watched = Watched(["a", "b"], lag=lag, max_total_tokens=400)
    for rid in "abc":
        watched.driver.add(rid, [*range(9), ord(rid)], 8)
    watched.driver.abort("b")
    watched.driver.run()
    watched.check()
    assert watched.driver.core.state.trials.suspects == frozenset()
    assert watched.driver.finishes["b"].type == "abort"


def test_one_that_is_refused_when_it_comes_is_forgotten() -> None:
    watched = Watched(["picture", "b"], max_total_tokens=400)
    watched.driver.add("picture", [1, *numbers_of(3)], 1)
    watched.driver.run()
    finish = watched.driver.finishes["picture"]
    assert finish.error is not None and "sees no images" in finish.error.reason
    trials = watched.driver.core.state.trials
    assert (trials.suspects, trials.cleared) == (frozenset([name("b")]), [name("picture")])


def test_a_new_epoch_forgets_them() -> None:
    watched = Watched(["a", "b"], max_total_tokens=400)
    watched.driver.add("a", range(9), 8)
    watched.driver.step()
    watched.driver.core.reset(2)
    assert watched.driver.core.state.trials.suspects == frozenset()
    assert watched.driver.core.state.trials.next is None


class Raising(FakeExecutor):
    """Fails one step in ten."""

    def run(self, batch: ForwardBatch) -> StepResult:
        if (self.steps + 1) % 10 == 0 and batch.num_rows > 1:
            self.steps += 1
            raise RuntimeError("made to fail")
        return super().run(batch)


@pytest.mark.parametrize("seed", seeds(4))
def test_random_traffic(tmp_path: Path, seed: int) -> None:
    """Small pools, so that suspects wait for memory and are retracted; grammars, chunks, aborts,
    scores, failed steps. All get what they would have got, and a trace of it replays."""
    rng = random.Random(seed)
    rids = [f"r{i}" for i in range(60)]
    pool = rng.choice([120, 200, 400])
    watched = Watched(
        rng.sample(rids, 25),
        lag=(seed + seed // 4) % 2,
        executor=Raising(pool, 4096),
        trace=tmp_path / "trace",
        max_total_tokens=pool,
        max_running_requests=rng.choice([3, 8]),
        chunked_prefill_size=rng.choice([8, 32]),
        schedule_policy=POLICIES[seed % len(POLICIES)],
    )
    driver, expected, aborted = watched.driver, {}, set()
    for rid in rids:
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 50))]
        max_new = rng.randint(0, 40)
        if rng.random() < 0.3:
            grammar = FakeGrammar(rng.randint(1, 20))
            key = str(grammar.length)
            driver.add(
                rid,
                prompt,
                max_new,
                eos=[EOS],
                grammar=FakeGrammar(grammar.length),
                grammar_key=key,
            )
            expected[rid] = reference_output(prompt, max_new, frozenset([EOS]), grammar=grammar)
        else:
            sampling = FilledParams(frequency_penalty=rng.choice([0.0, 0.5]))
            start = rng.choice([None, 0]) if max_new else 0
            driver.add(rid, prompt, max_new, sampling=sampling, logprob_start=start)
            expected[rid] = reference_output(prompt, max_new, sampling=sampling)
        for _ in range(rng.choice([0, 0, 1, 5])):
            driver.step()
        if rng.random() < 0.1:
            aborted.add(victim := rng.choice(rids))
            driver.abort(victim)
    driver.run()
    watched.check()
    for rid in rids:
        output = driver.outputs.get(rid, [])
        assert output == (expected[rid][: len(output)] if rid in aborted else expected[rid])
    assert driver.core.state.trials.suspects == frozenset()
    driver.close()
    again = replay(tmp_path / "trace", lambda wire: FakeGrammar(int(wire.grammar)))
    assert again.state.counters == driver.core.state.counters
