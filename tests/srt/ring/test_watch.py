"""Which of the supervisor's children are silent, and which of these are ended."""

import asyncio
import signal
import time
from types import SimpleNamespace

import pytest

from srt.ring.child import Child
from srt.ring.watch import Watch
from srt.wire.ring_state import CompilerFacts
from tests.waiting import SOON_S

LIMITS = STEP_S, PART_S = 20.0, 5.0
Passed = list[tuple[float, bool]]  # seconds between two looks, and whether a beat has come


class Running:
    """A process that takes signals, and notes them."""

    def __init__(self) -> None:
        self.got: list[int] = []

    def send_signal(self, number: int) -> None:
        self.got.append(number)

    def kill(self) -> None:
        self.got.append(signal.SIGKILL)


async def looks(
    monkeypatch: pytest.MonkeyPatch,
    child: Child,
    passed: Passed,
    limits: tuple[float, float] = LIMITS,
) -> tuple[list[int], list[list[str]]]:
    """What the child gets in so many looks, and who was silent whenever that changed."""
    now = time.monotonic()
    monkeypatch.setattr("srt.ring.watch.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("srt.ring.watch.STACKS_S", 0.0)
    left = iter(passed)
    has_looked = asyncio.Event()

    async def sleep(_: float) -> None:
        nonlocal now
        seconds, beats = next(left, (0.0, None))
        if beats is None:
            has_looked.set()
            await asyncio.Event().wait()
        now += seconds
        if beats:
            child.beat_at = now

    process = Running()
    child.process, child.beat_at = process, now  # type: ignore[assignment]
    patched = SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
    monkeypatch.setattr("srt.ring.watch.asyncio", patched)
    told: list[list[str]] = []
    watch = Watch([child], *limits, lambda: told.append(watch.silent))
    watching = asyncio.ensure_future(watch.run())
    async with asyncio.timeout(SOON_S):
        await has_looked.wait()
    watching.cancel()
    await asyncio.sleep(0.01)
    return process.got, told


def quiet(seconds: float) -> Passed:
    return [(0.25, False)] * int(seconds * 4)


COLD, WARM = CompilerFacts(is_warm=False), CompilerFacts(is_warm=True)


@pytest.mark.parametrize(
    ("child", "limits", "passed", "is_ended"),
    [
        (Child("tokenizer", state="ready"), LIMITS, quiet(4.75), False),
        (Child("tokenizer", state="ready"), LIMITS, quiet(100), True),
        # This process stood still.
        (Child("tokenizer", state="ready"), LIMITS, [(0.25, False), (3600.0, False)] * 2, False),
        (Child("tokenizer", state="ready"), LIMITS, [*quiet(4), (0.25, True), *quiet(4)], False),
        (Child("tokenizer", state="ready"), (STEP_S, 0.0), quiet(400), False),
        (Child("scheduler", 0, state="ready"), LIMITS, quiet(19), False),
        (Child("scheduler", 0, state="ready"), LIMITS, quiet(21), True),
        (Child("scheduler", 0, state="ready"), (0.0, PART_S), quiet(400), False),
        (Child("tokenizer", state="starting"), LIMITS, quiet(100), False),
        (Child("tokenizer", state="starting"), LIMITS, quiet(301), True),
        (Child("compiler", state="ready", facts=COLD), LIMITS, quiet(100), False),
        (Child("compiler", state="ready", facts=COLD), LIMITS, quiet(301), True),
        (Child("compiler", state="ready", facts=WARM), LIMITS, quiet(6), True),
        (Child("tokenizer", state="dead"), LIMITS, quiet(400), False),
    ],
)
async def test_a_silent_part_is_ended_once(
    monkeypatch: pytest.MonkeyPatch,
    child: Child,
    limits: tuple[float, float],
    passed: Passed,
    is_ended: bool,
) -> None:
    """It may write its stacks before. A part that starts, or loads, is not silent."""
    got, _ = await looks(monkeypatch, child, passed, limits)
    assert got == ([signal.SIGABRT, signal.SIGKILL] if is_ended else [])


@pytest.mark.parametrize(
    ("state", "passed", "told"),
    [
        ("ready", quiet(2.5), []),
        ("ready", quiet(2.75), [["tokenizer"]]),
        ("ready", [*quiet(4), (0.25, True)], [["tokenizer"], []]),
        ("starting", quiet(4), []),
        ("dead", quiet(4), []),
    ],
)
async def test_the_silent_are_told_within_three_seconds(
    monkeypatch: pytest.MonkeyPatch, state: str, passed: Passed, told: list[list[str]]
) -> None:
    """And when they are heard again."""
    assert (await looks(monkeypatch, Child("tokenizer", state=state), passed))[1] == told
