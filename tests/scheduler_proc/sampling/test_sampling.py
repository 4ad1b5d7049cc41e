"""The sampler: exact distributions, determinism, row independence, fall-backs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.batch import ForwardBatch, Masks, SuppressedIds
from scheduler_proc.sampling.penalties import LogitChanges
from srt.wire.filled_params import FilledParams
from tests.running.late import late
from tests.scheduler_proc.ragged import adjust_of, int32, sampling_batch
from tests.scheduler_proc.samplers import restricted, sample

if TYPE_CHECKING:
    import torch
    import transformers

    from scheduler_proc.sampling import logprobs as logprobs_module
    from scheduler_proc.sampling import sampling
else:
    logprobs_module = late("scheduler_proc.sampling.logprobs")
    sampling = late("scheduler_proc.sampling.sampling")
    torch = late("torch")
    transformers = late("transformers")


def sample_batch(
    count: int, changes: Sequence[dict[int, tuple[float, float]]] = (), /, **values: Any
) -> ForwardBatch:
    """A `sampling_batch` with changes of logits for each sample, or with none."""
    adjust = adjust_of(changes) if changes else None
    return replace(sampling_batch(count, **values), adjust=adjust)


def exact(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = -1,
    top_p: float = 1.0,
    min_p: float = 0.0,
    top_n_sigma: float = -1.0,
) -> np.ndarray:
    """The distribution [V] that the parameters define, by a direct sort in float64."""
    scaled = within_sigmas(logits, top_n_sigma).astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    if top_k > 0:
        probs[order[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1.0:
        enough = int(np.searchsorted(probs[order].cumsum(), np.float32(top_p))) + 1
        probs[order[enough:]] = 0.0
    probs[probs < np.float32(min_p) * probs.max()] = 0.0
    result: np.ndarray = probs / probs.sum()
    return result


def within_sigmas(logits: np.ndarray, top_n_sigma: float) -> np.ndarray:
    """One row's logits, with -inf where top-n-sigma takes them away."""
    left = logits[logits > -np.inf].astype(np.float64)
    floor = np.float32(left.max() - top_n_sigma * left.std())
    return np.where((top_n_sigma > 0) & (logits < floor), -np.inf, logits)


# Changes of single logits, the largest and the smallest among them: id -> (repeat, add).
CHANGES: dict[str, dict[int, tuple[float, float]]] = {
    "as it is": {},
    "penalties": {i: (1.3, -0.5 * (i % 3)) for i in range(12)},
    "bias": {3: (1.0, 2.5), 8: (1.0, -100.0), 20: (1.0, 0.25)},
    "both": {i: (0.8 if i % 2 else 1.5, 1.0 - 0.25 * (i % 5)) for i in range(0, 24, 3)},
}


def changed(logits: np.ndarray, changes: dict[int, tuple[float, float]]) -> np.ndarray:
    """One row's logits with its changes, token by token."""
    result = logits.copy()
    for token, (repeat, add) in changes.items():
        value = result[token]
        result[token] = (value / repeat if value > 0 else value * repeat) + add
    return result


def spread_logits(vocab: int, seed: int, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def check_draws(draws: int, name: str, **params: Any) -> None:
    """Compare this many draws with the exact distribution; impossible tokens must never come."""
    logits = spread_logits(24, seed=1)
    want = exact(changed(logits, CHANGES[name]), **params)
    changes = [CHANGES[name]] * draws if CHANGES[name] else []
    uniform = np.random.default_rng(2).random(draws)
    batch = sample_batch(draws, changes, uniform=uniform, **params)
    ids, _ = sample(torch.from_numpy(logits).expand(draws, -1), batch)
    counts = np.bincount(ids, minlength=24)
    assert counts[want == 0.0].sum() == 0
    expected = want[want > 0.0] * draws
    statistic = ((counts[want > 0.0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 5.0 * np.sqrt(2.0 * max(freedom, 1))


PARAMS = [
    dict(zip(("temperature", "top_k", "top_p", "min_p", "top_n_sigma"), values, strict=True))
    for values in product([0.7, 1.5], [-1, 5], [1.0, 0.8], [0.0, 0.1], [-1.0, 1.2])
]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("params", PARAMS[::5])
def test_draws_follow_the_exact_distribution(name: str, params: dict[str, Any]) -> None:
    check_draws(4000, name, **params)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("params", PARAMS)
def test_many_draws_follow_the_exact_distribution(name: str, params: dict[str, Any]) -> None:
    check_draws(20_000, name, **params)


def test_changes_come_before_masks_and_change_their_own_row_only() -> None:
    """An id that a mask or a suppression rules out stays ruled out, whatever is added to it."""
    logits = torch.from_numpy(np.stack([spread_logits(40, seed) for seed in range(4)]))
    before = logits.clone()
    changes = [{5: (1.0, 100.0)}, {}, {39: (2.0, 1.0), 0: (0.5, -1.0)}, {7: (1.0, 100.0)}]
    batch = sample_batch(4, changes)
    batch.suppressed = [SuppressedIds(0, int32([5]))]
    words = np.array([[2**32 - 1 - 2**7, 255]], np.uint32)
    batch.masks = Masks(words, int32([-1] * 3 + [0]))
    got = restricted(logits, batch).numpy()
    for row, change in enumerate(changes):
        want = changed(before[row].numpy(), change)
        gone = {0: [5], 3: [7]}.get(row, [])
        want[gone] = -np.inf
        np.testing.assert_allclose(got[row], want, rtol=1e-6)
    assert torch.equal(logits, before)
    ids, _ = sample(logits, batch)
    assert ids[0] != 5 and ids[3] != 7
    assert restricted(logits, sample_batch(4)) is logits


@pytest.mark.parametrize("penalty", [0.7, 1.0001, 1.3, 2.0])
def test_repetition_penalties_are_those_of_transformers(penalty: float) -> None:
    """Equal in float32, to a unit in the last place; tokens that repeat count once."""
    rng = np.random.default_rng(6)
    logits = torch.from_numpy((rng.standard_normal((5, 300)) * 4).astype(np.float32))
    tokens = rng.integers(0, 300, (5, 200))
    want = transformers.RepetitionPenaltyLogitsProcessor(penalty)(
        torch.from_numpy(tokens), logits.clone()
    )
    rows = [
        LogitChanges(FilledParams(repetition_penalty=penalty), int32(row[:120]), 300)
        for row in tokens
    ]
    for changes, row in zip(rows, tokens, strict=True):
        for token in row[120:].tolist():
            changes.count(token, 1)
    entries = [changes.entries for changes in rows]
    pairs = [zip(e.repeat.tolist(), e.add.tolist(), strict=True) for e in entries]
    by_token = [
        dict(zip(e.ids.tolist(), p, strict=True)) for e, p in zip(entries, pairs, strict=True)
    ]
    got = restricted(logits, sample_batch(5, by_token))
    torch.testing.assert_close(got, want, rtol=1.2e-7, atol=0.0)


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_n_sigma": 1.0}]
)
def test_the_draw_inverts_the_distribution(fields: dict[str, float]) -> None:
    """Equally spaced draws hit each token as often as its probability says, within one draw."""
    logits = spread_logits(40, seed=3)
    count = 4000
    uniform = (np.arange(count) + 0.5) / count
    batch = sample_batch(count, temperature=1.0, uniform=uniform, **fields)
    ids, _ = sample(torch.from_numpy(logits).expand(count, -1), batch)
    want = exact(logits, **fields)  # type: ignore[arg-type]
    assert np.abs(np.bincount(ids, minlength=40) - want * count).max() <= 1.0
    again, _ = sample(torch.from_numpy(logits).expand(count, -1), batch)
    np.testing.assert_array_equal(ids, again)


@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_the_largest_draw_is_still_a_likely_token(fields: dict[str, float]) -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf, 0.5, -torch.inf]])
    batch = sample_batch(1, temperature=1.0, uniform=np.nextafter(1.0, 0.0), **fields)
    assert sample(logits, batch)[0][0] in (0, 1, 3)


def mixed_batch(count: int, vocab: int) -> "tuple[torch.Tensor, dict[str, np.ndarray]]":
    rng = np.random.default_rng(4)
    logits = torch.from_numpy((rng.standard_normal((count, vocab)) * 3).astype(np.float32))
    logits = (logits * 4).round() / 4  # many ties
    fields = {
        "temperature": rng.choice([0.0, 0.05, 0.8, 1.3, 5.0], count),
        "top_k": rng.choice([-1, 1, 20, 1500], count),
        "top_p": rng.choice([1.0, 0.3, 0.95, 0.9999], count),
        "min_p": rng.choice([0.0, 0.0, 1e-4, 0.2], count),
        "top_n_sigma": rng.choice([-1.0, 0.0, 0.5, 2.0], count),
        "uniform": rng.random(count),
        "want_logprob": rng.random(count) < 0.5,
    }
    return logits, fields


def random_changes(count: int, vocab: int) -> list[dict[int, tuple[float, float]]]:
    """Changes of up to 50 tokens for every other row."""
    rng = np.random.default_rng(7)
    return [
        {
            token: (rng.uniform(0.7, 1.5), rng.normal())
            for token in rng.choice(vocab, 50 * (r % 2), replace=False).tolist()
        }
        for r in range(count)
    ]


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, fields = mixed_batch(96, 3000)
    changes = random_changes(96, 3000)
    ids, logprobs = sample(logits, sample_batch(96, changes, **fields))
    for r in range(96):
        alone = {name: column[r] for name, column in fields.items()}
        batch = sample_batch(1, changes[r : r + 1], **alone)
        one_id, one_logprob = sample(logits[r : r + 1], batch)
        assert one_id[0] == ids[r], {name: column[r] for name, column in fields.items()}
        np.testing.assert_allclose(one_logprob[0], logprobs[r], atol=1e-5)


def test_candidates_give_what_full_sorts_give(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, fields = mixed_batch(200, 3000)
    quick, _ = sample(logits, sample_batch(200, **fields))
    monkeypatch.setattr(f"{sampling.__name__}._candidate_count", lambda filters, vocab: vocab)
    full, _ = sample(logits, sample_batch(200, **fields))
    np.testing.assert_array_equal(quick, full)


def test_top_p_beyond_the_candidates_falls_back_to_a_full_sort() -> None:
    logits = np.zeros(5000, np.float32)
    logits[4000] = 0.1
    batch = sample_batch(3, temperature=1.0, top_p=0.9, uniform=[0.0, 0.5, np.nextafter(1.0, 0.0)])
    ids, _ = sample(torch.from_numpy(logits).expand(3, -1), batch)
    kept = np.flatnonzero(exact(logits, top_p=0.9))
    assert len(kept) > 4 * sampling._TOP_CANDIDATES
    # Ranked: token 4000, then the others, all equal, by id; the last rank kept is the largest id.
    assert ids[0] == 4000
    assert abs(int(ids[1]) - len(kept) // 2) <= 2
    assert ids[2] == kept[kept != 4000].max()


@pytest.mark.parametrize("fields", [{"top_k": 50}, {"top_p": 0.9}])
def test_common_settings_never_sort_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, float]
) -> None:
    counts: list[int] = []

    def recorded(weights: "torch.Tensor", count: int) -> "tuple[torch.Tensor, torch.Tensor]":
        counts.append(count)
        return logprobs_module.ranked(weights, count)

    monkeypatch.setattr(f"{sampling.__name__}.ranked", recorded)
    logits = torch.from_numpy(spread_logits(49152, seed=5, scale=5.0))[None]
    for temperature in (0.05, 1.0):
        sample(logits, sample_batch(1, temperature=temperature, **fields))
    assert len(counts) == 2 and max(counts) <= 1024


def test_top_n_sigma_looks_at_what_masks_and_changes_leave() -> None:
    """Two tokens are left, both a standard deviation from their mean; the others do not count."""
    logits = torch.tensor([[50.0, 3.0, 0.3, -90.0]]).repeat(4, 1)
    batch = sample_batch(
        *(4, [{2: (1.0, 0.5)}] * 4),
        temperature=1e4,
        uniform=np.nextafter(1.0, 0.0),
        top_n_sigma=[2.0, 1.99, 0.0, -1.0],
    )
    batch.suppressed = [SuppressedIds(row, int32([0, 3])) for row in range(4)]
    assert sample(logits, batch)[0].tolist() == [2, 1, 2, 2]


@pytest.mark.parametrize("temperature", [0.0, 1e-3, 1.0, 100.0])
def test_next_to_no_sigmas_leave_the_largest_logit(temperature: float) -> None:
    logits = torch.from_numpy(np.stack([spread_logits(50, seed) for seed in range(20)]))
    batch = sample_batch(20, temperature=temperature, top_n_sigma=1e-6, uniform=0.99)
    assert sample(logits, batch)[0].tolist() == logits.argmax(dim=-1).tolist()


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 5.0, 5.0]])
    assert sample(logits, sample_batch(2))[0].tolist() == [1, 0]
    assert sample(logits, sample_batch(2, temperature=1e-6))[0].tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_ids_never_come(temperature: float) -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0, 8.0]]).repeat(50, 1)
    before = logits.clone()
    batch = sample_batch(50, temperature=temperature, uniform=np.arange(50) / 50)
    batch.suppressed = [SuppressedIds(row, int32([0, 3])) for row in range(0, 50, 2)]
    ids, _ = sample(logits, batch)
    assert set(ids[::2]) <= {1, 2}
    assert set(ids[1::2]) <= {0, 3}
    assert torch.equal(logits, before)


def test_logprobs_are_of_the_unmodified_softmax() -> None:
    logits = torch.from_numpy(np.stack([spread_logits(50, seed) for seed in range(4)]))
    batch = sample_batch(
        4, temperature=[0.0, 3.0, 0.5, 1.0], top_k=5, want_logprob=[True, True, False, True]
    )
    batch.suppressed = [SuppressedIds(0, int32([int(logits[0].argmax())]))]
    ids, logprobs = sample(logits, batch)
    want = logits.double().log_softmax(-1).gather(1, torch.from_numpy(ids).long()[:, None])[:, 0]
    assert np.isnan(logprobs[2])
    np.testing.assert_allclose(logprobs[[0, 1, 3]], want[[0, 1, 3]], atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_disturb_nobody(temperature: float) -> None:
    logits = torch.from_numpy(np.stack([spread_logits(30, seed) for seed in range(5)]))
    fields = {"temperature": temperature, "uniform": [0.1, 0.3, 0.5, 0.7, 0.9], "top_p": 0.9}
    clean, _ = sample(logits, sample_batch(5, **fields))
    best = int(logits[1].argmax())
    broken = logits.clone()
    broken[1, best - 1] = torch.nan
    broken[2, 7] = torch.inf
    broken[3] = torch.nan
    batch = sample_batch(5, **fields)
    batch.suppressed = [SuppressedIds(3, int32([0]))]
    ids, _ = sample(broken, batch)
    assert ids.tolist() == [clean[0], best, 7, 1, clean[4]]
