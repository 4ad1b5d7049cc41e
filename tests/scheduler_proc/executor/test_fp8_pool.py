"""A KV pool of eight bits, end to end: near the wide pool's log-probabilities, with the
checkpoint's scales where it has some."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.torch_executor import TorchExecutor
from scheduler_proc.models import decoder
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.loader import load_weights
from scheduler_proc.models.transformers_model import attention
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import chunked_logprobs

pytestmark = pytest.mark.full

POOL = 200
MILD = {"initializer_range": 0.1}  # its attention is not decided by one rounding
IDS = np.random.default_rng(0).integers(0, 131, 120)
SLOTS = np.random.default_rng(1).permutation(POOL)[:120]


def logprobs(files: ModelFiles, chunk: int = 30, **options: Any) -> np.ndarray:
    executor = TorchExecutor(files, max_total_tokens=POOL, **options)
    for pool in (*executor._pool.k, *executor._pool.v):
        pool.fill_(torch.nan)
    return chunked_logprobs(executor, IDS, SLOTS, chunk)[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save_directory(random_llama(**MILD), tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("impl", ["srt", "transformers"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_are_near_those_of_a_wide_pool(small: ModelFiles, impl: str, dtype: str) -> None:
    options: dict[str, Any] = {"dtype": dtype, "model_impl": impl}
    wide = logprobs(small, **options)
    narrow = logprobs(small, kv_dtype="fp8_e4m3", **options)
    difference = np.abs(narrow - wide)
    assert 1e-3 < difference.mean() < 0.1 * wide.std()


@pytest.mark.parametrize("impl", ["srt", "transformers"])
def test_all_that_differs_is_the_rounding_of_keys_and_values(
    small: ModelFiles, monkeypatch: pytest.MonkeyPatch, impl: str
) -> None:
    narrow = logprobs(small, kv_dtype="fp8_e4m3", model_impl=impl)

    def rounded(pool: torch.Tensor, slots: torch.Tensor, values: torch.Tensor, _: float) -> None:
        pool.index_copy_(0, slots, values.to(torch.float8_e4m3fn).float())

    monkeypatch.setattr(decoder, "store", rounded)
    monkeypatch.setattr(attention, "store", rounded)
    np.testing.assert_allclose(logprobs(small, model_impl=impl), narrow, atol=1e-5)


def test_the_pool_takes_a_byte_for_each_number(small: ModelFiles) -> None:
    options: dict[str, Any] = {"max_total_tokens": 10, "kv_cache_dtype": "fp8_e4m3"}
    executor = make_executor("auto", small, ExecutorOptions(**options))
    assert (executor.name, executor.dtype) == ("torch", torch.float8_e4m3fn)
    assert executor.pool_bytes == 10 * 2 * 3 * 2 * 8


FACTOR = 2000.0  # of keys and values beyond what eight bits hold unscaled


def out_of_range(path: Path, names: tuple[str, str] | None) -> ModelFiles:
    """A model with keys and values FACTOR times as large, which queries and outputs make up for;
    and with the scales that this needs, called `names`, if any."""
    model = random_llama(**MILD)
    files = save_directory(model, path)
    tensors = load_file(path / "model.safetensors")
    for i in range(3):
        attention = f"model.layers.{i}.self_attn"
        for name, factor in (("q", 1 / FACTOR), ("k", FACTOR), ("v", FACTOR), ("o", 1 / FACTOR)):
            tensors[f"{attention}.{name}_proj.weight"] *= factor
        if names is not None:
            shape = () if i == 0 else (1,)
            for name, scale in zip(names, (FACTOR, FACTOR / 2), strict=True):
                tensors[f"{attention}.{name}"] = torch.full(shape, scale, dtype=torch.bfloat16)
    save_file(tensors, path / "model.safetensors")
    return files


NAMES = [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale")]


@pytest.mark.parametrize("names", NAMES)
def test_the_scales_of_a_checkpoint_count(tmp_path: Path, names: tuple[str, str]) -> None:
    files = out_of_range(tmp_path / "scaled", names)
    wide = logprobs(files)
    scaled = np.abs(logprobs(files, kv_dtype="fp8_e4m3") - wide).mean()
    bare = out_of_range(tmp_path / "bare", None)
    np.testing.assert_allclose(logprobs(bare), wide, atol=1e-4)  # scales are for eight bits only
    saturated = np.abs(logprobs(bare, kv_dtype="fp8_e4m3") - wide).mean()
    assert scaled < 0.1 * wide.std() and saturated > 5 * scaled
    layers = load_weights(open_checkpoint(files)).layers
    assert {(layer.k_scale, layer.v_scale) for layer in layers} == {(FACTOR, FACTOR / 2)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(1), r"self_attn.k_scale is 0.0, which is no scale"),
        (torch.full((1,), torch.nan), "self_attn.k_scale is nan"),
        (torch.ones(2), r"self_attn.k_scale has shape \[2\], expected \[1\]"),
    ],
)
def test_what_is_no_scale_is_named(tmp_path: Path, value: torch.Tensor, message: str) -> None:
    files = save_directory(random_llama(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.k_scale"] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        TorchExecutor(files, max_total_tokens=8)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("torch", {"kv_cache_dtype": "float16"}, "--kv-cache-dtype float16: .*float32, see --dt"),
        ("native", {"kv_cache_dtype": "fp8_e4m3"}, "'fp8_e4m3' is not one of auto, float16"),
        ("native", {"attention_backend": "triton"}, "--attention-backend triton: the native exec"),
    ],
)
def test_types_that_an_executor_lacks_are_named(
    small: ModelFiles, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_executor(kind, small, ExecutorOptions(8, **options))


def test_the_weights_own_type_may_be_named(small: ModelFiles) -> None:
    options = ExecutorOptions(8, dtype="float16", kv_cache_dtype="float16")
    assert make_executor("torch", small, options).dtype == torch.float16
