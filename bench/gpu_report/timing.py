"""Times of what runs on a device: by its events on CUDA, by the clock on a CPU."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

Call = Callable[[], object]
_cuda: Any = torch.cuda  # parts of it have no annotations


class Timing(NamedTuple):
    """Seconds of one call."""

    median_s: float
    best_s: float
    runs: int


class Clock:
    """Times calls on `device`. `runs` and `warm` are how often each is made, timed and before."""

    def __init__(self, device: torch.device, *, runs: int, warm: int) -> None:
        self.device = device
        self.runs, self.warm = runs, warm

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, *calls: Call) -> list[Timing]:
        """The device's time of each call, the calls in turns."""
        for call in calls:
            for _ in range(self.warm):
                call()
        self.synchronize()
        turns = [[self._one(call) for call in calls] for _ in range(self.runs)]
        self.synchronize()
        return [_timing([read() for read in column]) for column in zip(*turns, strict=True)]

    def wall(self, call: Call) -> Timing:
        """The time from calling until the device is idle again."""
        for _ in range(self.warm):
            call()
        found = []
        for _ in range(self.runs):
            self.synchronize()
            start = time.perf_counter()
            call()
            self.synchronize()
            found.append(time.perf_counter() - start)
        return _timing(found)

    def device_span(self, call: Call) -> float:
        """Seconds of the device's work that `call` queues on the current stream, without waiting
        for the host: a kernel that does nothing for a while runs while the work is queued."""
        self.synchronize()
        if self.device.type == "cuda":
            _cuda._sleep(_SLEEP_CYCLES)
        read = self._one(call)
        self.synchronize()
        return read()

    def _one(self, call: Call) -> Callable[[], float]:
        """Make the call; what is returned gives its seconds once the device has done it."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            return lambda: seconds
        begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        return lambda: begin.elapsed_time(end) / 1e3


_SLEEP_CYCLES = 60_000_000  # some 30 ms, more than it takes to queue a step


def _timing(seconds: Sequence[float]) -> Timing:
    return Timing(statistics.median(seconds), min(seconds), len(seconds))
