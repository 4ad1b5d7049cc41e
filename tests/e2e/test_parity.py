"""The torch executor on the embedded model, against transformers on the same file."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from scheduler_proc.executor.torch_executor import TorchExecutor
from srt.model.files import DEFAULT_MODEL, resolve_model
from tests.e2e.reference import reference_logits
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch

LENGTH = 500
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    yield TorchExecutor(resolve_model(DEFAULT_MODEL), max_total_tokens=2048)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    """Mostly low ids, many of them repeated: log-probabilities of all sizes."""
    rng = np.random.default_rng(0)
    frequent = rng.zipf(1.3, LENGTH) + 200
    return [int(i) for i in np.minimum(frequent, 49151)]


@pytest.fixture(scope="module")
def expected(ids: list[int]) -> np.ndarray:
    """log p of ids[1:] by transformers."""
    logprobs = reference_logits(ids)[:-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("chunk", [LENGTH, 64])
def test_prompt_logprobs(
    executor: TorchExecutor, ids: list[int], expected: np.ndarray, chunk: int
) -> None:
    logprobs, _ = chunked_logprobs(executor, ids, range(LENGTH), chunk)
    assert np.abs(logprobs - expected).max() <= TOLERANCE
    assert expected.std() > 1.0


def test_prompt_logprobs_over_a_cached_prefix(
    executor: TorchExecutor, ids: list[int], expected: np.ndarray
) -> None:
    slots = np.random.default_rng(1).permutation(2048)[:LENGTH]
    executor.run(make_batch([Row(ids[:300], slots[:300], samples=False)]))
    logprobs, _ = chunked_logprobs(executor, ids, slots, LENGTH, start=300)
    assert np.abs(logprobs - expected[300:]).max() <= TOLERANCE


def test_logits_after_decoding_token_by_token(executor: TorchExecutor, ids: list[int]) -> None:
    slots = np.random.default_rng(2).permutation(2048)[:LENGTH]
    executor.run(make_batch([Row(ids[:90], slots[:90], samples=False)]))
    rows = []
    with torch.inference_mode():
        for end in range(91, 101):
            step = make_batch([Row(ids[end - 1 : end], slots[:end])])
            rows.append(executor.model.logits(executor.forward(step))[0])
    difference = torch.stack(rows) - reference_logits(ids[:100])[90:]
    assert float(difference.abs().max()) <= TOLERANCE
