"""srt_op_sample from Python, and the cases that tests of the native sampler run on it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scheduler_proc.batch import ForwardBatch, Masks, StepResult, SuppressedIds
from scheduler_proc.executor.native_executor import empty_result, step_arrays
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Library
from tests.running.late import late
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.ragged import int32, sampling_batch
from tests.scheduler_proc.samplers import sample

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


class Case(NamedTuple):
    logits: np.ndarray  # [S, V] float32
    batch: ForwardBatch
    allowed: np.ndarray  # [S, V] bool: the masks

    def candidates(self) -> np.ndarray:
        """[S, V] bool: what masks and suppression leave."""
        left = self.allowed.copy()
        for entry in self.batch.suppressed:
            left[entry.row, entry.ids] = False
        return left

    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        left = self.candidates()
        masked = [SuppressedIds(row, int32(np.flatnonzero(~left[row]))) for row in range(len(left))]
        batch = replace(self.batch, suppressed=masked)
        return sample(torch.from_numpy(self.logits), batch)


class Sampler:
    """srt_op_sample on a pool of two threads."""

    def __init__(self, native: Library, isa: str) -> None:
        self._native = native
        self._pool = native.created(native.c.srt_pool_create(2, isa.encode(), 0))

    def close(self) -> None:
        self._native.c.srt_pool_destroy(self._pool)

    def sample(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        result = self.run(case)
        return result.next_ids, result.logprobs

    def run(self, case: Case) -> StepResult:
        count, vocab = case.logits.shape
        batch = replace(case.batch, masks=masks(case.allowed))
        result = empty_result(batch)
        for array in result.columns:
            array.fill(-9)  # a value that no sampler writes
        arrays = step_arrays(batch, result)
        details = 0 if batch.details is None else len(batch.details.rows)
        step = library.Batch.of(arrays, num_samples=count, num_details=details)
        logits = library.pointer(case.logits, c_float)
        call = self._native.c.srt_op_sample
        self._native.check(call(self._pool, logits, vocab, ctypes.byref(step)))
        return result


def masks(allowed: np.ndarray) -> Masks:
    """One mask per row, none where everything is allowed. Bits after the vocabulary are set."""
    count, vocab = allowed.shape
    bits = np.ones((count, (vocab + 31) // 32 * 32), np.bool_)
    bits[:, :vocab] = allowed
    words = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    rows = np.where(allowed.all(axis=1), -1, np.arange(count))
    return Masks(words, int32(rows))


@contextmanager
def sampler_of(isa: str) -> Iterator[Sampler]:
    """A sampler at that level, which this machine must support."""
    sampler = Sampler(load_or_skip(), isa)
    yield sampler
    sampler.close()


def make_case(logits: np.ndarray, allowed: np.ndarray | None = None, **fields: Any) -> Case:
    batch = sampling_batch(len(logits), **fields)
    everything = np.ones(logits.shape, np.bool_)
    return Case(logits.astype(np.float32), batch, everything if allowed is None else allowed)
