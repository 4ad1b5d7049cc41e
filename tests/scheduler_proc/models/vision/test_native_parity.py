"""Models that see on the native executor: against transformers, and which of them it leaves."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import seeing
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.executor.torch_executor import TorchExecutor
from srt.files.model_files import ModelFiles, resolve_model
from srt.wire.errors import ConfigError
from tests.checkpoints_vision import FAMILIES, make_vision_checkpoint
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.vision.test_parity import SLOTS, Prompt, Seeing
from tests.scheduler_proc.ragged import Row, make_batch

pytestmark = pytest.mark.full

LEFT_TO_TORCH = {
    "gemma3": "attention to later tokens of the same picture",
    "qwen2_5_vl": "positions of three parts for pictures",
    "qwen3_vl": "positions of three parts for pictures",
}
NATIVE = [family for family in FAMILIES if family not in LEFT_TO_TORCH]


def native(files: ModelFiles, max_total_tokens: int) -> Any:
    options = ExecutorOptions(max_total_tokens, exact=True, num_threads=2)
    return make_executor("native", files, options)


def logprobs(shown: Seeing, prompt: Prompt, chunk: int) -> np.ndarray:
    """log p of every id after the first, and the id that follows."""
    parts = []
    for start in range(0, len(prompt.ids), chunk):
        stop = min(start + chunk, len(prompt.ids))
        batch = shown.batch((prompt, start, stop, SLOTS))
        targets = prompt.ids[start + 1 : stop + 1]
        batch.logprob_tokens = np.arange(len(targets), dtype=np.int32)
        batch.logprob_targets = targets
        result = shown.executor.run(batch)
        parts.append(result.prompt_logprobs)
    return np.concatenate([*parts, result.next_ids])


@pytest.mark.parametrize("family", NATIVE)
def test_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Two pictures between texts, in one step and in chunks that cut them."""
    load_or_skip()
    shown = Seeing(family, tmp_path, native)
    assert isinstance(shown.executor, NativeExecutor) and seeing(shown.executor) is not None
    prompt = shown.prompt(3, (70, 60), 4, (60, 110), 5)
    logits = shown.theirs(prompt)
    ids = torch.from_numpy(prompt.ids).long()
    expected = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    for chunk in (len(ids), 5):
        found = logprobs(shown, prompt, chunk)
        np.testing.assert_allclose(found[:-1], expected.numpy(), atol=1e-3)
        assert found[-1] == int(logits[-1].argmax())


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_text_alone_of_models_with_positions_of_three_parts(family: str, tmp_path: Path) -> None:
    load_or_skip()
    model = make_vision_checkpoint(family, tmp_path)
    options = ExecutorOptions(64, exact=True, num_threads=2, sees=False)
    executor = make_executor("native", resolve_model(str(tmp_path)), options)
    ids = np.arange(3, 17, dtype=np.int32)
    batch = make_batch([Row(ids, np.arange(len(ids), dtype=np.int32))])
    batch.logprob_tokens = np.arange(len(ids) - 1, dtype=np.int32)
    batch.logprob_targets = ids[1:]
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(ids).long()[None]).logits[0]
    expected = logits.log_softmax(-1)[:-1].gather(1, torch.from_numpy(ids[1:, None]).long())[:, 0]
    np.testing.assert_allclose(executor.run(batch).prompt_logprobs, expected, atol=1e-3)


@pytest.mark.parametrize("family", LEFT_TO_TORCH)
def test_others_are_left_to_torch(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so; who asks for the native executor is told why not."""
    load_or_skip()
    make_vision_checkpoint(family, tmp_path)
    files = resolve_model(str(tmp_path))
    with pytest.raises(ConfigError, match=f"executor native: .* {LEFT_TO_TORCH[family]}"):
        native(files, 64)
    with caplog.at_level(logging.WARNING):
        executor = make_executor("auto", files, ExecutorOptions(64))
    assert isinstance(executor, TorchExecutor) and seeing(executor) is not None
    assert "running on torch, which is slower: the native executor does not have" in caplog.text
