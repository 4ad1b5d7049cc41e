"""Penalties and biases in the native engine: they change the logits of a draw, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.executor.native_executor import NativeExecutor
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import levels, load_or_skip
from tests.scheduler_proc.kernels.sampler import Case, Sampler, make_case, sampler_of
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import Row, adjust_of, int32, make_batch

Changes = dict[int, tuple[float, float]]  # id: (repeat, add)


@pytest.fixture(scope="module", params=levels())
def native(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    with sampler_of(request.param) as sampler:
        yield sampler


def adjust(case: Case, rows: list[Changes]) -> Case:
    return case._replace(batch=replace(case.batch, adjust=adjust_of(rows)))


def adjusted_logits(logits: np.ndarray, rows: list[Changes]) -> np.ndarray:
    """What the changes mean, one float32 operation at a time."""
    changed = logits.copy()
    with np.errstate(over="ignore"):
        for row, changes in zip(changed, rows, strict=True):
            for id, (repeat, add) in changes.items():
                by = np.float32(repeat)
                row[id] = (row[id] / by if row[id] > 0 else row[id] * by) + np.float32(add)
    return changed


def check_same_draws(native: Sampler, case: Case, rows: list[Changes]) -> None:
    """The draws are those from adjusted logits; log-probabilities are of the original ones."""
    before = case.logits.copy()
    ids, logprobs = native.sample(adjust(case, rows))
    np.testing.assert_array_equal(case.logits.view(np.uint32), before.view(np.uint32))
    expected, _ = native.sample(case._replace(logits=adjusted_logits(case.logits, rows)))
    np.testing.assert_array_equal(ids, expected)
    wanted = case.batch.samples.want_logprob
    exact = log_softmax(case.logits)[np.arange(len(ids)), ids]
    np.testing.assert_allclose(logprobs[wanted], exact[wanted], rtol=1e-6, atol=1e-5)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return result


@given(
    quarters=st.lists(st.integers(-12, 12), min_size=2, max_size=70),
    temperature=st.sampled_from([0.0, 0.5, 2.0]),
    top_k=st.sampled_from([-1, 1, 3, 100]),
    top_p=st.sampled_from([1.0, 0.5]),
    uniform=st.floats(0.0, 0.999),
    data=st.data(),
)
def test_small_rows(
    native: Sampler, quarters: list[int], data: st.DataObject, **fields: Any
) -> None:
    vocab = len(quarters)
    change = st.tuples(st.floats(0.125, 2.0, width=32), st.floats(-100.0, 100.0, width=32))
    changes = st.dictionaries(st.integers(0, vocab - 1), change, min_size=1)
    rows = [data.draw(changes, label="changes")]
    allowed = np.zeros((1, vocab), np.bool_)
    ids = data.draw(st.sets(st.integers(0, vocab - 1), min_size=1), label="allowed")
    allowed[0, list(ids)] = True
    case = make_case(np.array([quarters]) / 4.0, allowed, want_logprob=True, **fields)
    check_same_draws(native, case, rows)


@pytest.mark.parametrize(("vocab", "count"), some([(33, 100), (3001, 40), (49152, 8)]))
def test_larger_rows(native: Sampler, vocab: int, count: int) -> None:
    rng = np.random.default_rng(vocab)
    rows = []
    for lost in rng.choice([0, 1, 20, vocab], count):
        ids = rng.permutation(vocab)[:lost].tolist()
        changes = zip(rng.uniform(0.1, 2, lost), rng.normal(0, 3, lost), strict=True)
        rows.append(dict(zip(ids, changes, strict=True)))
    logits = rng.standard_normal((count, vocab)) * 3
    case = make_case(
        logits,
        temperature=rng.choice([0.0, 0.7, 1.2], count),
        top_k=rng.choice([-1, 5], count),
        top_p=rng.choice([1.0, 0.9], count),
        top_n_sigma=rng.choice([-1.0, 1.5], count),
        uniform=rng.random(count),
        want_logprob=rng.random(count) < 0.5,
    )
    case.batch.suppressed = [SuppressedIds(row, int32([0, 3])) for row in range(0, count, 3)]
    check_same_draws(native, case, rows)


def test_the_signs_of_a_penalty_and_of_a_bias(native: Sampler) -> None:
    """Greedy, one change per row. Penalties divide positive logits and multiply negative ones."""
    positive, negative = [2.0, 1.5, 0.0], [-1.0, -1.5, -9.0]
    logits = np.array([positive, positive, positive, negative, negative])
    rows: list[Changes] = [{0: (1.25, 0)}, {0: (1.5, 0)}, {2: (1, 3)}, {0: (1.25, 0)}, {0: (2, 0)}]
    ids, _ = native.sample(adjust(make_case(logits), rows))
    assert ids.tolist() == [0, 1, 2, 0, 1]


def test_no_bias_allows_what_a_mask_forbids(native: Sampler) -> None:
    allowed = np.array([[True, True, False]])
    case = adjust(make_case(np.zeros((1, 3)), allowed), [{2: (1, 100), 1: (1, 100), 0: (1, 1)}])
    assert native.sample(case)[0].tolist() == [1]
    case.batch.suppressed = [SuppressedIds(0, int32([1]))]
    assert native.sample(case)[0].tolist() == [0]


def test_a_row_that_may_draw_nothing_gets_its_logits_back(native: Sampler) -> None:
    logits = np.zeros((1, 40))
    case = adjust(make_case(logits, np.zeros((1, 40), np.bool_)), [{3: (1, 5)}])
    with pytest.raises(RuntimeError, match="sample 0"):
        native.sample(case)
    np.testing.assert_array_equal(case.logits, logits)


# ---- draws follow the exact distribution --------------------------------------------------------

VOCAB = 24
CHANGES: dict[str, Changes] = {
    "none": {},
    "repetition": dict.fromkeys(range(0, VOCAB, 2), (1.4, 0.0)),
    "frequency and presence": {id: (1.0, -0.3 - 0.2 * id) for id in range(5)},
    "bias": {3: (1.0, 2.0), 7: (1.0, -100.0), 11: (1.0, -1.0)},
    "all": {id: (0.8, 0.5 - 0.1 * id) for id in range(1, VOCAB, 3)},
}
FILTERS: list[dict[str, Any]] = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k, top_p, min_p in product([-1, 6], [1.0, 0.8], [0.0, 0.05])
]


def exact(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """The distribution [V] of the parameters, by a sort in float64."""
    probs = np.exp(log_softmax(logits / temperature))
    order = np.argsort(-probs, kind="stable")
    if top_k > 0:
        probs[order[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1.0:
        probs[order[int(np.searchsorted(probs[order].cumsum(), np.float32(top_p))) + 1 :]] = 0.0
    probs[probs < np.float32(min_p) * probs.max()] = 0.0
    result: np.ndarray = probs / probs.sum()
    return result


def check_distribution(
    native: Sampler, draws: int, temperature: float, changes: str, filters: dict[str, Any]
) -> None:
    logits = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32) * 2
    rows = [CHANGES[changes]] * draws
    changed = adjusted_logits(logits[None], rows[:1])[0].astype(np.float64)
    want = exact(changed, temperature, **filters)
    uniform = np.random.default_rng(2).random(draws)
    case = make_case(
        np.tile(logits, (draws, 1)), temperature=temperature, uniform=uniform, **filters
    )
    ids, _ = native.sample(adjust(case, rows) if CHANGES[changes] else case)
    counts = np.bincount(ids, minlength=VOCAB)
    assert counts[want == 0.0].sum() == 0
    assert chi_square(counts, want * draws) < 5.0


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The statistic, in standard deviations above its mean; rare tokens are counted together."""
    rare = expected < 8.0
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = max(len(expected) - 1, 1)
    return float((statistic - freedom) / np.sqrt(2.0 * freedom))


@pytest.mark.parametrize("changes", CHANGES)
def test_draws_follow_the_distribution(native: Sampler, changes: str) -> None:
    for filters in (FILTERS[0], FILTERS[-1]):
        check_distribution(native, 2_000, 0.8, changes, filters)


@pytest.mark.slow
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_many_draws_follow_the_distribution(
    native: Sampler, temperature: float, changes: str, filters: dict[str, Any]
) -> None:
    check_distribution(native, 20_000, temperature, changes, filters)


def test_another_distribution_is_told_apart(native: Sampler) -> None:
    """The statistic notices that one logit was raised by 0.3."""
    logits = np.zeros((20_000, VOCAB))
    uniform = np.random.default_rng(2).random(len(logits))
    case = make_case(logits, temperature=1.0, uniform=uniform)
    ids, _ = native.sample(adjust(case, [{0: (1.0, 0.3)}] * len(logits)))
    counts = np.bincount(ids, minlength=VOCAB)
    assert chi_square(counts, np.full(VOCAB, len(logits) / VOCAB)) > 5.0


# ---- the engine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_a_draw_is_the_same_alone_and_in_a_batch(tmp_path: Path, share_prefixes: bool) -> None:
    """Each sample has its own draw, filters and changes, and all share a prefix."""
    load_or_skip()
    sizes = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 16}
    files = save_directory(random_llama(**sizes), tmp_path)
    executor = NativeExecutor(
        files, max_total_tokens=300, num_threads=2, share_prefixes=share_prefixes
    )
    rng = np.random.default_rng(6)
    prefix = Row(rng.integers(0, 131, 140), range(140))
    executor.run(make_batch([prefix]))
    rows = [Row([i], [*range(140), 140 + i]) for i in range(24)]
    columns = {
        "temperature": rng.choice([0.0, 0.7, 1.5], 24),
        "top_k": rng.choice([-1, 20], 24),
        "top_p": rng.choice([1.0, 0.9], 24),
        "min_p": rng.choice([0.0, 0.01], 24),
        "top_n_sigma": rng.choice([-1.0, 3.0], 24),
        "uniform": rng.random(24),
    }
    changes = [{int(i): (1.7, -0.5) for i in rng.permutation(131)[: 1 + row]} for row in range(24)]
    batch = make_batch(rows, **columns, want_logprob=True)
    together = executor.run(replace(batch, adjust=adjust_of(changes)))
    assert len(set(together.next_ids.tolist())) > 10
    for i, row in enumerate(rows):
        own = {name: column[i] for name, column in columns.items()}
        batch = replace(make_batch([row], **own, want_logprob=True), adjust=adjust_of([changes[i]]))
        alone = executor.run(batch)
        assert alone.next_ids[0] == together.next_ids[i]
        assert alone.logprobs[0] == together.logprobs[i]


# ---- changes that cannot be made ----------------------------------------------------------------


def spoilt(name: str, index: int, value: float) -> ForwardBatch:
    rows: list[Changes] = [{3: (1.5, 0.0), 4: (1.0, -2.0)}, {}, {0: (1.0, 1.0)}]
    batch = adjust(make_case(np.zeros((3, 5))), rows).batch
    getattr(batch.adjust, name)[index] = value
    return batch


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("ids", 0, -1, r"adjust_ids\[0\] = -1 is not in \[0, 5\)"),
        ("ids", 2, 5, r"adjust_ids\[2\] = 5"),
        ("repeat", 1, 0.0, r"adjust_repeat\[1\]"),
        ("repeat", 1, np.inf, r"adjust_repeat\[1\]"),
        ("repeat", 2, np.nan, r"adjust_repeat\[2\]"),
        ("add", 0, np.nan, r"adjust_add\[0\]"),
        ("add", 0, -np.inf, r"adjust_add\[0\]"),
        ("indptr", 0, 1, "adjust_indptr does not begin with 0"),
        ("indptr", 2, 1, "adjust_indptr: row 1"),
        ("indptr", 3, 9, "adjust_indptr: row 2"),
    ],
)
def test_a_bad_change_is_refused(
    native: Sampler, name: str, index: int, value: float, message: str
) -> None:
    case = make_case(np.zeros((3, 5)))._replace(batch=spoilt(name, index, value))
    with pytest.raises(RuntimeError, match=message):
        native.sample(case)
