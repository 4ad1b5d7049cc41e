"""Random traffic against the scheduler core, with all invariants checked after every step.

The reference is a simple one: whatever the batching, caching, chunking, eviction and retraction,
each req yields `reference_output` of its own prompt, or ends by its abort.
"""

import math
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.crash.recovery import UnclearFailure
from scheduler_proc.media.spans import MediaFacts
from srt.wire.errors import BAD_REQUEST, INTERNAL, ErrorInfo
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints, PerfClass
from srt.wire.pause import PAUSE_MODES
from srt.wire.ring_messages import Abort
from tests.running.profiles import seeds
from tests.scheduler_proc.core.drafting.knowing import Knowing
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import (
    VOCAB,
    Detail,
    detail_at,
    next_hash,
    reference_output,
)
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.media.pictures import GRIDS, numbers_of, plain, spans_of, whole

CAUSAL = MediaFacts(1, sees_both_ways=False, has_grid_positions=False)
BOTH_WAYS, GRID = (CAUSAL._replace(sees_both_ways=True), CAUSAL._replace(has_grid_positions=True))
POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "app")


class Wishes(NamedTuple):
    """How a req wants to be sampled, and what it wants to have reported."""

    sampling: FilledParams = FilledParams()
    bad_ids: tuple[tuple[int, ...], ...] = ()
    logprob_start: int | None = None
    top_logprobs: int = 0
    logprob_ids: tuple[int, ...] = ()

    @classmethod
    def drawn(cls, rng: random.Random) -> "Wishes":
        """Random wishes, with a few tokens so likely that they repeat and counts matter."""
        likely = rng.sample(range(1000), 6)
        bias = {token: rng.choice([18.0, 19.5, 20.0]) for token in likely}
        sampling = FilledParams(
            frequency_penalty=rng.choice([0.0, 0.0, 0.5, 1.75, -0.25]),
            presence_penalty=rng.choice([0.0, 0.0, 1.5, -1.0]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.5, 0.75]),
            logit_bias=rng.choice([bias, bias, {}]),
            allowed_token_ids=rng.choice([None] * 5 + [likely, likely[:2], list(range(0, 999, 5))]),
        )
        lengths = rng.choice([(), (1, 1), (1, 2, 2, 3, 4), (2, 2, 2, 2, 3, 3)])
        bad_ids = tuple(tuple(rng.choices(likely, k=length)) for length in lengths)
        if rng.random() < 0.25:  # if only these two are allowed, none is left after one
            bad_ids = tuple(product(likely[:2], repeat=2))
        return cls(sampling, bad_ids)

    def with_details(self, rng: random.Random, prompt_len: int) -> "Wishes":
        start = rng.choice([None, 0, rng.randint(0, prompt_len)])
        num_top, ids = rng.choice([(0, ()), (1, ()), (5, ()), (0, (3, 3)), (2, (7, 999, 0))])
        return self._replace(logprob_start=start, top_logprobs=num_top, logprob_ids=ids)


class Asked(NamedTuple):
    """One req: its prompt, limits, stop ids, the length of its grammar (None: none), and more."""

    prompt: list[int]
    max_new: int
    stop: frozenset[int]
    min_new: int
    grammar_len: int | None
    wishes: Wishes = Wishes()

    @property
    def grammar(self) -> FakeGrammar | None:
        return None if self.grammar_len is None else FakeGrammar(self.grammar_len)

    @property
    def output(self) -> list[int]:
        return reference_output(
            self.prompt,
            self.max_new,
            self.stop,
            self.min_new,
            self.grammar,
            self.wishes.sampling,
            self.wishes.bad_ids,
        )

    def details(self, output: list[int]) -> list[Detail]:
        """The expected details at each position of prompt and output."""
        num_top, ids = self.wishes.top_logprobs, self.wishes.logprob_ids
        details = [Detail([0] * num_top, [math.nan] * num_top, [math.nan] * len(ids))]
        prefix_hash = 0
        for token in self.prompt + output:
            prefix_hash = next_hash(prefix_hash, token)
            details.append(detail_at(prefix_hash, num_top, ids))
        return details[:-1]


class Traffic:
    """Random arrivals and aborts over prompts that share prefixes of every length."""

    def __init__(
        self,
        seed: int,
        driver: Driver,
        constrained: float = 0.0,
        wishing: float = 0.0,
        truth: dict[str, list[int]] | None = None,
    ) -> None:
        self.truth = {} if truth is None else truth  # each req's output, if nobody aborts it
        self.constrained = constrained  # the share of reqs with a grammar
        self.wishing = wishing  # the share of those with penalties, bad ids, details ...
        self.losses = 0.0  # of the core, for each turn
        self.showing = 0.0  # the share of reqs that show further pictures
        self.pausing = 0.0  # the share of turns in which a pause begins, or changes its mode
        self.measuring = 0.0  # the share of turns in which the costs of steps change
        self.callers: Sequence[str] = ("",)  # those by whom reqs come
        self.hinting = 0.0  # the share of reqs with hints
        self.decoding = 0.0  # the share of reqs with a short prompt and a long output
        self.num_left_out = 0  # rows that were not in steps that they could have been in
        self.classing = 0.0  # the share of reqs with a class or a priority
        self.ahead = 0.0  # the share of turns in which a prompt is to be computed ahead
        self.num_ahead = 0
        self.rng = random.Random(seed)
        self.driver = driver
        self.asked: dict[str, Asked] = {}
        self.aborted: set[str] = set()
        self.history: list[list[int]] = [[]]
        self.num_failed = 0  # reqs whose step could not be computed
        self.num_unseen = 0  # reqs one of whose pictures could not be had
        self.num_stuck = 0  # reqs that ended because nothing was left to them
        self.num_flushes = 0  # in pauses

    def arrive(self) -> None:
        rng, rid = self.rng, f"r{len(self.asked)}"
        prompt = list(rng.choice(self.history[-20:]))
        prompt = prompt[: rng.randint(0, len(prompt))]
        prompt += [rng.randint(0, 3) for _ in range(rng.randint(1, 30))]
        if rng.random() < self.showing:
            for _ in range(rng.choice([1, 1, 2, 3])):
                at = rng.randint(0, len(prompt))
                prompt[at:at] = numbers_of(rng.choice([*GRIDS]))
        prompt = whole(prompt[-100:])
        prompt = prompt or [0]
        max_new = rng.choice([0, 1, 2, 5, 20, 40])
        if self.decoding and rng.random() < self.decoding:
            prompt, max_new = [rng.randint(0, 3) for _ in range(4)], rng.choice([40, 60])
        stop = frozenset(rng.sample(range(1000), 100)) if rng.random() < 0.3 else frozenset()
        min_new = min(max_new, rng.randint(0, 3))
        wishes = Wishes.drawn(rng) if rng.random() < self.wishing else Wishes()
        if rng.random() < 0.5:
            wishes = wishes.with_details(rng, len(prompt))
        asked = Asked(prompt, max_new, stop, min_new, None, wishes)
        if rng.random() < self.constrained:
            length = rng.randint(0, 25)
            asked = Asked(prompt, max_new, frozenset([EOS]), min_new, length, wishes)
        self.asked[rid] = asked
        self.truth[rid] = asked.output
        self.driver.add(
            rid,
            prompt,
            max_new,
            salt=rng.choice(["", "", "", "tenant"]),
            eos=asked.stop,
            min_new=min_new,
            grammar=asked.grammar,
            caller=rng.choice(self.callers) if len(self.callers) > 1 else "",
            weight=rng.choice([0.1, 1.0, 3.0]) if len(self.callers) > 1 else 1.0,
            hints=self.hints(),
            **self.order(),
            **wishes._asdict(),
        )
        self.history.append(prompt + self.truth[rid])

    @property
    def num_ahead_done(self) -> int:
        """Prompts that were computed ahead of time as a whole."""
        return sum(self.driver.finishes[name].type == "length" for name in self.ahead_names)

    @property
    def ahead_names(self) -> list[str]:
        return [f"ahead{number}" for number in range(self.num_ahead)]

    def come_ahead(self, prompt: list[int]) -> None:
        """A part of a prompt is to be computed ahead of time."""
        part = prompt[: self.rng.randint(1, len(prompt))]
        if part == plain(part):
            hints, caller = Hints(is_ahead=True), self.rng.choice(self.callers)
            self.driver.add(f"ahead{self.num_ahead}", part, 0, hints=hints, caller=caller)
            self.num_ahead += 1

    def hints(self) -> Hints | None:
        """Of most requests, where the policy reads them."""
        rng = self.rng
        if not self.hinting or rng.random() >= self.hinting:
            return None
        now = self.driver.now
        classes: list[PerfClass] = ["", "latency", "throughput", "throughput"]
        perf = rng.choice(classes)
        return Hints(
            app=rng.choice(["a", "b", "c"]),
            perf=perf,
            tpot_ms=rng.choice([0.0, 0.1, 4.0]) if perf == "latency" else 0.0,
            group=rng.choice(["", "g"]),
            depth=rng.randrange(4),
            arrival_s=max(0.01, now - rng.random()),
            due_s=rng.choice([0.0, now + rng.random()]),
        )

    def order(self) -> dict[str, Any]:
        """A class and a priority."""
        rng = self.rng
        if not self.classing or rng.random() >= self.classing:
            return {}
        tier = rng.choice(["", "flex", "flex", "default", "priority"])
        return {"tier": tier, "priority": rng.choice([0, 0, -1, 1, 5])}

    def turn(self) -> None:
        if self.rng.random() < 0.35:
            for _ in range(self.rng.choice([1, 1, 2, 8])):
                self.arrive()
        if self.ahead and self.rng.random() < self.ahead:
            self.come_ahead(self.rng.choice(self.history)[-40:] or [0])
        if self.rng.random() < 0.02:
            self.abort_one()
        if self.rng.random() < self.losses:
            self.driver.lose()
        if self.pausing and self.rng.random() < self.pausing:
            self.pause()
        if self.measuring and self.rng.random() < self.measuring:
            self.measure()
        self.driver.step()
        self.num_left_out += len(self.driver.core._planner._shares.newest.left_out)
        if self.driver.pause.is_on:
            self.rest()

    def measure(self) -> None:
        """Tell the core of steps in which guesses are cheap, dear or something between."""
        rng = self.rng
        token_s, draft_s = 0.001 * rng.choice([0.3, 1.0, 4.0]), 0.001 * rng.choice([0.0, 0.2, 2.0])
        drafting_s = 0.001 * rng.choice([0.0, 0.5, 5.0])
        self.driver.core.measure(StepCosts(0.004, 0.001, token_s, draft_s, drafting_s))

    def pause(self) -> None:
        """Pause in one of the modes, or go on."""
        mode = self.rng.choice([*PAUSE_MODES, None, None])
        if mode == "abort":
            self.aborted |= self.asked.keys() - self.driver.finishes.keys()
        self.driver.pause_in(mode)

    def rest(self) -> None:
        """In a pause a step that was prepared ends, and no other begins; the cache can be emptied
        as soon as nothing runs."""
        core, steps = self.driver.core, self.driver.core.state.counters.forward_steps
        self.driver.step()
        self.driver.step()
        running = len(core.state.running)
        assert core.state.counters.forward_steps == steps
        assert running == 0 or self.driver.pause.mode != "retract"
        if self.rng.random() < 0.5:
            self.num_flushes += (flushed := core.flush_cache())
            assert flushed == (running == 0)
            assert not flushed or core.state.memory.pool.free_size == core.config.max_total_tokens

    def meddle(self) -> None:
        """Messages also come while a prepared step waits for the one before it."""
        if self.rng.random() < 0.02:
            self.abort_one()
        if self.rng.random() < 0.02:
            self.arrive()

    def abort_one(self) -> None:
        live = [rid for rid in self.asked if rid not in self.driver.finishes]
        if live:
            rid = self.rng.choice(live)
            self.driver.abort(rid)
            self.aborted.add(rid)

    def check(self) -> None:
        all_names = {*self.asked, *self.ahead_names}
        assert set(self.driver.finishes) == all_names, "every req ends exactly once"
        for rid, asked in self.asked.items():
            expected = asked.output
            got = self.driver.outputs.get(rid, [])
            finish = self.driver.finishes[rid]
            is_stopped = bool(got) and got[-1] in asked.stop
            is_stuck = len(expected) < asked.max_new and not is_stopped
            self.check_details(rid, asked)
            if finish.type != "abort":
                assert got == expected and not is_stuck
                assert finish.type == ("stop" if is_stopped else "length")
                continue
            assert got == expected[: len(got)]
            if finish.error is None:
                assert rid in self.aborted
            elif finish.error.message == "no picture":
                assert spans_of(asked.prompt)
                self.num_unseen += 1
            elif finish.error.code == BAD_REQUEST:
                assert got == expected and is_stuck
                self.num_stuck += 1
            else:
                assert "failed on this request's step" in finish.error.message
                self.num_failed += 1
                if poison := self.driver.executor.poison:
                    assert poison & {*asked.prompt, *got}, "another's row ended this req"

    def end_each(self, failure: UnclearFailure) -> None:
        """End those that have failed together, as a scheduler that tries each alone would."""
        for name in failure.names:
            error = ErrorInfo(INTERNAL, "alone it failed on this request's step")
            self.driver.core.abort(Abort(*name, 0), error)

    def check_details(self, rid: str, asked: Asked) -> None:
        """Check all log-probabilities that were sent, at each position that was asked for."""
        wishes, driver = asked.wishes, self.driver
        output = driver.details.get(rid, [])
        prompt = driver.prompt_details.get(rid, [])
        if wishes.logprob_start is None or not (wishes.top_logprobs or wishes.logprob_ids):
            assert output == prompt == []
            return
        assert len(output) == len(driver.outputs.get(rid, []))
        assert len(prompt) == len(driver.prompt_logprobs.get(rid, []))
        if driver.finishes[rid].type != "abort":
            assert len(prompt) == len(asked.prompt) - wishes.logprob_start
        expected = asked.details(driver.outputs.get(rid, []))
        assert output == expected[len(asked.prompt) :]
        stop = wishes.logprob_start + len(prompt)
        assert repr(prompt) == repr(expected[wishes.logprob_start : stop])  # NaN != NaN


def drive(
    seed: int,
    steps: int,
    lag: int,
    policy: str,
    pool: int,
    constrained: float = 0.0,
    wishing: float = 0.0,
    poison: frozenset[int] = frozenset(),
    losses: float = 0.0,
    showing: float = 0.0,
    right: float | None = None,
    pausing: float = 0.0,
    measuring: float = 0.0,
    callers: Sequence[str] = ("",),
    hinting: float = 0.0,
    decoding: float = 0.0,
    classing: float = 0.0,
    ahead: float = 0.0,
    **config: Any,
) -> Traffic:
    """Random traffic of these callers, in which the core is lost in the share `losses` of the
    turns, pauses change in `pausing`, costs in `measuring`; `showing` of the reqs show new
    pictures, `hinting` have hints and `classing` a class or a priority; in `ahead` of the turns a
    prompt is to be computed ahead of time. Tokens are guessed, of which the share `right` is right.
    Rows that read a token of `poison` fail; if it is empty, some steps do, and some encodes."""
    truth: dict[str, list[int]] = {}
    guesses = [] if right is None else [Knowing(truth.__getitem__, right, seed, VOCAB)]
    driver = Driver(
        lag=lag,
        sources=guesses,
        max_total_tokens=pool,
        max_running_requests=12,
        chunked_prefill_size=24,
        schedule_policy=policy,
        max_wait_s=1.0,
        context_len=256,
        random_seed=seed,
        **config,
    )
    traffic = Traffic(seed, driver, constrained, wishing, truth)
    driver.between = traffic.meddle
    traffic.losses, traffic.showing, traffic.pausing = losses, showing, pausing
    traffic.measuring, traffic.hinting, traffic.ahead = measuring, hinting, ahead
    traffic.callers, traffic.classing, traffic.decoding = callers, classing, decoding
    if showing:
        driver.encode_fails = lambda: traffic.rng.random() < 0.04
        driver.delays = lambda: traffic.rng.random() < 0.5
        driver.pauses = lambda: traffic.rng.random() < 0.3
    if poison:
        driver.executor.poison = poison
        driver.unclear = traffic.end_each
    else:
        driver.fails = lambda: traffic.rng.random() < 0.01
    for _ in range(steps):
        traffic.turn()
    driver.between = lambda: None
    driver.pause_in(None)
    driver.run()
    traffic.check()
    cached = driver.core.state.memory.cache.evictable_size
    assert driver.core.state.memory.pool.free_size + cached == pool, "slots leaked"
    return traffic


def forms(seed: int, *choices: Sequence[Any]) -> list[Any]:
    """One of each of the choices. Consecutive seeds take all combinations."""
    found = []
    for choice in choices:
        found.append(choice[seed % len(choice)])
        seed //= len(choice)
    return found


@pytest.mark.parametrize("seed", seeds(4))
def test_random_traffic_keeps_the_books_and_the_outputs(seed: int) -> None:
    """200 turns each in a pool so small that evictions and retractions occur."""
    policy, flip = forms(seed, POLICIES, (0, 1))
    lag = (seed + flip) % 2
    core = drive(7 + seed, steps=200, lag=lag, policy=policy, pool=220).driver.core
    if seed < 4:  # others may bring about less
        assert core.state.counters.retracted > 0 and core.state.memory.cache.evicted_total > 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_hints(seed: int) -> None:
    """They change the order, and no output."""
    right, callers = (None, ("",)) if seed % 4 < 2 else (0.7, ("a", "b"))
    more: dict[str, Any] = {"right": right, "callers": callers, "fair_wait_s": 0.05}
    more |= {"constrained": 0.2, "hinting": 0.9, "losses": 0.02, "measuring": 0.3}
    more |= {"decoding": 0.7, "classing": 0.2}
    traffic = drive(72 + seed, 150, (seed + 1) % 2, "app", 220, **more)
    assert seed > 0 or (traffic.driver.num_resumed > 0 and traffic.num_left_out > 20)


@pytest.mark.parametrize("seed", seeds(2))
def test_random_traffic_with_classes(seed: int) -> None:
    """They change the order, and no output, with pictures, grammars, guesses, losses and pauses."""
    lag, policy = seed % 2, POLICIES[seed % len(POLICIES)]
    more: dict[str, Any] = {"constrained": 0.2, "losses": 0.02, "pausing": 0.02, "measuring": 0.05}
    more |= {"right": 0.7, "ahead": 0.05, "callers": ("a", "b"), "fair_wait_s": 0.2}
    traffic = drive(91 + seed, 200, lag, policy, 220, hinting=0.3, classing=0.7, **more)
    assert seed > 0 or traffic.driver.core.state.counters.retracted > 0


@pytest.mark.parametrize("seed", seeds(2))
def test_without_hints_a_trace_is_that_of_lpm(seed: int, tmp_path: Path) -> None:
    """Decision for decision: all that enters the core and all that it plans is the same."""
    traces = []
    for policy in ("lpm", "app"):
        path = tmp_path / policy
        mixed: dict[str, Any] = {"constrained": 0.2, "right": 0.7}
        more: dict[str, Any] = mixed if seed % 2 else {"measuring": 0.1}
        traffic = drive(81 + seed, 200, seed % 2, policy, 220, trace=path, **more)
        traffic.driver.close()
        traces.append(path.read_bytes())
        # Some later seeds bring about less.
        assert seed >= 2 or traffic.driver.core.state.counters.retracted > 0
    assert traces[0].count(b"lpm") == 1 and len(traces[0]) > 50_000
    assert traces[0].replace(b"lpm", b"app") == traces[1]


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_without_the_radix_cache(seed: int) -> None:
    traffic = drive(seed, 150, seed % 2, policy="lpm", pool=400, disable_radix_cache=True)
    assert traffic.driver.core.state.counters.cached_tokens == 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_grammars(seed: int) -> None:
    lag, constrained = forms(seed, (1, 0), (0.5, 1.0))
    traffic = drive(11 + seed, 250, lag, "lpm", pool=150, constrained=constrained)
    assert seed > 0 or traffic.driver.core.state.counters.retracted > 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_penalties_and_rules(seed: int) -> None:
    """Each req is sampled as if it were alone, and each position has its details, beside reqs that
    ask for nothing and keep running at lag 1."""
    lag, constrained = forms(seed, (1, 0), (0.3, 0.0))
    traffic = drive(17 + seed, 150, lag, "lpm", 170, constrained, wishing=0.7)
    if seed == 0:
        assert traffic.driver.core.state.counters.retracted > 0 and traffic.num_stuck > 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_poisoned_rows(seed: int) -> None:
    """A token of `poison` fails every step: the reqs that reach it end, and no others."""
    poison = frozenset(range(500, 506))
    lag, (constrained, wishing) = forms(seed, (1, 0), ((0.4, 0.5), (0.0, 0.0)))
    traffic = drive(23 + seed, 200, lag, "lpm", 200, constrained, wishing, poison)
    assert seed > 0 or traffic.num_failed > 3


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_outlives_its_cores(seed: int) -> None:
    """Each req goes on where a core was lost: the same outputs, details and ends."""
    policy, lag = forms(seed, POLICIES, (1, 0))
    traffic = drive(31 + seed, 125, lag, policy, 220, constrained=0.3, wishing=0.4, losses=0.1)
    assert seed > 0 or traffic.driver.num_resumed > 20


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_of_several_callers(seed: int) -> None:
    """Whoever gives way to whom, each req has the outputs that it has alone, and callers come and
    go with their reqs."""
    policy, lag, losses = forms(seed, POLICIES, (1, 0), (0.05, 0.0))
    traffic = drive(
        *(53 + seed, 100, lag, policy, 220),
        constrained=0.2,
        wishing=0.2,
        losses=losses,
        pausing=0.02,
        measuring=0.05,
        callers=["a", "a", "a", "b", "c"],
        fair_wait_s=0.02,
    )
    state = traffic.driver.core.state
    assert seed > 0 or state.counters.retracted > 0
    assert not state.waiting.callers and len(state.waiting.credits) <= 3


@pytest.mark.parametrize("seed", seeds(2))
def test_random_traffic_with_pauses(seed: int) -> None:
    """In all modes, with losses of the core and flushes meanwhile: the outputs of no pause."""
    policy, lag, right = forms(seed, POLICIES, (1, 0), (0.7, None))
    both: dict[str, Any] = {"media": BOTH_WAYS, "media_cache_bytes": 4000, "showing": 0.2}
    more = both if seed % 2 else {"constrained": 0.3, "wishing": 0.4}
    sizes = (41 + seed, 150, lag, policy, 220)
    traffic = drive(*sizes, losses=0.03, pausing=0.15, right=right, **more)
    assert seed > 1 or traffic.num_flushes > 3


@pytest.mark.parametrize("seed", seeds(3))
def test_random_traffic_with_pictures(seed: int) -> None:
    """No picture is taken for another, in an encoder cache that has room for a few, in which some
    encodes fail, and with cores that are lost."""
    facts = (CAUSAL, BOTH_WAYS, GRID)[seed % 3]
    traffic = drive(
        *(45 + seed, 250, (seed + 1) % 2, "lpm", 200, 0.2, 0.3),
        losses=0.01,
        showing=0.4,
        media=facts,
        media_cache_bytes=60,
    )
    core, executor = traffic.driver.core, traffic.driver.executor
    if seed < 3:
        assert traffic.num_unseen > 0 and executor.parts_encoded > 20
        assert core.state.counters.retracted > 0 and core.state.memory.cache.evicted_total > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_pictures_long(seed: int) -> None:
    rng = random.Random(seed)
    facts = (CAUSAL, BOTH_WAYS, GRID)[seed % 3]
    drive(
        *(seed, 1000, seed % 2, POLICIES[seed % 4], rng.choice([180, 300, 800]), 0.3, 0.5),
        losses=rng.choice([0.0, 0.01, 0.05]),
        showing=rng.choice([0.2, 0.8]),
        media=facts,
        media_cache_bytes=rng.choice([40, 60, 1000]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_outlives_its_cores_long(seed: int) -> None:
    rng = random.Random(seed)
    losses, pool = rng.choice([0.005, 0.03, 0.2]), rng.choice([145, 300, 800])
    drive(seed, 1000, seed % 2, POLICIES[seed % 4], pool, 0.3, 0.5, losses=losses)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_long(seed: int) -> None:
    rng = random.Random(seed)
    constrained = rng.choice([0.0, 0.3, 1.0])
    pool = rng.choice([145, 300, 800])
    wishing = rng.choice([0.0, 0.5, 1.0])
    poison = rng.choice([frozenset(), frozenset([500, 501])])
    drive(seed, 3000, seed % 2, POLICIES[seed // 2 % 4], pool, constrained, wishing, poison)
