"""`--model-impl transformers`: families of transformers over ragged batches, and which cannot."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.llama import modeling_llama

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.torch_executor import TorchExecutor
from scheduler_proc.models.decoder import Decoder
from scheduler_proc.models.transformers_model.model import TransformersModel
from srt.errors import ConfigError
from srt.model.files import ModelFiles
from tests.scheduler_proc.checkpoints import random_llama, save_directory, write_gguf
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch
from tests.scheduler_proc.transformers_families import (
    CONTEXT_LEN,
    FAMILIES,
    VOCAB,
    random_model,
    save,
)

POOL = 300


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(files: ModelFiles, **options: Any) -> TorchExecutor:
    return TorchExecutor(files, max_total_tokens=POOL, **{"model_impl": "transformers", **options})


def random_ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def reference_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    return logits


class Sequence:
    """Ids and slots of one req; `rows` cuts shares from it, `logits` collects what comes of them."""

    def __init__(self, ids: np.ndarray, slots: np.ndarray, done: int = 0) -> None:
        self.ids, self.slots, self.done = ids, slots, done
        self.logits: list[np.ndarray] = []


def extend(executor: TorchExecutor, *shares: tuple[Sequence, int]) -> None:
    """One step in which each sequence is computed up to a length."""
    rows = [Row(s.ids[s.done : end], s.slots[:end]) for s, end in shares]
    with torch.inference_mode():
        hidden = executor.forward(make_batch(rows))
        logits = executor.model.logits(hidden).numpy()
    ends = np.cumsum([len(row.ids) for row in rows])
    for (sequence, end), part in zip(shares, np.split(logits, ends[:-1]), strict=True):
        sequence.logits.append(part)
        sequence.done = end


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_over_ragged_batches_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """A prompt in chunks, one on a cached prefix, decodes beside both, slots in any order."""
    model = random_model(family)
    executor = load(save(model, tmp_path))
    assert isinstance(executor.model, TransformersModel)
    assert (executor.vocab_size, executor.context_len) == (VOCAB, CONTEXT_LEN)
    for pool in (*executor._pool.k, *executor._pool.v):
        pool.fill_(torch.nan)
    free = np.random.default_rng(1).permutation(POOL)
    first = Sequence(random_ids(70), free[:70])
    second_ids = np.append(first.ids[:40], random_ids(30, seed=1))
    second = Sequence(second_ids, np.append(first.slots[:40], free[70:100]), done=40)
    third = Sequence(random_ids(33, seed=2), free[100:133])
    extend(executor, (first, 40))
    extend(executor, (first, 41), (second, 60))
    for step in range(5):
        extend(executor, (first, 42 + step), (third, 6 * step + 6), (second, 61 + step))
    extend(executor, (third, 33), (first, 70))
    extend(executor, (second, 70))
    for sequence, start in ((first, 0), (second, 40), (third, 0)):
        expected = reference_logits(model, sequence.ids)[start:]
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(np.concatenate(sequence.logits), expected, atol=1e-3)
