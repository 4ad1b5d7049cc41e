"""What a pool holds after K or V has been written to it."""

import pytest
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.kv_store import FP8, FP8_MAX, store
from scheduler_proc.attention.reference import ReferenceAttention
from tests.scheduler_proc.ragged import indptr, int32

SLOTS = torch.tensor([4, 0, 2])


def values(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wide_pools_hold_the_values(dtype: torch.dtype) -> None:
    pool, written = torch.full((6, 2, 8), torch.nan, dtype=dtype), values().to(dtype)
    store(pool, SLOTS, written, 3.0)
    assert torch.equal(pool[SLOTS], written)
    assert pool[[1, 3, 5]].isnan().all()


@pytest.mark.parametrize("scale", [1.0, 0.02, 5.0])
def test_eight_bits_hold_the_scaled_values(scale: float) -> None:
    pool, written = torch.zeros((6, 2, 8), dtype=FP8), values(100 * scale)
    store(pool, SLOTS, written, scale)
    read = pool[SLOTS].float() * scale
    # Three bits of mantissa: half of the last is a sixteenth; below 2**-6 the step is constant.
    assert ((read - written).abs() <= written.abs() / 16 + scale * 2**-10).all()
    assert (pool[[1, 3, 5]].float() == 0).all()


def test_eight_bits_hold_at_most_the_largest_number() -> None:
    pool = torch.zeros((6, 2, 8), dtype=FP8)
    written = values(1e4)
    written[0, 0, :2] = torch.tensor([torch.inf, torch.nan])
    store(pool, SLOTS, written, 1.0)
    read = pool[SLOTS].float()
    assert read[0, 0, 0] == FP8_MAX == 448 and read[0, 0, 1].isnan()
    large = written.abs() >= FP8_MAX
    assert large.any() and torch.equal(read[large], written[large].sign() * FP8_MAX)


def test_attention_multiplies_by_the_scales() -> None:
    kind = LayerKind(4, 2, 8, 8, 0.3)
    rows = RaggedRows(indptr([1, 2]), indptr([3, 2]), int32([3, 0, 2, 0, 2]))
    k, v = values(), values(2.0)
    q = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))
    slots = torch.tensor([0, 2, 3])
    narrow = [torch.zeros((6, 2, 8), dtype=FP8) for _ in range(2)]
    wide = [torch.zeros(6, 2, 8) for _ in range(2)]
    for pool, exact, written, scale in zip(narrow, wide, (k, v), (0.01, 0.02), strict=True):
        store(pool, slots, written, scale)
        exact.copy_(pool.float() * scale)
    plan = ReferenceAttention().plan(rows)
    expected = plan.run(kind, q, LayerTensors(wide[0], wide[1]))
    got = plan.run(kind, q, LayerTensors(narrow[0], narrow[1], k_scale=0.01, v_scale=0.02))
    torch.testing.assert_close(got, expected)
