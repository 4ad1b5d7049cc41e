"""Devices, backends and random batches for the tests of this folder.

What needs CUDA is skipped without it. Every test also runs on the CPU with the reference attention,
so that a test which only a GPU can show to be right is at least known to run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from scheduler_proc.attention.base import AttentionBackend, LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.reference import ReferenceAttention
from tests.scheduler_proc.ragged import indptr, int32

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NUM_SLOTS = 6000


class Engine(NamedTuple):
    """An attention backend on a device."""

    device: str
    backend: str

    @property
    def dtype(self) -> torch.dtype:
        """What models compute in there by default."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32


ON_CUDA = [Engine("cuda", name) for name in ("reference", "triton", "flashinfer")]
ENGINES = [
    pytest.param(Engine("cpu", "reference"), id="cpu"),
    *(pytest.param(engine, id=f"cuda-{engine.backend}", marks=needs_cuda) for engine in ON_CUDA),
]


def backend_of(
    engine: Engine,
    kinds: Sequence[LayerKind],
    *,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    deterministic: bool = False,
) -> AttentionBackend:
    """The engine's backend. Raises ConfigError for what it cannot run; skips the test where its
    package is not installed."""
    device = torch.device(engine.device)
    if engine.backend == "reference":
        return ReferenceAttention(device)
    pytest.importorskip(engine.backend)
    make: Any
    if engine.backend == "triton":
        from scheduler_proc.attention.triton import TritonAttention as make
    else:
        from scheduler_proc.attention.flashinfer import FlashInferAttention as make
    backend: AttentionBackend = make(
        kinds, device=device, dtype=dtype, kv_dtype=kv_dtype, deterministic=deterministic
    )
    return backend


class Batch(NamedTuple):
    """Rows, and what one layer attends with."""

    rows: RaggedRows
    q: torch.Tensor
    layer: LayerTensors


def ragged_rows(
    rng: np.random.Generator, lengths: Sequence[tuple[int, int]], shared: int = 0
) -> RaggedRows:
    """Rows of (extend, sequence) lengths over scattered slots; all begin with the same `shared`."""
    free = rng.permutation(NUM_SLOTS)
    common, at, slots = free[:shared], shared, []
    for _, seq in lengths:
        slots.append(np.concatenate([common[:seq], free[at : at + max(0, seq - shared)]]))
        at += max(0, seq - shared)
    assert at <= NUM_SLOTS
    extends = [extend for extend, _ in lengths]
    seqs = [seq for _, seq in lengths]
    return RaggedRows(indptr(extends), indptr(seqs), int32(np.concatenate(slots)))


def random_batch(
    kind: LayerKind,
    rows: RaggedRows,
    *,
    device: str,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Batch:
    """Random queries, keys and values; slots that no row lists hold NaN. A pool of another type
    than the queries has scales other than 1."""
    random = torch.Generator().manual_seed(seed)
    listed = torch.from_numpy(np.unique(rows.kv_indices).astype(np.int64))
    pools = []
    for dim in (kind.head_dim, kind.value_dim):
        pool = torch.full((NUM_SLOTS, kind.kv_heads, dim), torch.nan)
        pool[listed] = torch.randn((len(listed), kind.kv_heads, dim), generator=random)
        pools.append(pool.to(kv_dtype).to(device))
    q = torch.randn((int(rows.qo_indptr[-1]), kind.heads, kind.head_dim), generator=random)
    sinks = torch.randn(kind.heads, generator=random).to(dtype).to(device) if kind.sinks else None
    scales = (1.0, 1.0) if kv_dtype == dtype else (0.5, 1.5)
    layer = LayerTensors(pools[0], pools[1], sinks, *scales)
    return Batch(rows, q.to(dtype).to(device), layer)


def expected(kind: LayerKind, batch: Batch) -> torch.Tensor:
    """The reference attention in float32, on the same numbers."""
    sinks = batch.layer.sinks
    layer = batch.layer._replace(
        k_pool=batch.layer.k_pool.float(),
        v_pool=batch.layer.v_pool.float(),
        sinks=None if sinks is None else sinks.float(),
    )
    plan = ReferenceAttention(batch.q.device).plan(batch.rows)
    return plan.run(kind, batch.q.float(), layer)


def assert_near(found: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    """Shapes are equal, nothing is NaN, and no number is off by more than `bound`."""
    assert found.shape == wanted.shape
    difference = (found.float() - wanted.float()).abs().max()
    assert float(difference) <= bound, float(difference)
