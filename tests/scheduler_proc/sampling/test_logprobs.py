"""The most likely tokens, ties included, and how a batch's detail rows come out of its logits."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.batch import NO_DETAILS
from tests.running.late import late
from tests.scheduler_proc.ragged import details_of
from tests.scheduler_proc.samplers import details_in_parts

if TYPE_CHECKING:
    import torch

    from scheduler_proc.sampling import logprobs
else:
    logprobs = late("scheduler_proc.sampling.logprobs")
    torch = late("torch")


def by_a_sort(logits: np.ndarray, count: int) -> np.ndarray:
    """The best ids first; of equals, the lowest first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count]


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 5))
def test_of_equals_the_lowest_id(seed: int, count: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(-levels, levels, (6, 40)).astype(np.float32)
    logits *= rng.choice([1.0, -1e-30], (6, 1)).astype(np.float32)  # -0.0 and 0.0 are equals
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    for may_look in (True, False):
        got = logprobs.most_likely(torch.from_numpy(logits), count, may_look)
        np.testing.assert_array_equal(got.numpy(), by_a_sort(logits, count))


@pytest.mark.parametrize("may_look", [True, False])
@pytest.mark.parametrize("part", [1, 4, 100])
def test_detail_rows_in_parts(part: int, may_look: bool) -> None:
    """Some of 3 samples and 9 prompt positions ask for details."""
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal((12, 30)) * 3).round().astype(np.float32)  # with ties
    rows: list[tuple[int, int, list[int]]]
    rows = [(0, 30, [29, 0, 0]), (2, 0, [4]), (3, 1, []), (8, 5, [7, 8]), (11, 0, [])]
    starts = [0, *range(3, 12, part)]
    stops = [*starts[1:], 12]
    parts = [(torch.from_numpy(logits[a:b]), a) for a, b in zip(starts, stops, strict=True)]
    details = details_of(*zip(*rows, strict=True))
    top_ids, top_logprobs, id_logprobs = details_in_parts(details, parts, may_look)
    every = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    want: dict[str, list[Any]] = {"top": [], "top_logprobs": [], "id_logprobs": []}
    for row, num_top, ids in rows:
        best = by_a_sort(logits[row : row + 1], num_top)[0]
        want["top"] += best.tolist()
        want["top_logprobs"] += every[row, best].tolist()
        want["id_logprobs"] += every[row, ids].tolist()
    assert top_ids.dtype == np.int32
    assert top_logprobs.dtype == id_logprobs.dtype == np.float32
    assert top_ids.tolist() == want["top"]
    np.testing.assert_allclose(top_logprobs, want["top_logprobs"], atol=1e-5)
    np.testing.assert_allclose(id_logprobs, want["id_logprobs"], atol=1e-5)


def test_nobody_asks() -> None:
    found = details_in_parts(NO_DETAILS, [(torch.zeros(2, 5), 0)], may_look=True)
    assert [len(column) for column in found] == [0, 0, 0]
