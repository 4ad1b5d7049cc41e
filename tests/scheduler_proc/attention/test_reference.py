"""The reference attention against a naive float64 loop over shuffled slots."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.running.late import late
from tests.scheduler_proc.ragged import indptr, int32

if TYPE_CHECKING:
    import torch

    from scheduler_proc.attention import base, reference
else:
    base = late("scheduler_proc.attention.base")
    reference = late("scheduler_proc.attention.reference")
    torch = late("torch")


NUM_SLOTS = 700


def naive(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    qo: np.ndarray,
    kv: np.ndarray,
    idx: np.ndarray,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    until: np.ndarray | None = None,
) -> np.ndarray:
    """One query, one head at a time, in float64."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    group = q.shape[1] // k.shape[1]
    scale = 1 / np.sqrt(q.shape[2]) if scale is None else scale
    for r in range(len(qo) - 1):
        slots = idx[kv[r] : kv[r + 1]]
        extend_len = qo[r + 1] - qo[r]
        for i in range(extend_len):
            at = len(slots) - extend_len + i
            end = at + 1 if until is None else max(at + 1, until[qo[r] + i])
            seen = slots[max(0, at + 1 - (window or len(slots))) : end]
            for h in range(q.shape[1]):
                scores = k[seen, h // group] @ q[qo[r] + i, h] * scale
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                top = max(scores.max(), -np.inf if sinks is None else sinks[h])
                weights = np.exp(scores - top)
                total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
                out[qo[r] + i, h] = weights / total @ v[seen, h // group]
    return out


def random_batch(
    rng: np.random.Generator, kv_heads: int, group: int, lengths: list[tuple[int, int]]
) -> tuple[np.ndarray, ...]:
    """q, k, v (float32; unlisted slots hold NaN) and the index arrays for (extend, seq) lengths."""
    qo = indptr([extend for extend, _ in lengths])
    kv = indptr([seq for _, seq in lengths])
    idx = int32(rng.permutation(NUM_SLOTS)[: kv[-1]])
    pools = np.full((2, NUM_SLOTS, kv_heads, 16), np.nan, np.float32)
    pools[:, idx] = rng.standard_normal((2, len(idx), kv_heads, 16))
    q = rng.standard_normal((qo[-1], kv_heads * group, 16)).astype(np.float32)
    return q, pools[0], pools[1], qo, kv, idx


def run(
    batch: tuple[np.ndarray, ...],
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    until: np.ndarray | None = None,
) -> np.ndarray:
    q, k, v, qo, kv, idx = batch
    kind = base.LayerKind(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=k.shape[2],
        value_dim=v.shape[2],
        scale=q.shape[2] ** -0.5 if scale is None else scale,
        window=window,
        softcap=softcap,
        sinks=sinks is not None,
    )
    plan = reference.ReferenceAttention().plan(base.RaggedRows(qo, kv, idx, until))
    pools = base.LayerTensors(
        torch.from_numpy(k), torch.from_numpy(v), None if sinks is None else torch.from_numpy(sinks)
    )
    return plan.run(kind, torch.from_numpy(q), pools).numpy()


@pytest.mark.parametrize("group", range(1, 9))
def test_ragged_batches_match_the_naive_loop(group: int) -> None:
    rng = np.random.default_rng(group)
    for _ in range(3):
        extends = rng.choice([1, 1, 2, 5, 17], size=6)
        lengths = [(int(e), int(e + rng.choice([0, 1, 30]))) for e in extends]
        batch = random_batch(rng, int(rng.integers(1, 4)), group, lengths)
        np.testing.assert_allclose(run(batch), naive(*batch), atol=2e-6)


@pytest.mark.parametrize(("extend_len", "seq_len"), [(300, 300), (129, 400), (128, 131)])
def test_long_extends_in_query_blocks(extend_len: int, seq_len: int) -> None:
    assert extend_len >= reference._QUERY_BLOCK
    batch = random_batch(np.random.default_rng(0), 2, 3, [(1, 9), (extend_len, seq_len), (2, 2)])
    np.testing.assert_allclose(run(batch), naive(*batch), atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.7},
        {"window": 1},
        {"window": 7},
        {"window": 130},
        {"window": 1000},
        {"softcap": 1.5},
        {"scale": 0.5, "window": 20, "softcap": 2.0},
    ],
)
def test_scale_window_and_soft_cap(options: dict[str, Any]) -> None:
    """For decodes, prompts, chunks of prompts, and extends of several query blocks."""
    lengths = [(1, 40), (5, 5), (12, 60), (300, 300), (1, 1), (150, 200)]
    batch = random_batch(np.random.default_rng(4), 2, 2, lengths)
    expected = naive(*batch, **options)
    np.testing.assert_allclose(run(batch, **options), expected, atol=2e-6)
    if options != {"window": 1000}:
        assert np.abs(expected - naive(*batch)).max() > 0.1


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"softcap": 2.0}])
def test_sinks_take_weight(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    batch = random_batch(rng, 2, 2, [(1, 40), (5, 5), (300, 310), (1, 1)])
    sinks = rng.standard_normal(4).astype(np.float32) + 2
    expected = naive(*batch, sinks=sinks, **options)
    np.testing.assert_allclose(run(batch, sinks=sinks, **options), expected, atol=2e-6)
    assert np.abs(expected - naive(*batch, **options)).max() > 0.1


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"softcap": 2.0}])
def test_tokens_that_see_each_other_both_ways(options: dict[str, Any]) -> None:
    """Spans across query blocks, and one that is the whole of a row."""
    batch = random_batch(np.random.default_rng(8), 2, 2, [(1, 40), (300, 310), (6, 6)])
    until = np.zeros(307, np.int32)
    until[1 + 100 : 1 + 180] = 190  # positions 110 to 189 of the second row
    until[301:] = 6
    expected = naive(*batch, until=until, **options)
    np.testing.assert_allclose(run(batch, until=until, **options), expected, atol=2e-6)
    assert np.abs(expected - naive(*batch, **options)).max() > 0.1


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_what_lies_before_the_window_is_not_read(softcap: float | None) -> None:
    q, k, v, qo, kv, idx = random_batch(np.random.default_rng(5), 1, 2, [(3, 30), (1, 20)])
    clean = run((q, k, v, qo, kv, idx), window=8, softcap=softcap)
    for gone in (idx[:20], idx[30:42]):
        k[gone], v[gone] = np.nan, np.nan
    again = run((q, k, v, qo, kv, idx), window=8, softcap=softcap)
    np.testing.assert_array_equal(again, clean)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_values_of_another_size_than_keys(softcap: float | None) -> None:
    q, k, v, qo, kv, idx = random_batch(np.random.default_rng(6), 2, 2, [(3, 30), (1, 20)])
    batch = (q, k, v[:, :, :10].copy(), qo, kv, idx)
    assert run(batch, softcap=softcap).shape == (4, 4, 10)
    expected = naive(*batch, softcap=softcap)
    np.testing.assert_allclose(run(batch, softcap=softcap), expected, atol=2e-6)


def test_consecutive_slots_are_read_as_a_view_and_give_the_same() -> None:
    q, k, v, qo, kv, idx = random_batch(np.random.default_rng(1), 2, 2, [(4, 40), (1, 25)])
    gathered = run((q, k, v, qo, kv, idx))
    packed = int32(np.arange(len(idx)) + 100)
    k2, v2 = (np.full_like(pool, np.nan) for pool in (k, v))
    k2[packed], v2[packed] = k[idx], v[idx]
    assert isinstance(reference._as_slots(packed, torch.device("cpu")), slice)
    np.testing.assert_allclose(run((q, k2, v2, qo, kv, packed)), gathered, atol=1e-6)
    windowed = run((q, k, v, qo, kv, idx), window=9)
    np.testing.assert_allclose(run((q, k2, v2, qo, kv, packed), window=9), windowed, atol=1e-6)


@pytest.mark.parametrize("indices", [[7], [3, 4, 5], [5, 4, 3], [1, 3, 2, 4], [0, 2]])
def test_a_slice_only_for_one_ascending_run(indices: list[int]) -> None:
    slots = reference._as_slots(int32(indices), torch.device("cpu"))
    assert torch.arange(10)[slots].tolist() == indices
    assert isinstance(slots, slice) == (
        indices == list(range(indices[0], indices[0] + len(indices)))
    )


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(2)
    q, k, v, qo, kv, idx = random_batch(rng, 2, 4, [(3, 50), (1, 60), (8, 8)])
    together = run((q, k, v, qo, kv, idx))
    for r in range(3):
        rows, slots = slice(qo[r], qo[r + 1]), idx[kv[r] : kv[r + 1]]
        alone = run((q[rows], k, v, indptr([qo[r + 1] - qo[r]]), indptr([len(slots)]), slots))
        np.testing.assert_allclose(alone, together[rows], atol=1e-6)


def test_a_poisoned_row_stays_alone() -> None:
    q, k, v, qo, kv, idx = random_batch(np.random.default_rng(3), 1, 2, [(1, 20), (1, 30)])
    clean = run((q, k, v, qo, kv, idx))
    k[idx[5]] = np.nan
    poisoned = run((q, k, v, qo, kv, idx))
    assert np.isnan(poisoned[0]).all()
    np.testing.assert_array_equal(poisoned[1], clean[1])
