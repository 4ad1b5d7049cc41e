"""Detailed log-probabilities of the native engine: the likeliest tokens, and chosen ids."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.executor.native_executor import NativeExecutor
from srt.files.model_files import ModelFiles
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import levels, load_or_skip
from tests.scheduler_proc.kernels.sampler import Sampler, make_case, sampler_of
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import Row, adjust_of, details_of, indptr, make_batch

if TYPE_CHECKING:
    from scheduler_proc.executor import torch_executor
else:
    torch_executor = late("scheduler_proc.executor.torch_executor")


VOCAB = 131
POOL = 400


@pytest.fixture(scope="module", params=levels())
def native(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    with sampler_of(request.param) as sampler:
        yield sampler


def ask(
    batch: ForwardBatch, rows: Sequence[int], top: Sequence[int], ids: Sequence[Any]
) -> ForwardBatch:
    """The batch with detail rows: how many of the likeliest tokens each asks for, and which ids."""
    return replace(batch, details=details_of(rows, top, ids))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return result


def check(batch: ForwardBatch, result: StepResult, logits: np.ndarray, atol: float = 1e-5) -> None:
    """Check the result's details; logits [S + L, V] are those of the batch's rows."""
    asked, found = batch.details, result.details
    assert asked is not None and found is not None
    exact = log_softmax(logits)
    ends = indptr(asked.top.tolist())
    for d, row in enumerate(asked.rows):
        top = found.top_ids[ends[d] : ends[d + 1]]
        np.testing.assert_array_equal(top, np.argsort(-logits[row], kind="stable")[: len(top)])
        given = found.top_logprobs[ends[d] : ends[d + 1]]
        np.testing.assert_allclose(given, exact[row][top], rtol=1e-6, atol=atol)
        part = slice(asked.indptr[d], asked.indptr[d + 1])
        wanted = exact[row][asked.ids[part]]
        np.testing.assert_allclose(found.id_logprobs[part], wanted, rtol=1e-6, atol=atol)


# ---- the kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, 0.25])
@pytest.mark.parametrize(
    ("vocab", "count"),
    some([(1, 4), (7, 30), (33, 30), (256, 30), (3001, 30), (49152, 12)], (7, 30), (3001, 30)),
)
def test_the_likeliest_come_in_order(native: Sampler, vocab: int, count: int, step: float) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((count, vocab)) * 3
    if step:  # so that they tie
        logits = (logits / step).round() * step
    case = make_case(logits, temperature=1.0, uniform=rng.random(count))
    asking = np.flatnonzero(rng.random(count) < 0.8)
    top = np.minimum(rng.choice([0, 1, 2, 5, 20, 90, 700, 1600, 60000], len(asking)), vocab)
    ids = [rng.integers(0, vocab, rng.choice([0, 1, 3])) for _ in asking]
    before = case.logits.copy()
    batch = ask(case.batch, asking.tolist(), top.tolist(), ids)
    check(batch, native.run(case._replace(batch=batch)), case.logits)
    np.testing.assert_array_equal(case.logits, before)


def test_equal_logits_rank_by_id(native: Sampler) -> None:
    logits = np.zeros((1, 5000))
    logits[0, 4000:] = -0.0
    logits[0, 3000] = 1.0
    case = make_case(logits)
    for top in (1, 4, 9, 2000, 5000):
        batch = ask(case.batch, [0], [top], [[]])
        found = native.run(case._replace(batch=batch)).details
        assert found is not None
        assert found.top_ids.tolist() == [3000, *(i for i in range(5000) if i != 3000)][:top]


def test_details_are_of_the_unmodified_softmax(native: Sampler) -> None:
    rng = np.random.default_rng(3)
    allowed = rng.random((3, 900)) < 0.01
    allowed[:, 7] = True
    case = make_case(rng.standard_normal((3, 900)), allowed, temperature=9.0, want_logprob=True)
    best = case.logits.argmax(axis=-1).tolist()
    adjusted = replace(case.batch, adjust=adjust_of([{id: (2.0, -50.0)} for id in best]))
    batch = ask(adjusted, [0, 1, 2], [900, 5, 0], [[5, 5, 899], [], [0]])
    result = native.run(case._replace(batch=batch))
    check(batch, result, case.logits)
    assert result.details is not None
    assert result.details.id_logprobs[0] == result.details.id_logprobs[1]
    chosen = log_softmax(case.logits)[np.arange(3), result.next_ids]
    np.testing.assert_allclose(result.logprobs, chosen, atol=1e-5)


@pytest.mark.parametrize("top", [4, 300])
def test_rows_that_are_not_finite_have_no_numbers(native: Sampler, top: int) -> None:
    logits = np.random.default_rng(1).standard_normal((4, 300)).astype(np.float32)
    logits[0, 200] = np.nan
    logits[1, [9, 7]] = np.inf
    logits[2] = -np.inf
    logits[3, 100:] = -np.inf
    case = make_case(logits)
    batch = ask(case.batch, range(4), [top] * 4, [[0]] * 4)
    result = native.run(case._replace(batch=batch))
    found = result.details
    assert found is not None
    ranked, values = found.top_ids.reshape(4, top), found.top_logprobs.reshape(4, top)
    assert all(len(set(row.tolist())) == top for row in ranked)
    assert ranked[0, :4].tolist() == np.argsort(-np.nan_to_num(logits[0], nan=-9))[:4].tolist()
    assert ranked[1:3, :2].tolist() == [[7, 9], [0, 1]]
    assert np.isnan(values[0]).all() and np.isnan(values[2]).all()
    assert np.isnan(values[1, :2]).all() and (values[1, 2:] == -np.inf).all()
    np.testing.assert_allclose(values[3, :4], np.sort(log_softmax(logits[3]))[::-1][:4], atol=1e-5)
    assert (values[3, 100:] == -np.inf).all()


# ---- the engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    sizes = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 16}
    return save_directory(random_llama(**sizes), tmp_path_factory.mktemp("small"))


def load(files: ModelFiles, **options: Any) -> NativeExecutor:
    load_or_skip()
    return NativeExecutor(files, max_total_tokens=POOL, **{"num_threads": 2, **options})


def prompt_and_samples() -> ForwardBatch:
    """150 scored tokens of one row (more than are held at once), and two rows that sample."""
    rng = np.random.default_rng(4)
    ids = rng.integers(0, VOCAB, 151)
    rows = [
        Row(ids[:150], range(150), targets=ids[1:], samples=False),
        Row([5, 6, 7], [200, 201, 202], targets=[8]),
        Row([9], [210]),
    ]
    temperature, uniform = [0.0, 0.8], [0.5, 0.3]
    batch = make_batch(rows, want_logprob=True, temperature=temperature, uniform=uniform)
    asking = [0, 1, 2, 5, 65, 66, 70, 151, 152]
    top = [3, 0, VOCAB, 5, 1, 0, 20, 4, 2]
    return ask(batch, asking, top, [[row % VOCAB, 7][: i % 3] for i, row in enumerate(asking)])


@pytest.mark.parametrize("isa", levels())
def test_samples_and_prompts_have_details(small: ModelFiles, tmp_path: Path, isa: str) -> None:
    batch = prompt_and_samples()
    everything = ask(batch, range(153), [VOCAB] * 153, [np.arange(VOCAB)] * 153)
    executor = load(small, exact=True, isa=isa)
    whole = executor.run(everything)
    assert whole.details is not None
    logprobs = whole.details.id_logprobs.reshape(153, VOCAB)
    np.testing.assert_allclose(np.exp(logprobs.astype(np.float64)).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(
        logprobs[2:][np.arange(151), batch.logprob_targets], whole.prompt_logprobs
    )
    np.testing.assert_array_equal(logprobs[np.arange(2), whole.next_ids], whole.logprobs)
    check(everything, whole, logprobs)
    result = executor.run(batch)
    check(batch, result, logprobs)
    np.testing.assert_array_equal(result.prompt_logprobs, whole.prompt_logprobs)


def test_log_probabilities_are_the_torch_executors(small: ModelFiles) -> None:
    rng = np.random.default_rng(4)
    ids = rng.integers(0, VOCAB, 60)
    executor = load(small, exact=True)
    reference = torch_executor.TorchExecutor(small, max_total_tokens=POOL)
    for token in range(0, VOCAB, 10):
        row = Row(ids, range(60), targets=[token] * 60)
        batch = make_batch([row])
        want = reference.run(batch).prompt_logprobs
        asked = ask(batch, [1, 30, 60], [0, 0, 0], [[token]] * 3)
        found = executor.run(asked).details
        assert found is not None
        np.testing.assert_allclose(found.id_logprobs, want[[0, 29, 59]], atol=1e-3)


def test_threads_and_company_do_not_change_a_bit(small: ModelFiles) -> None:
    batch = prompt_and_samples()
    results = [load(small, num_threads=threads).run(batch) for threads in (1, 2, 3)]
    for other in results[1:]:
        for part, same in zip(results[0].columns, other.columns, strict=True):
            np.testing.assert_array_equal(part, same)


def test_identical_steps_need_no_more_memory(small: ModelFiles) -> None:
    executor, batch = load(small), prompt_and_samples()
    executor.run(batch)
    grown = executor.num_growths
    for _ in range(3):
        executor.run(batch)
        executor.run(replace(batch, details=None))
    assert executor.num_growths == grown


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("rows", 0, -1, r"detail_rows\[0\] = -1"),
        ("rows", 8, 153, r"detail_rows\[8\] = 153 is not in \[0, 153\)"),
        ("rows", 4, 5, r"detail_rows\[4\] does not ascend"),
        ("top", 3, VOCAB + 1, "top_indptr: row 3"),
        ("top", 3, -1, "top_indptr: row 3"),
        ("indptr", 0, 1, "detail_indptr does not begin"),
        ("indptr", 4, 100, "detail_indptr: row 4"),
        ("ids", 0, VOCAB, r"detail_ids\[0\] = 131"),
        ("ids", 1, -1, r"detail_ids\[1\] = -1"),
    ],
)
def test_bad_details_are_refused(
    small: ModelFiles, name: str, index: int, value: int, message: str
) -> None:
    batch = prompt_and_samples()
    getattr(batch.details, name)[index] = value
    with pytest.raises(RuntimeError, match=message):
        load(small).run(batch)


@pytest.mark.parametrize("name", ["top", "indptr", "ids"])
def test_arrays_of_another_length_are_refused(small: ModelFiles, name: str) -> None:
    batch = prompt_and_samples()
    assert batch.details is not None
    batch.details = batch.details._replace(**{name: getattr(batch.details, name)[:-1]})
    with pytest.raises(ValueError, match=name):
        load(small).run(batch)
