"""What a pool holds after K or V has been written to it."""

from typing import TYPE_CHECKING

import pytest

from tests.running.late import late
from tests.scheduler_proc.ragged import indptr, int32

if TYPE_CHECKING:
    import torch

    from scheduler_proc.attention import base, kv_store, reference
else:
    base = late("scheduler_proc.attention.base")
    kv_store = late("scheduler_proc.attention.kv_store")
    reference = late("scheduler_proc.attention.reference")
    torch = late("torch")


SLOTS = [4, 0, 2]


def values(scale: float = 1.0) -> "torch.Tensor":
    return torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) * scale


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_wide_pools_hold_the_values(name: str) -> None:
    dtype = getattr(torch, name)
    pool, written = torch.full((6, 2, 8), torch.nan, dtype=dtype), values().to(dtype)
    kv_store.store(pool, torch.tensor(SLOTS), written, 3.0)
    assert torch.equal(pool[SLOTS], written)
    assert pool[[1, 3, 5]].isnan().all()


@pytest.mark.parametrize("scale", [1.0, 0.02, 5.0])
def test_eight_bits_hold_the_scaled_values(scale: float) -> None:
    pool, written = torch.zeros((6, 2, 8), dtype=kv_store.FP8), values(100 * scale)
    kv_store.store(pool, torch.tensor(SLOTS), written, scale)
    read = pool[SLOTS].float() * scale
    # Three bits of mantissa: half of the last is a sixteenth; below 2**-6 the step is constant.
    assert ((read - written).abs() <= written.abs() / 16 + scale * 2**-10).all()
    assert (pool[[1, 3, 5]].float() == 0).all()


def test_eight_bits_hold_at_most_the_largest_number() -> None:
    pool = torch.zeros((6, 2, 8), dtype=kv_store.FP8)
    written = values(1e4)
    written[0, 0, :2] = torch.tensor([torch.inf, torch.nan])
    kv_store.store(pool, torch.tensor(SLOTS), written, 1.0)
    read = pool[SLOTS].float()
    assert read[0, 0, 0] == kv_store.FP8_MAX == 448 and read[0, 0, 1].isnan()
    large = written.abs() >= kv_store.FP8_MAX
    assert large.any() and torch.equal(read[large], written[large].sign() * kv_store.FP8_MAX)


def test_attention_multiplies_by_the_scales() -> None:
    kind = base.LayerKind(4, 2, 8, 8, 0.3)
    rows = base.RaggedRows(indptr([1, 2]), indptr([3, 2]), int32([3, 0, 2, 0, 2]))
    k, v = values(), values(2.0)
    q = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))
    slots = torch.tensor([0, 2, 3])
    narrow = [torch.zeros((6, 2, 8), dtype=kv_store.FP8) for _ in range(2)]
    wide = [torch.zeros(6, 2, 8) for _ in range(2)]
    for pool, exact, written, scale in zip(narrow, wide, (k, v), (0.01, 0.02), strict=True):
        kv_store.store(pool, slots, written, scale)
        exact.copy_(pool.float() * scale)
    plan = reference.ReferenceAttention().plan(rows)
    expected = plan.run(kind, q, base.LayerTensors(wide[0], wide[1]))
    got = plan.run(kind, q, base.LayerTensors(narrow[0], narrow[1], k_scale=0.01, v_scale=0.02))
    torch.testing.assert_close(got, expected)
