"""Slices of what torch computes on the CPU: a call may pause before each of torch's operations."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scheduler_proc.executor.slices import Slices

MAX_KINDS = 10_000  # of operations whose time is remembered


def torch_slices() -> Slices:
    """Slices on as many threads as torch uses now, in inference mode. A device that computes by
    itself needs none: an operation only queues work there."""
    threads, took_s = torch.get_num_threads(), dict[Any, float]()

    @contextmanager
    def around(pause: Callable[[float], None]) -> Iterator[None]:
        torch.set_num_threads(threads)  # of OpenMP, each thread has its own number
        if len(took_s) > MAX_KINDS:
            took_s.clear()
        with torch.inference_mode(), _Pauses(pause, took_s):
            yield

    return Slices(around)


class _Pauses(TorchFunctionMode):
    """Pauses before each operation of this thread, and notes in `took_s` how long it took, by the
    operation and the shapes that it is given: layers are alike, and so are tiles."""

    def __init__(self, pause: Callable[[float], None], took_s: dict[Any, float]) -> None:
        super().__init__()
        self._pause, self._took_s = pause, took_s

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        key = (func, *(arg.shape for arg in args if isinstance(arg, torch.Tensor)))
        self._pause(self._took_s.get(key, 0.0))
        began_s = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._took_s[key] = time.perf_counter() - began_s
        return result
