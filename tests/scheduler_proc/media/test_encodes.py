"""Encodes between the steps of the actor's loop: what waits for what, and who is to blame."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import MAX_SLICE_S, StepCosts
from scheduler_proc.crash.journal import Blame
from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.process.metrics import StepClock
from srt.ring.crash_file import Record, left_by
from srt.wire.errors import INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.pause import NO_PAUSE
from srt.wire.ring_messages import Control, MediaSent, PauseSet
from tests.running.late import late
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_device import FakeDevice
from tests.scheduler_proc.fake_executor import FakeExecutor, reference_output
from tests.scheduler_proc.media.pictures import GRIDS, ITEMS, item_of, numbers_of, pixels_of
from tests.scheduler_proc.process.test_actor_steps import LoopOnly
from tests.waiting import SOON_S
from tokenizer_proc.dispatch.verdict import Verdict, verdict_on

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


COSTS = StepCosts(1.0, 0.0, 1e-9, 1e-9)  # of STEP, whatever is in it
FACTS = MediaFacts(1, sees_both_ways=False, has_grid_positions=False, in_slices=True)
TEXT = [500, 501, 502]
STEP, PART, SLICE = 1.0, 0.7, 0.2  # simulated times


class Timed(FakeExecutor):
    """Takes STEP for a step and PART for a part of an item, in time of its own. `at_encode` is
    called first; it may raise or wait. If it `slices`, it does so as a CPU would."""

    def __init__(self, max_total_tokens: int, context_len: int) -> None:
        super().__init__(max_total_tokens, context_len)
        self.now = 0.0
        self.began: list[float] = []  # each step
        self.at_encode: Callable[[MediaItem], None] = lambda item: None
        self.slices = False
        self.paused: tuple[bytes, int] | None = None
        self.left = 0.0  # of the part that is
        self.num_dropped = 0  # in the middle of a part

    def run(self, batch: ForwardBatch) -> StepResult:
        self.began.append(self.now)
        self.now += STEP
        return super().run(batch)

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = 0.0) -> bool:
        if self.paused != (item.digest, part):
            self._drop_paused()
            self.left = PART
        self.paused = None
        self.at_encode(item)
        took = min(seconds, self.left) if self.slices else PART
        self.now += took
        self.left -= took
        if self.slices and self.left > 1e-9:
            self.paused = item.digest, part
            return False
        return super().encode(item, pixels, part)

    def drop_media(self, digest: bytes) -> None:
        if self.paused is not None and self.paused[0] == digest:
            self._drop_paused()
        super().drop_media(digest)

    def _drop_paused(self) -> None:
        self.num_dropped += self.paused is not None
        self.paused = None


class WithFront(LoopOnly):
    """The actor's loop, and a front that sends what is wanted, or the error of `refused`."""

    refused: ErrorInfo | None = None
    is_silent = False

    def __init__(self, driver: Driver, overlap: bool) -> None:
        super().__init__(driver, overlap)
        self.asked: Counter[bytes] = Counter()

    def _want(self, digests: list[bytes]) -> None:
        self.asked.update(digests)
        for digest in [] if self.is_silent else digests:
            asyncio.get_running_loop().call_soon(self.answer, digest)

    def answer(self, digest: bytes) -> None:
        item = item_of(ITEMS[digest])
        frames = [] if self.refused else [pixels_of(item).tobytes()]
        self._on_message(MediaSent(item, 0, self.refused), frames)


def make(executor: FakeExecutor | None = None, **config: Any) -> Driver:
    executor = executor or Timed(500, 4096)
    executor.media_facts = FACTS
    settings: dict[str, Any] = {"max_total_tokens": 500, "media": FACTS} | config
    return Driver(executor=executor, **settings)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("slices", [False, True])
async def test_nobody_waits_for_more_than_one_part(overlap: bool, slices: bool) -> None:
    """Nor for more than a slice, if there are any. While pictures come that are encoded again each
    time, a text gets its tokens."""
    driver = make(media_cache_bytes=18, step_target_s=STEP + SLICE)
    driver.core.measure(COSTS)
    driver.executor.slices = slices
    driver.add("text", TEXT, 150)
    actor = WithFront(driver, overlap)
    serving = asyncio.ensure_future(actor.serve())
    prompts: dict[str, list[int]] = {}
    async with asyncio.timeout(SOON_S):
        while "text" not in driver.finishes:
            rid = f"p{len(prompts)}"
            prompts[rid] = [len(prompts), *numbers_of(3 + len(prompts) % 2), 7]
            with actor._core_lock:
                driver.add(rid, prompts[rid], 2)
            while not driver.finishes.keys() & {rid, "text"}:
                await asyncio.sleep(0)
    await serving
    assert driver.outputs["text"] == reference_output(TEXT, 150)
    for rid, prompt in prompts.items():
        assert driver.outputs[rid] == reference_output(prompt, 2)
    executor = driver.executor
    gaps = np.diff(executor.began[:150])  # the text is in each of these
    most = SLICE if slices else PART
    assert gaps.max() == pytest.approx(STEP + most) and gaps.min() == pytest.approx(STEP)
    assert executor.parts_encoded > 5 and executor.num_dropped == 0
    assert not actor._encodes._pixels
    check_invariants(driver.core)


@pytest.mark.parametrize("overlap", [False, True])
async def test_each_step_has_a_slice_before_it(overlap: bool) -> None:
    """As long as there is something to encode, also where steps are queued in advance."""
    driver = make(step_target_s=STEP + SLICE)
    driver.core.measure(COSTS)
    driver.executor.slices = True
    driver.add("text", TEXT, 300)
    actor = WithFront(driver, overlap)
    serving = asyncio.ensure_future(actor.serve())
    while driver.executor.steps < 5:
        await asyncio.sleep(0)
    with actor._core_lock:
        driver.add("picture", [1, *numbers_of(3)], 2)
    await serving
    late = np.diff(driver.executor.began) - STEP
    (between,) = np.nonzero(late > 1e-6)
    assert between.tolist() == [*range(between[0], between[0] + 8)]
    assert late[between] == pytest.approx([SLICE, SLICE, SLICE, PART - 3 * SLICE] * 2)


async def test_beside_a_device_that_runs_ahead() -> None:
    driver = make(FakeDevice(500, 4096), media_cache_bytes=24)
    prompts = {f"p{i}": [i, *numbers_of(i % 5), *numbers_of(4 - i % 5), 7] for i in range(12)}
    for rid, prompt in {"text": TEXT, **prompts}.items():
        driver.add(rid, prompt, 8)
    await WithFront(driver, True).serve()
    for rid, prompt in {"text": TEXT, **prompts}.items():
        assert driver.outputs[rid] == reference_output(prompt, 8)
    driver.executor.close()


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_failed_encode_ends_those_that_need_it(overlap: bool) -> None:
    driver = make()

    def fail(item: MediaItem) -> None:
        if ITEMS[item.digest] == 3:
            raise ValueError("made to fail")

    driver.executor.at_encode = fail
    prompts = {str(i): [i, *numbers_of(i), 7] for i in GRIDS} | {"text": TEXT}
    prompts["also"] = [8, *numbers_of(2), *numbers_of(3)]
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 5)
    await WithFront(driver, overlap).serve()
    for rid, prompt in prompts.items():
        error = driver.finishes[rid].error
        if rid in ("3", "also"):
            assert error is not None and error.code == INTERNAL
        else:
            assert error is None and driver.outputs[rid] == reference_output(prompt, 5)
    assert not driver.core.state.media.pinned


async def test_a_lost_device_ends_the_process() -> None:
    driver = make()
    lost = torch.AcceleratorError("CUDA error: an illegal memory access", 700)

    def fail(item: MediaItem) -> None:
        raise lost

    driver.executor.at_encode = fail
    driver.add("a", [1, *numbers_of(1)])
    driver.add("b", [2, *numbers_of(1)])
    actor = WithFront(driver, True)
    serving = asyncio.ensure_future(actor._serve())
    async with asyncio.timeout(SOON_S):
        await actor._stopping.wait()
    assert actor._failure is lost and not driver.finishes
    serving.cancel()
    actor._compute.close()
    record = actor._blame._file.read()
    assert record.running == [(b"c", "a"), (b"c", "b")] and not record.is_trial


async def test_pixels_that_cannot_be_had() -> None:
    driver = make()
    driver.add("a", [1, *numbers_of(1)])
    driver.add("text", TEXT, 3)
    actor = WithFront(driver, True)
    actor.refused = ErrorInfo(UNAVAILABLE, "they are gone", retryable=True)
    await actor.serve()
    assert driver.finishes["a"].error == actor.refused
    assert driver.outputs["text"] == reference_output(TEXT, 3)


async def test_answers_that_nobody_waits_for() -> None:
    """They are late, come twice or are of another shape: only the last ends who needs it."""
    driver = make()
    actor = WithFront(driver, True)
    actor.is_silent = True
    first, second = item_of(3), item_of(4)
    prompt = [1, *numbers_of(3), 7]
    actor.answer(first.digest)
    assert not actor._encodes._pixels
    driver.add("a", prompt, 4)
    driver.add("b", [1, *numbers_of(4), 7], 4)
    serving = asyncio.ensure_future(actor.serve())
    async with asyncio.timeout(SOON_S):
        while not actor.asked[second.digest]:
            await asyncio.sleep(0.001)
    actor.answer(first.digest)
    actor._on_message(MediaSent(first, 0, ErrorInfo(INTERNAL, "late")))
    actor._on_message(MediaSent(second, 0), [b"short"])
    await serving
    assert driver.outputs["a"] == reference_output(prompt, 4)
    error = driver.finishes["b"].error
    assert error is not None and "shape" in error.message
    assert actor.asked == {first.digest: 1, second.digest: 1}


async def test_an_abort_lets_go_of_pixels() -> None:
    """Of those that wait, and of those that are being encoded once their part has ended."""
    driver = make()
    begun, may_end = threading.Event(), threading.Event()

    def hold(item: MediaItem) -> None:
        begun.set()
        assert may_end.wait(SOON_S)

    driver.executor.at_encode = hold
    driver.add("a", [1, *numbers_of(3), *numbers_of(4)])
    actor = WithFront(driver, True)
    serving = asyncio.ensure_future(actor._serve())
    async with asyncio.timeout(SOON_S):
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert len(actor._encodes._pixels) == 2
        job = actor._compute.job
        assert job is not None and actor._compute.is_encoding
        driver.abort("a")
        actor._entry.wake.set()
        while len(actor._encodes._pixels) > 1:
            await asyncio.sleep(0.001)
        assert actor._compute.job is job  # what a watch sees
        may_end.set()
        while actor._encodes._pixels or driver.executor.encoded:
            await asyncio.sleep(0.001)
            actor._entry.wake.set()
    assert driver.core.state.media.num_bytes == 0
    serving.cancel()
    actor._compute.close()


class Slicing:
    """An actor whose pictures are encoded in slices of MAX_SLICE_S, since nobody decodes, and the
    calls of `encode`. `at` is called in each, in the compute thread, with its number."""

    def __init__(self, at: Callable[[int], None] = lambda number: None) -> None:
        self.driver = make()
        self.executor: Timed = self.driver.executor
        self.executor.slices = True
        self.executor.at_encode = self._called
        self.actor = WithFront(self.driver, True)
        self.encoded: list[int] = []  # whose slice it is
        self.jobs: list[object | None] = []  # what a watch sees
        self._at = at

    def _called(self, item: MediaItem) -> None:
        self.encoded.append(ITEMS[item.digest])
        self.jobs.append(self.actor._compute.job)
        self._at(len(self.encoded))


NUM_SLICES = round(PART / MAX_SLICE_S)  # of a part


async def test_each_slice_is_a_job_of_its_own_and_noted() -> None:
    noted: list[Record] = []
    slicing = Slicing(lambda number: noted.append(slicing.actor._blame._file.read()))
    driver = slicing.driver
    driver.core.suspect([(b"c", "a")])
    driver.add("a", [1, *numbers_of(3)], 2)
    driver.add("b", [2, *numbers_of(1)], 2)
    await slicing.actor.serve()
    assert slicing.encoded == [3] * (2 * NUM_SLICES) + [1] * NUM_SLICES
    assert len({id(job) for job in slicing.jobs}) == len(slicing.jobs)
    assert None not in slicing.jobs
    assert all(record.running == [(b"c", "a")] and record.is_trial for record in noted[:28])
    assert all(record.running == [(b"c", "b")] for record in noted[28:])
    assert driver.outputs["a"] == reference_output([1, *numbers_of(3)], 2)


async def test_a_text_passes_in_the_middle_of_a_part() -> None:
    came = threading.Event()

    def at(number: int) -> None:
        if number == 3:
            came.set()

    slicing = Slicing(at)
    driver, actor = slicing.driver, slicing.actor
    driver.add("picture", [1, *numbers_of(1)], 2)
    serving = asyncio.ensure_future(actor.serve())
    async with asyncio.timeout(SOON_S):
        while not came.is_set():
            await asyncio.sleep(0)
        with actor._core_lock:
            driver.add("text", TEXT, 3)
        actor._entry.wake.set()
        await serving
    assert driver.outputs["text"] == reference_output(TEXT, 3)
    assert slicing.encoded == [1] * NUM_SLICES and slicing.executor.began[0] < PART


async def test_an_error_in_the_middle_of_a_part() -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise ValueError("made to fail")

    slicing = Slicing(fail)
    slicing.driver.add("a", [1, *numbers_of(3)], 2)
    slicing.driver.add("b", [2, *numbers_of(4)], 2)
    await slicing.actor.serve()
    error = slicing.driver.finishes["a"].error
    assert error is not None and error.code == INTERNAL
    assert slicing.driver.outputs["b"] == reference_output([2, *numbers_of(4)], 2)
    assert slicing.encoded == [3] * 3 + [4] * (3 * NUM_SLICES)


async def test_nobody_needs_what_is_in_the_middle_of_a_part() -> None:
    """It is dropped, and begins anew if it is needed again."""

    def at(number: int) -> None:
        if number in (3, 8):
            begun.release()
            assert may_go_on.acquire(timeout=SOON_S)

    slicing, begun, may_go_on = Slicing(at), threading.Semaphore(0), threading.Semaphore(0)
    driver, actor = slicing.driver, slicing.actor
    driver.add("a", [1, *numbers_of(3)], 2)
    serving = asyncio.ensure_future(actor.serve())
    for gone, rid, prompt in (("a", "b", [2, *numbers_of(1)]), ("b", "c", [3, *numbers_of(3)])):
        async with asyncio.timeout(SOON_S):
            while not begun.acquire(blocking=False):
                await asyncio.sleep(0.001)
        with actor._core_lock:
            driver.abort(gone)
            driver.add(rid, prompt, 2)
        actor._entry.wake.set()
        may_go_on.release()
    await serving
    assert slicing.encoded == [3] * 3 + [1] * 5 + [3] * (2 * NUM_SLICES)
    assert slicing.executor.num_dropped == 2 and not actor._encodes._pixels
    assert driver.outputs["c"] == reference_output([3, *numbers_of(3)], 2)


async def test_closing_drops_what_is_in_the_middle_of_a_part() -> None:
    slicing = Slicing()
    driver, compute = slicing.driver, slicing.actor._compute
    driver.add("a", [1, *numbers_of(3)], 2)
    item = item_of(3)
    encoding = compute.encode(item, pixels_of(item), 0, SLICE, [])
    await encoding.ended
    assert not encoding.result.result() and slicing.executor.paused == (item.digest, 0)
    compute.close()
    compute.thread.join(SOON_S)
    assert slicing.executor.paused is None and slicing.executor.num_dropped == 1


async def test_a_pause_begins_when_nothing_is_encoded() -> None:
    """The part that is goes on to its end, and no other begins."""
    driver = make()
    begun, may_end, encoded = threading.Event(), threading.Event(), list[MediaItem]()

    def hold(item: MediaItem) -> None:
        encoded.append(item)
        begun.set()
        assert may_end.wait(SOON_S)

    driver.executor.at_encode = hold
    prompt = [1, *numbers_of(1), *numbers_of(3)]
    driver.add("picture", prompt, 2)
    actor = WithFront(driver, True)
    serving = asyncio.ensure_future(actor.serve())
    async with asyncio.timeout(SOON_S):
        while not begun.is_set():
            await asyncio.sleep(0.001)
        pause = NO_PAUSE.begun("retract", 0.0)
        actor._on_message(PauseSet(0, pause))
        actor._on_message(Control(b"c", "pause", 0, "pause", SOON_S))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not actor.replies
        may_end.set()
        while not actor.replies:
            await asyncio.sleep(0.001)
        assert actor.replies == {"pause": ""} and encoded == [item_of(1)]
        actor._on_message(PauseSet(0, pause.ended(0.0)))
        await serving
    assert driver.outputs["picture"] == reference_output(prompt, 2)


async def test_a_step_is_told_of_before_the_part_behind_it_ends() -> None:
    driver = make()
    begun, may_end = threading.Event(), threading.Event()

    def hold(item: MediaItem) -> None:
        begun.set()
        assert may_end.wait(SOON_S)

    driver.executor.at_encode = hold
    driver.add("text", TEXT, 40)
    driver.add("picture", [1, *numbers_of(1)])
    actor = WithFront(driver, True)
    serving = asyncio.ensure_future(actor.serve())
    async with asyncio.timeout(SOON_S):
        while not begun.is_set():
            await asyncio.sleep(0.001)
        while driver.core.state.counters.generation_tokens < driver.executor.steps:
            await asyncio.sleep(0.001)
    may_end.set()
    await serving


def test_the_clock_counts_encodes_by_themselves() -> None:
    clock, size = StepClock(), StepSize(decodes=4)
    clock.begin(10.0)
    clock.end(11.0, size)
    clock.encoded(5.0, is_between=True)  # from 11.0 on
    clock.begin(16.5)
    clock.end(17.5, size)
    clock.rest()
    clock.encoded(1.0, is_between=True)
    clock.begin(30.0)
    clock.end(31.0, size)
    assert (clock.step_s, clock.exposed_s, clock.encode_s) == (3.0, 0.5, 6.0)
    assert [seconds for _, seconds in clock.steps] == [1.0, 1.5, 1.0]


A, B = (b"c", "a"), (b"c", "b")


@pytest.mark.parametrize(
    ("names", "suspects", "is_crash", "verdict"),
    [
        ([A, B], [], True, Verdict(frozenset([A, B]))),
        ([A, B], [A, B], True, Verdict(frozenset([A, B]))),
        ([A], [A, B], True, Verdict(guilty=frozenset([A]))),
        ([A], [A], False, Verdict(frozenset([A]), killed=frozenset([A]))),
    ],
)
def test_who_is_to_blame_for_a_crash_of_a_tower(
    tmp_path: Path, names: list[Any], suspects: list[Any], is_crash: bool, verdict: Verdict
) -> None:
    driver = make()
    blame = Blame(tmp_path, 1, driver.core, is_wary=False)
    driver.core.suspect(suspects)
    with blame.encoding(names):
        if is_crash:
            blame.own_up("crashed")
        assert verdict_on(left_by(tmp_path, 1), frozenset()) == verdict


def test_between_an_encode_and_the_step_of_a_trial(tmp_path: Path) -> None:
    """Whoever kills the process then does not do so for the request."""
    driver = make()
    blame = Blame(tmp_path, 1, driver.core, is_wary=False)
    driver.core.suspect([A])
    with blame.encoding([A]):
        pass
    assert verdict_on(left_by(tmp_path, 1), frozenset([A])) == Verdict(frozenset([A]))
    driver.core.suspect([A, B])
    with blame.encoding([A, B]):
        pass
    assert not left_by(tmp_path, 1).record.is_trial
