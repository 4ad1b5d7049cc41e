"""The native sampler compared with the reference, at every instruction-set level of this machine.

Both draw the same token unless the draw is too near to a boundary: their exponentials differ in
the last bits. Then the token must be one that slightly different weights would give.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import levels
from tests.scheduler_proc.kernels.sampler import Case, Sampler, make_case, sampler_of
from tests.scheduler_proc.ragged import int32
from tests.scheduler_proc.sampling.test_sampling import within_sigmas

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


TOP_K_OFF = [-1, 2**31 - 1]
ALMOST_ONE = float(np.nextafter(1.0, 0.0))
ROUNDING = 5e-7  # relative to a weight: a few units in the last place
SUM_ROUNDING = 1e-6  # relative to a cumulative weight


@pytest.fixture(scope="module", params=levels())
def native(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    with sampler_of(request.param) as sampler:
        yield sampler


def suppress_some(case: Case, rng: np.random.Generator) -> Case:
    count, vocab = case.logits.shape
    ids = [int32(rng.integers(0, vocab, rng.choice([0, 1, 3]))) for _ in range(count)]
    suppressed = [SuppressedIds(row, entry) for row, entry in enumerate(ids) if len(entry)]
    return case._replace(batch=replace(case.batch, suppressed=suppressed))


def random_masks(rng: np.random.Generator, count: int, vocab: int) -> np.ndarray:
    """Masks of a handful of ids up to all of them; runs of words are empty or full."""
    share = rng.choice([0.0, 0.001, 0.03, 0.5, 0.98, 1.0, 1.0], count)
    allowed = rng.random((count, vocab)) < share[:, None]
    allowed[::5, vocab // 3 : vocab // 2] = False
    allowed[::7, vocab // 2 :] = True
    allowed[np.arange(count), rng.integers(0, vocab, count)] = True
    return allowed


def random_case(seed: int, count: int, vocab: int, spread: float, step: float) -> Case:
    """Rows of normal logits, rounded to multiples of `step` (so that they tie) unless it is 0."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((count, vocab)) * spread
    case = make_case(
        (logits / step).round() * step if step else logits,
        random_masks(rng, count, vocab),
        temperature=rng.choice([0.0, 1e-6, 1e-3, 0.3, 0.8, 1.0, 1.5, 20.0], count),
        top_k=rng.choice([*TOP_K_OFF, -1, 1, 2, 20, 50, 300, 1500, 20000], count),
        top_p=rng.choice([1.0, 1.0, 1e-3, 0.3, 0.9, 0.95, 0.9999], count),
        min_p=rng.choice([0.0, 0.0, 0.0, 1e-4, 0.05, 0.3, 1.0], count),
        top_n_sigma=rng.choice([-1.0, -1.0, 0.0, 1e-6, 0.5, 1.0, 2.0, 4.0, 100.0], count),
        uniform=np.where(rng.random(count) < 0.1, ALMOST_ONE, rng.random(count)),
        want_logprob=rng.random(count) < 0.5,
    )
    return suppress_some(case, rng)


def could_be_drawn(case: Case, row: int, token: int) -> bool:
    """Whether a rounding error may make `token` the draw of `row`, found by a sort in float64."""
    batch, left = case.batch, case.candidates()[row]
    logits = np.where(left, case.logits[row], -np.inf).astype(np.float32)
    logits = within_sigmas(logits, batch.samples.top_n_sigma[row])
    with np.errstate(over="ignore"):
        scaled = (logits - logits.max()) / batch.samples.temperature[row]
        weights = np.exp(scaled).astype(np.float64)
    kept = kept_weights(weights, batch, row)
    tolerance = SUM_ROUNDING * weights.sum()
    if kept is None:
        target, through = batch.samples.uniform[row] * weights.sum(), weights[: token + 1].sum()
        return bool(through - weights[token] - tolerance <= target <= through + tolerance)
    heavier = weights[weights > weights[token] * (1 + ROUNDING)].sum()
    as_heavy = weights[weights >= weights[token] * (1 - ROUNDING)].sum()
    target = batch.samples.uniform[row] * kept.sum()
    is_kept = weights[token] >= kept[-1] * (1 - ROUNDING)
    return bool(is_kept and heavier - tolerance <= target <= as_heavy + tolerance)


def kept_weights(weights: np.ndarray, batch: ForwardBatch, row: int) -> np.ndarray | None:
    """The weights that the filters keep, in rank order; None if nothing filters."""
    samples = batch.samples
    top_k, top_p, min_p = samples.top_k[row], float(samples.top_p[row]), float(samples.min_p[row])
    limit = top_k if 0 < top_k < len(weights) else len(weights)
    if limit == len(weights) and top_p >= 1.0 and min_p <= 0.0:
        return None
    ranked = np.sort(weights)[::-1][:limit]
    if top_p < 1.0:
        ranked = ranked[: np.searchsorted(ranked.cumsum(), top_p * ranked.sum()) + 1]
    return ranked[: max(1, (ranked >= min_p).sum())]


def check(case: Case, native: Sampler, differing: float = 0.02) -> None:
    """Tokens are the reference's, except for a few that rounding explains; logprobs are exact."""
    before = case.logits.copy()
    ids, logprobs = native.sample(case)
    np.testing.assert_array_equal(case.logits, before)
    want, _ = case.reference()
    assert case.candidates()[np.arange(len(ids)), ids].all()
    others = np.flatnonzero(ids != want)
    assert len(others) <= max(1, differing * len(ids))
    for row in others.tolist():
        assert could_be_drawn(case, row, int(ids[row])), f"row {row}: {ids[row]}, not {want[row]}"
    check_logprobs(case, ids, logprobs)


def check_logprobs(case: Case, ids: np.ndarray, logprobs: np.ndarray) -> None:
    wanted = case.batch.samples.want_logprob
    assert np.isnan(logprobs[~wanted]).all()
    exact = torch.from_numpy(case.logits).double().log_softmax(-1).numpy()
    chosen = exact[np.arange(len(ids)), ids]
    np.testing.assert_allclose(logprobs[wanted], chosen[wanted], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("spread", "step"),
    some([(3.0, 0.0), (3.0, 0.25), (0.3, 0.0), (8.0, 0.0)], (3.0, 0.0), (3.0, 0.25)),
)
@pytest.mark.parametrize(
    ("vocab", "count"),
    some(
        [(1, 20), (7, 200), (33, 200), (256, 100), (3001, 60), (49152, 24)],
        *((1, 20), (33, 200), (3001, 60)),
    ),
)
def test_tokens_are_the_references(
    native: Sampler, vocab: int, count: int, spread: float, step: float
) -> None:
    rng = np.random.default_rng(0)
    case = random_case(vocab, count, vocab, spread, step)
    left = case.candidates()
    for row in np.flatnonzero(~left.any(axis=1)):  # all that the mask left is suppressed
        case.allowed[row] = True
        case.logits[row] = rng.standard_normal(vocab)
    rest = case.candidates().any(axis=1)
    check(pick(case, np.flatnonzero(rest)), native)


def pick(case: Case, rows: np.ndarray) -> Case:
    """The case of these rows alone."""
    batch = case.batch
    columns = batch.samples.take(rows)._asdict()
    picked = make_case(case.logits[rows], case.allowed[rows], **columns)
    renamed = {int(row): i for i, row in enumerate(rows)}
    kept = [entry for entry in batch.suppressed if entry.row in renamed]
    picked.batch.suppressed = [SuppressedIds(renamed[row], ids) for row, ids in kept]
    return picked


@given(
    quarters=st.lists(st.integers(-12, 12), min_size=1, max_size=70),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 1, 2, 3, 8, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.01, 0.4, 1.0]),
    top_n_sigma=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]),
    uniform=st.floats(0.0, ALMOST_ONE),
    data=st.data(),
)
def test_small_rows(
    native: Sampler, quarters: list[int], data: st.DataObject, **fields: Any
) -> None:
    vocab = len(quarters)
    allowed = np.zeros((1, vocab), np.bool_)
    ids = data.draw(st.sets(st.integers(0, vocab - 1), min_size=1), label="allowed")
    allowed[0, list(ids)] = True
    case = make_case(np.array([quarters]) / 4.0, allowed, want_logprob=True, **fields)
    check(case, native)


@pytest.mark.parametrize(
    "fields",
    some(
        [
            *({"top_p": 0.9}, {"top_p": 0.9999}, {"min_p": 1e-4}, {"top_k": 20000}, {"top_k": 400}),
            *({"top_n_sigma": 4.0}, {"top_n_sigma": 4.0, "top_p": 0.9}),
        ],
        *({"top_p": 0.9999}, {"min_p": 1e-4}, {"top_k": 20000}),
        {"top_n_sigma": 4.0, "top_p": 0.9},
    ),
)
@pytest.mark.parametrize("spread", some([0.0, 0.1, 1.0], 0.1))
def test_filters_that_keep_much_of_the_vocabulary(
    native: Sampler, fields: dict[str, Any], spread: float
) -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((6, 30000)) * spread).round(3)
    uniform = [0.0, 0.1, 0.5, 0.77, 0.999, ALMOST_ONE]
    check(make_case(logits, temperature=1.3, uniform=uniform, **fields), native, differing=0.5)


@pytest.mark.parametrize(
    "fields",
    some(
        [{}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_n_sigma": 1.0}],
        {},
        {"top_p": 0.9},
    ),
)
def test_equally_spaced_draws_hit_each_token_as_the_reference_does(
    native: Sampler, fields: dict[str, Any]
) -> None:
    logits = np.random.default_rng(3).standard_normal(40) * 2
    uniform = (np.arange(4000) + 0.5) / 4000
    case = make_case(np.tile(logits, (4000, 1)), temperature=1.0, uniform=uniform, **fields)
    counts = [np.bincount(ids, minlength=40) for ids, _ in (native.sample(case), case.reference())]
    assert np.abs(counts[0] - counts[1]).max() <= 1


@pytest.mark.parametrize("vocab", some([2, 20, 5000], 20))
def test_a_logit_at_the_floor_of_top_n_sigma_stays(native: Sampler, vocab: int) -> None:
    """Two tokens are one standard deviation from their mean. Masked tokens do not count, whether
    the sampler makes a list of the two that are left (5000) or not."""
    rng = np.random.default_rng(vocab)
    logits = rng.permuted(np.tile(np.arange(vocab) / 7, (300, 1)), axis=1).astype(np.float32)
    allowed = rng.permuted(np.arange(vocab) < np.full((300, 1), 2), axis=1)
    highest = np.where(allowed, logits, -np.inf).argmax(axis=1)
    lowest = np.where(allowed, logits, np.inf).argmin(axis=1)
    last_rank = {"temperature": 1e4, "top_p": 0.9999, "uniform": ALMOST_ONE}
    for sigmas, want in [(2.0, lowest), (1.99, highest), (0.0, lowest), (-1.0, lowest)]:
        case = make_case(logits, allowed, top_n_sigma=sigmas, **last_rank)
        np.testing.assert_array_equal(native.sample(case)[0], want)
        np.testing.assert_array_equal(case.reference()[0], want)


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_first_of_equals(native: Sampler, temperature: float) -> None:
    logits = np.zeros((3, 1000))
    logits[1, [300, 301, 900]] = 2.0
    logits[2] = -7.0
    assert native.sample(make_case(logits, temperature=temperature))[0].tolist() == [0, 300, 0]


def test_equal_weights_rank_by_id(native: Sampler) -> None:
    logits = np.zeros((4, 1000))
    logits[:, 600] = 1.0
    uniform = [0.0, 0.4, 0.6, ALMOST_ONE]
    case = make_case(logits, temperature=1e4, top_k=4, uniform=uniform)
    assert native.sample(case)[0].tolist() == [600, 0, 1, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab", [30, 700])
def test_rows_that_are_not_finite(native: Sampler, temperature: float, vocab: int) -> None:
    logits = np.random.default_rng(1).standard_normal((8, vocab)).astype(np.float32)
    logits[1, 3] = np.nan
    logits[2, [9, 7]] = np.inf
    logits[3] = np.nan
    logits[4] = -np.inf
    logits[4, 5] = np.nan
    logits[5, 2], logits[5, 4] = np.finfo(np.float32).max, np.inf
    logits[6] = -np.inf
    logits[7, 4] = np.inf
    uniform = np.linspace(0.1, 0.9, 8)
    case = make_case(logits, temperature=temperature, uniform=uniform, top_p=0.9)
    case.batch.suppressed = [SuppressedIds(3, int32([0])), SuppressedIds(7, int32([4]))]
    np.testing.assert_array_equal(native.sample(case)[0], case.reference()[0])


def test_what_may_not_be_drawn_need_not_be_finite(native: Sampler) -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((40, 900)).astype(np.float32)
    allowed = rng.random((40, 900)) < np.repeat([0.02, 0.6], 20)[:, None]
    allowed[:, 0] = True
    broken = np.where(allowed, logits, np.float32(np.nan))
    fields = {"temperature": 1.0, "uniform": rng.random(40), "top_k": rng.choice([-1, 10], 40)}
    clean = native.sample(make_case(logits, allowed, **fields))[0]
    np.testing.assert_array_equal(native.sample(make_case(broken, allowed, **fields))[0], clean)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_may_draw_nothing_is_an_error(native: Sampler, temperature: float) -> None:
    allowed = np.ones((3, 50), np.bool_)
    allowed[1] = False
    allowed[1, 4] = True
    case = make_case(np.zeros((3, 50)), allowed, temperature=temperature)
    assert native.sample(case)[0][1] == 4
    case.batch.suppressed = [SuppressedIds(1, int32([4]))]
    with pytest.raises(RuntimeError, match="sample 1"):
        native.sample(case)


def test_log_probabilities_are_of_the_unmodified_softmax(native: Sampler) -> None:
    logits = np.random.default_rng(6).standard_normal((4, 5000)).astype(np.float32) * 6
    logits[3] += 1000
    allowed = np.ones(logits.shape, np.bool_)
    allowed[1, logits[1] > 0] = False
    wanted = np.array([True, True, False, True])
    case = make_case(logits, allowed, temperature=[0.0, 3.0, 0.5, 1.0], want_logprob=wanted)
    case.batch.suppressed = [SuppressedIds(0, int32([int(logits[0].argmax())]))]
    check_logprobs(case, *native.sample(case))


def test_a_row_does_not_depend_on_the_others(native: Sampler) -> None:
    case = random_case(8, 60, 3000, spread=3.0, step=0.25)
    case = pick(case, np.flatnonzero(case.candidates().any(axis=1)))
    ids, logprobs = native.sample(case)
    order = np.random.default_rng(9).permutation(len(ids))
    again, logprobs_again = native.sample(pick(case, order))
    np.testing.assert_array_equal(again, ids[order])
    np.testing.assert_array_equal(logprobs_again, logprobs[order])
