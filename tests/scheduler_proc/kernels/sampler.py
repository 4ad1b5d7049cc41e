"""srt_op_sample from Python, and the cases that tests of the native sampler run on it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_double, c_float, c_int32, c_uint8, c_uint32
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from scheduler_proc import sampling
from scheduler_proc.batch import ForwardBatch, StepResult, SuppressedIds
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Library
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.ragged import indptr, int32, sampling_fields


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
        return sampling.sample(torch.from_numpy(self.logits), batch)


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
        result = empty_result(case.batch, count)
        fields = {
            **sampling_columns(case.batch),
            **suppression(case.batch, count),
            **masks(case.allowed),
            **adjustments(case.batch),
            **details(case.batch),
            **outputs(result),
        }
        rows = case.batch.detail_rows
        batch = library.Batch(num_samples=count, num_details=0 if rows is None else len(rows))
        for name, (array, ctype) in fields.items():
            setattr(batch, name, library.pointer(array, ctype))
        logits = library.pointer(case.logits, c_float)
        call = self._native.c.srt_op_sample
        self._native.check(call(self._pool, logits, vocab, ctypes.byref(batch)))
        return result


Fields = dict[str, tuple[np.ndarray, Any]]


def sampling_columns(batch: ForwardBatch) -> Fields:
    return {
        "temperature": (batch.temperature, c_float),
        "top_p": (batch.top_p, c_float),
        "top_k": (batch.top_k, c_int32),
        "min_p": (batch.min_p, c_float),
        "uniform": (batch.uniform, c_double),
        "want_logprob": (batch.want_logprob.view(np.uint8), c_uint8),
    }


def suppression(batch: ForwardBatch, count: int) -> Fields:
    by_row = [
        np.concatenate([int32([]), *(e.ids for e in batch.suppressed if e.row == row)])
        for row in range(count)
    ]
    return {
        "suppress_indptr": (indptr([len(ids) for ids in by_row]), c_int32),
        "suppress_ids": (int32(np.concatenate(by_row)), c_int32),
    }


def masks(allowed: np.ndarray) -> Fields:
    """Rows that allow everything go without a mask. Bits behind the vocabulary are set."""
    count, vocab = allowed.shape
    bits = np.ones((count, (vocab + 31) // 32 * 32), np.bool_)
    bits[:, :vocab] = allowed
    words = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    rows = np.where(allowed.all(axis=1), -1, np.arange(count))
    return {"mask_rows": (int32(rows), c_int32), "masks": (words, c_uint32)}


def adjustments(batch: ForwardBatch) -> Fields:
    columns = {
        "adjust_indptr": (batch.adjust_indptr, c_int32),
        "adjust_ids": (batch.adjust_ids, c_int32),
        "adjust_repeat": (batch.adjust_repeat, c_float),
        "adjust_add": (batch.adjust_add, c_float),
    }
    return {name: (array, kind) for name, (array, kind) in columns.items() if array is not None}


def details(batch: ForwardBatch) -> Fields:
    if batch.detail_top is None:
        return {}
    columns = {
        "detail_rows": batch.detail_rows,
        "top_indptr": indptr(batch.detail_top.tolist()),
        "detail_indptr": batch.detail_indptr,
        "detail_ids": batch.detail_ids,
    }
    return {name: (array, c_int32) for name, array in columns.items() if array is not None}


def empty_result(batch: ForwardBatch, count: int) -> StepResult:
    """Filled with what no sampler writes."""
    result = StepResult(
        np.full(count, -9, np.int32), np.zeros(count, np.float32), np.empty(0, np.float32)
    )
    if batch.detail_top is None or batch.detail_ids is None:
        return result
    top = int(batch.detail_top.sum())
    return result._replace(
        top_ids=np.full(top, -9, np.int32),
        top_logprobs=np.full(top, 9, np.float32),
        id_logprobs=np.full(len(batch.detail_ids), 9, np.float32),
    )


def outputs(result: StepResult) -> Fields:
    columns = {
        "next_ids": (result.next_ids, c_int32),
        "logprobs": (result.logprobs, c_float),
        "top_ids": (result.top_ids, c_int32),
        "top_logprobs": (result.top_logprobs, c_float),
        "id_logprobs": (result.id_logprobs, c_float),
    }
    return {name: (array, kind) for name, (array, kind) in columns.items() if array is not None}


@contextmanager
def sampler_of(isa: str) -> Iterator[Sampler]:
    """A sampler at that level, which this machine must run."""
    sampler = Sampler(load_or_skip(), isa)
    yield sampler
    sampler.close()


def make_case(logits: np.ndarray, allowed: np.ndarray | None = None, **fields: Any) -> Case:
    count, empty = len(logits), int32([])
    rows = int32(np.arange(count))
    fields = sampling_fields(count, **fields)
    batch = ForwardBatch(empty, empty, empty, int32([0]), int32([0]), empty, rows, **fields)
    everything = np.ones(logits.shape, np.bool_)
    return Case(logits.astype(np.float32), batch, everything if allowed is None else allowed)
