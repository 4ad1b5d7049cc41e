"""Calls that run in slices: what they return and raise, and that no thread is left."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler_proc.executor.slices import Dropped, Key, Slices

A, B = (b"a", 0), (b"b", 3)
LATER = 1e6  # seconds: nothing here lasts that long


class Calls:
    """Calls of STEPS steps, each after a pause for one that takes `next_s`."""

    STEPS = 4

    def __init__(self) -> None:
        self.slices = Slices(self._around)
        self.seen: list[str] = []
        self.next_s = 0.0
        self.fails_at = -1

    @contextmanager
    def _around(self, pause: Callable[[float], None]) -> Iterator[None]:
        self._pause, self.threads = pause, {threading.current_thread()}
        try:
            yield
        finally:
            self.seen.append("out")

    def run(self, key: Key, seconds: float) -> bool:
        def call() -> None:
            for number in range(self.STEPS):
                self._pause(self.next_s)
                if number == self.fails_at:
                    raise ValueError("made to fail")
                self.seen.append(f"{key[0].decode()}{number}")

        return self.slices.run(key, call, seconds)


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    assert made.slices.paused is None
    assert not [thread for thread in threading.enumerate() if thread.name == "slices"]


def test_a_call_that_has_the_time_is_not_paused(calls: Calls) -> None:
    assert calls.run(A, math.inf)
    assert calls.seen == ["a0", "a1", "a2", "a3", "out"]
    assert threading.current_thread() not in calls.threads


def test_without_time_a_slice_lasts_from_one_pause_to_the_next(calls: Calls) -> None:
    for number in range(calls.STEPS):
        assert not calls.run(A, 0.0)
        assert calls.slices.paused == A and len(calls.seen) == number
        calls.seen[number:] = []
    assert calls.run(A, 0.0) and calls.seen == ["a0", "a1", "a2", "a3", "out"]


def test_what_would_end_too_late_is_not_begun(calls: Calls) -> None:
    calls.next_s = 2 * LATER
    assert not calls.run(A, LATER)
    assert not calls.run(A, LATER) and calls.seen == ["a0"]
    assert calls.run(A, 3 * LATER) and calls.seen[-1] == "out"


@pytest.mark.parametrize("fails_at", [0, 2])
def test_an_error_reaches_whoever_has_it_go_on(calls: Calls, fails_at: int) -> None:
    calls.fails_at = fails_at
    for _ in range(fails_at + 1):
        assert not calls.run(A, 0.0)
    with pytest.raises(ValueError, match="made to fail"):
        calls.run(A, 0.0)
    assert calls.slices.paused is None and calls.seen[-1] == "out"
    calls.fails_at = -1
    assert calls.run(A, math.inf) and calls.seen[-5:] == ["a0", "a1", "a2", "a3", "out"]


def test_a_call_that_is_dropped_is_unwound(calls: Calls) -> None:
    calls.slices.drop()
    calls.run(A, 0.0)
    calls.run(A, 0.0)
    calls.slices.drop()
    calls.slices.drop()
    assert calls.seen == ["a0", "out"]
    assert not calls.run(A, 0.0)  # from its beginning
    assert calls.run(A, math.inf) and calls.seen[2:] == ["a0", "a1", "a2", "a3", "out"]


def test_another_call_drops_the_one_that_is_paused(calls: Calls) -> None:
    calls.run(A, 0.0)
    calls.run(A, 0.0)
    assert not calls.run(B, 0.0) and calls.slices.paused == B
    assert calls.run(B, math.inf)
    assert calls.seen == ["a0", "out", "b0", "b1", "b2", "b3", "out"]


def test_a_call_that_pauses_while_it_is_unwound(calls: Calls) -> None:
    """It is not begun again, and no later call is taken for a dropped one."""
    seen: list[str] = []

    def call() -> None:
        try:
            calls._pause(0.0)
        except Dropped:
            seen.append("dropped")
            calls._pause(0.0)

    assert not calls.slices.run(A, call, 0.0)
    calls.slices.drop()
    assert seen == ["dropped"] and calls.run(B, math.inf)


def test_a_base_exception_is_passed_on_too(calls: Calls) -> None:
    def call() -> Any:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        calls.slices.run(A, call, math.inf)
