"""How long a client waits for answers; only the time in which its loop runs counts."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from srt.wire.messages import CaptureReq, ControlReq, GenerateReq, ScoreReq, TokenizeReq

ANSWER_TIMEOUT_S = 30.0  # of the front
GRAMMAR_TIMEOUT_S = 180.0  # of the front, if it has to wait for a grammar
CONTROL_TIMEOUT_S = 5.0
TICK_S = 0.5
T = TypeVar("T")
Question = GenerateReq | ScoreReq | TokenizeReq | CaptureReq | ControlReq


def patience_s(question: Question) -> float:
    """For its answer."""
    if isinstance(question, ControlReq):
        return question.timeout_s + CONTROL_TIMEOUT_S
    is_constrained = isinstance(question, GenerateReq) and question.sampling.constraint is not None
    return GRAMMAR_TIMEOUT_S if is_constrained else ANSWER_TIMEOUT_S


async def within(timeout_s: float, awaitable: Awaitable[T], tick_s: float = TICK_S) -> T:
    """The result of `awaitable`, which is cancelled with this call, within a limit that counts only
    the time in which this loop runs.

    A loop that stood still (a blocking call, a suspended process) finds its timers expired before
    it has read what arrived meanwhile: a plain time-out would blame its own pause on the other
    side.

    Raises TimeoutError after `timeout_s`. A tick in which the loop stood still for a tick or more
    does not count, but the whole wait has at most twice the limit's ticks.
    """
    future, task = asyncio.ensure_future(awaitable), asyncio.current_task()
    assert task is not None
    wait, cancels = _Wait(future, timeout_s, tick_s), task.cancelling()
    try:
        return await future
    except asyncio.CancelledError:
        if wait.is_over and task.cancelling() == cancels:
            raise TimeoutError from None
        raise
    finally:
        wait.timer.cancel()


class _Wait:
    """Cancels `future` when the wait for it `is_over`."""

    def __init__(self, future: "asyncio.Future[Any]", timeout_s: float, tick_s: float) -> None:
        self._loop, self._future, self._tick_s = asyncio.get_running_loop(), future, tick_s
        self._left_s = timeout_s
        self._ticks_left = 2 * (timeout_s + tick_s) / tick_s
        self.is_over = False
        self._next()

    def _next(self) -> None:
        self._length_s, self._began = min(self._tick_s, self._left_s), time.monotonic()
        self.timer = self._loop.call_later(max(0.0, self._length_s), self._tick)

    def _tick(self) -> None:
        self._ticks_left -= 1
        if time.monotonic() - self._began < self._length_s + self._tick_s:
            self._left_s -= self._length_s
        if self._left_s <= 0 or self._ticks_left < 0:
            self.is_over = True
            self._future.cancel()
        else:
            self._next()
