"""Float32 executors on the embedded model, against transformers on the same file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from tests.e2e.reference import reference_logits
from tests.running.late import late
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

LENGTH = 500
TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=[pytest.param("torch", marks=pytest.mark.full), "native"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    options = ExecutorOptions(max_total_tokens=2048, exact=request.param == "native")
    yield make_executor(request.param, resolve_model(DEFAULT_MODEL), options)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    """Mostly low ids, many of them repeated: log-probabilities of all sizes."""
    rng = np.random.default_rng(0)
    frequent = rng.zipf(1.3, LENGTH) + 200
    return [int(i) for i in np.minimum(frequent, 49151)]


@pytest.fixture(scope="module")
def expected(ids: list[int]) -> np.ndarray:
    """The log-probabilities of ids[1:] by transformers."""
    logprobs = reference_logits(ids)[:-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("chunk", [LENGTH, pytest.param(64, marks=pytest.mark.full)])
def test_prompt_logprobs(
    executor: Executor, ids: list[int], expected: np.ndarray, chunk: int
) -> None:
    logprobs, _ = chunked_logprobs(executor, ids, range(LENGTH), chunk)
    assert np.abs(logprobs - expected).max() <= TOLERANCE
    assert expected.std() > 1.0


@pytest.mark.full
def test_prompt_logprobs_over_a_cached_prefix(
    executor: Executor, ids: list[int], expected: np.ndarray
) -> None:
    slots = np.random.default_rng(1).permutation(2048)[:LENGTH]
    executor.run(make_batch([Row(ids[:300], slots[:300], samples=False)]))
    logprobs, _ = chunked_logprobs(executor, ids, slots, LENGTH, start=300)
    assert np.abs(logprobs - expected[300:]).max() <= TOLERANCE


@pytest.mark.full
def test_decoding_token_by_token(executor: Executor, ids: list[int], expected: np.ndarray) -> None:
    slots = np.random.default_rng(2).permutation(2048)[:LENGTH]
    executor.run(make_batch([Row(ids[:90], slots[:90], samples=False)]))
    logprobs, _ = chunked_logprobs(executor, ids[:110], slots[:110], 1, start=90)
    assert np.abs(logprobs - expected[90:109]).max() <= TOLERANCE
