"""Many times the possible load, in simulated time: the bound on the wait holds, and the engine
keeps its full rate. The core, its pace and the front's bound are the real ones."""

import random
from typing import NamedTuple

import pytest

from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.process.load_reports import PaceMeter
from srt.wire.errors import RequestError
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.process.test_load_reports import SizedExecutor
from tokenizer_proc.queueing.capacity import SLACK, QueueWaits

BASE_S, TOKEN_S = 0.004, 0.001
VOCAB = 50


class Course(NamedTuple):
    """The results of a run: seconds from arrival to first token, answers per second, refusals."""

    waits: list[float]
    rate: float
    refused: int


class Shape(NamedTuple):
    """Requests of one kind: the tokens of prompts and outputs, each drawn between two bounds."""

    prompt: tuple[int, int]
    outputs: tuple[int, int]
    pool: int = 32768


SHAPES = {
    "short": Shape((60, 80), (16, 16)),
    "long prompts": Shape((500, 2000), (8, 32)),
    "long outputs": Shape((20, 40), (100, 300)),
    "little memory": Shape((200, 600), (50, 100), pool=4096),
}


def capacity(shape: Shape) -> float:
    """Requests per second of a full batch, roughly."""
    prompt, outputs = sum(shape.prompt) / 2, sum(shape.outputs) / 2
    return 1 / (TOKEN_S * (prompt + outputs))


def simulate(shape: Shape, load: float, limit_s: float, seconds: float, warm_s: float) -> Course:
    """Arrivals at `load` times the capacity, after `warm_s` at half of it."""
    rng = random.Random(1)
    executor = SizedExecutor(shape.pool, 4096)
    driver = Driver(executor=executor, max_total_tokens=shape.pool, check=False)
    meter, wait = PaceMeter(driver.core), QueueWaits(limit_s, 1)
    wait.open = [0]
    now, due, count, refused = 0.0, 0.0, 0, 0
    arrived: dict[str, float] = {}
    waits: dict[str, float] = {}
    while now < seconds:
        while due <= now:
            rate = capacity(shape) * (load if due >= warm_s else 0.5)
            try:
                wait.check()
            except RequestError:
                refused += 1
            else:
                rid, count = str(count), count + 1
                prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(*shape.prompt))]
                wire = TokenizedReq(b"c", rid, 0, pack_ids(prompt), FilledParams())
                wait.enter(0, wire)
                meter.entered(wire)
                driver.now = due
                driver.add(rid, prompt, max_new=rng.randint(*shape.outputs))
                arrived[rid] = due
            due += rng.expovariate(rate)
        driver.now = now
        driver.step()
        if not executor.sizes:
            now = due
            continue
        tokens = executor.sizes.pop()
        step_s = (BASE_S + TOKEN_S * tokens) * rng.uniform(0.9, 1.1)
        now += step_s
        meter.stepped(StepSize(tokens), step_s)
        pace = meter.report(now)
        if pace is not None:
            wait.update(0, pace)
        for rid in driver.cached.keys() - waits.keys():
            waits[rid] = now - arrived[rid]
    late = [value for rid, value in waits.items() if arrived[rid] >= warm_s]
    return Course(sorted(late), len(driver.finishes) / seconds, refused)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_wait_is_bounded_at_ten_times_the_load(shape: Shape) -> None:
    """The first ones may wait longer, as only finished requests show what memory holds and how long
    answers are. Among short prompts, a match of a word or two lets some pass others."""
    course = simulate(shape, load=10.0, limit_s=10.0, seconds=40.0, warm_s=10.0)
    assert course.refused > len(course.waits)
    assert course.waits[len(course.waits) // 2] < 12.0
    assert course.waits[int(0.95 * len(course.waits))] < 25.0


@pytest.mark.full
def test_short_requests_hold_the_bound_and_cost_the_others_nothing() -> None:
    course = simulate(SHAPES["short"], load=10.0, limit_s=10.0, seconds=40.0, warm_s=10.0)
    best = simulate(SHAPES["short"], load=10.0, limit_s=0.0, seconds=40.0, warm_s=10.0)
    assert best.refused == 0
    assert 10.0 / SLACK < course.waits[int(0.99 * len(course.waits))] < 10.0
    assert course.rate > 0.95 * best.rate
