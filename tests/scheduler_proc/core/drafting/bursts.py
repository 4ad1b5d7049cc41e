"""Bursts of prompts on a fake clock: each step takes what `COSTS` gives for its size, and the core
learns that from the steps, with guesses that are right as often as a test says."""

import random
import zlib
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from scheduler_proc.batch import StepResult
from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import AUTO_STEPS, CostMeter, StepCosts
from srt.wire.filled_params import FilledParams
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import VOCAB, reference_output

# As measured on two cores at the level avx2; a step laid out late takes LATE_S longer.
COSTS = StepCosts(base_s=0.0065, row_s=0.0012, token_s=0.0009, draft_s=0.0011)
LATE_S = 0.0005
PHRASE = 8


class Texts:
    """A source that finds a match at the share `found` of the stretches of PHRASE tokens of an
    output. There the tokens to come are guessed, each right with the probability `right`, always
    the same ones; a match grows with each that was right."""

    name = "own"

    def __init__(self, right: float, found: float = 1.0) -> None:
        self.right, self.found = right, found
        self.outputs: dict[str, list[int]] = {}  # by the request's name, all that it will say

    def match(self, req: Req, most: int) -> Match | None:
        rid, first = req.wish.rid, req.tokens.known_len - req.tokens.prompt_len
        if chance_of(f"{rid} {first // PHRASE} found") >= self.found:
            return None
        length = 4
        while length < 4 + first % PHRASE and self._is_right(rid, first + 3 - length):
            length += 1
        places = range(first, min(first + most, len(self.outputs[rid])))
        tokens = [self._guess(rid, place) for place in places]
        return Match(length, np.array(tokens, np.int32)) if tokens else None

    def _guess(self, rid: str, place: int) -> int:
        return (self.outputs[rid][place] + (not self._is_right(rid, place))) % VOCAB

    def _is_right(self, rid: str, place: int) -> bool:
        return chance_of(f"{rid} {place} right") < self.right

    def ended(self, req: Req) -> None:
        pass


class Ran(NamedTuple):
    """A step: when it ended, what it computed, how long it lasted, the costs as they were known and
    how many of its rows were laid out late."""

    ended_s: float
    size: StepSize
    seconds: float
    costs: StepCosts | None
    num_deferred: int

    def expected_s(self, target_s: float = 0.0) -> tuple[float, float]:
        """What it was expected to take, and its target."""
        assert self.costs is not None
        size, costs = self.size, self.costs
        rows_s = costs.decode_s(size.decodes)
        seconds = rows_s + size.others * costs.token_s + costs.drafts_s(size.drafted)
        return seconds, target_s or AUTO_STEPS * rows_s


class TimedDriver(Driver):
    """Notes the `steps`, and of each request when it came and when its tokens did."""

    def __init__(self, texts: Texts, noise: float = 0.0, seed: int = 0, **config: object) -> None:
        super().__init__(
            lag=1,
            sources=[] if config.get("speculative", "off") == "off" else [texts],
            **{"max_total_tokens": 20_000, "chunked_prefill_size": 256} | config,  # type: ignore[arg-type]
        )
        self.texts, self.meter = texts, CostMeter()
        self.steps: list[Ran] = []
        self.clock_s = 0.0
        self.came_s: dict[str, float] = {}
        self.tokens_s: dict[str, list[float]] = {}
        self._noise, self._rng = noise, random.Random(seed)
        self._num_deferred = 0
        warm = [StepSize(1), StepSize(others=32), StepSize(8)]
        for size in warm * 8:
            self.meter.add(size, seconds_of(size))

    def ask(
        self,
        text: str,
        prompt_len: int,
        outputs: int,
        name: str = "",
        speculative: Literal["auto", "off"] = "auto",
    ) -> None:
        """Add a request with the prompt of this text, whose tokens are told one by one. Its name is
        the text, if it has none of its own."""
        rid, prompt = name or text, self.prompt_of(text, prompt_len)
        self.texts.outputs[rid] = reference_output(prompt, outputs)
        self.came_s[rid] = self.clock_s
        sampling = FilledParams(stop=["told at once"], speculative=speculative)
        self.add(rid, prompt, outputs, sampling=sampling)

    def prompt_of(self, text: str, prompt_len: int) -> list[int]:
        """Its tokens, which no other text begins with."""
        return [int(VOCAB * chance_of(f"{text} token {place}")) for place in range(prompt_len)]

    def step(self) -> bool:
        if (costs := self.meter.news()) is not None:
            self.core.measure(costs)
        counts = {rid: len(self.outputs.get(rid, ())) for rid in self.came_s}
        has_stepped = super().step()
        for rid, before in counts.items():
            if len(self.outputs.get(rid, ())) > before:
                self.tokens_s.setdefault(rid, []).append(self.clock_s)
        return has_stepped

    def ttft_p50(self) -> float:
        return float(np.median([self.tokens_s[rid][0] - s for rid, s in self.came_s.items()]))

    def itl_p99(self) -> float:
        gaps = [b - a for times in self.tokens_s.values() for a, b in pairwise(times)]
        return float(np.quantile(gaps, 0.99))

    def _settle_deferred(self, plan: Plan, running: tuple[Step, StepResult | None]) -> Plan | None:
        self._num_deferred = len(plan.deferred)
        return super()._settle_deferred(plan, running)

    def _result(self, step: Step) -> StepResult | None:
        seconds = seconds_of(step.size) + LATE_S * (self._num_deferred > 0)
        seconds *= self._rng.uniform(1 - self._noise, 1 + self._noise)
        self.clock_s += seconds
        self.meter.add(step.size, seconds)
        costs, late = self.core.costs, self._num_deferred
        self.steps.append(Ran(self.clock_s, step.size, seconds, costs, late))
        self._num_deferred = 0
        return super()._result(step)


def seconds_of(size: StepSize) -> float:
    """What a step takes by COSTS."""
    others_s = COSTS.token_s * size.others + COSTS.drafts_s(size.drafted)
    return COSTS.decode_s(size.decodes) + others_s


def chance_of(text: str) -> float:
    """A number in [0, 1), always the same for the text."""
    return zlib.crc32(text.encode()) / (1 << 32)
