"""GGUF types that the native kernels lack: the same values in encodings that they read."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import Source
from scheduler_proc.models import packed
from scheduler_proc.models.checkpoint import F32, RawTensor
from scheduler_proc.models.packed import for_kernels
from srt.files.gguf import BLOCK_TYPES
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.models.gguf_families import converted_tensors, write_family
from tests.scheduler_proc.models.test_gguf_families import WIDE, random_blocks
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    from scheduler_proc.executor import torch_executor
else:
    torch_executor = late("scheduler_proc.executor.torch_executor")


LACKING = sorted(BLOCK_TYPES.keys() - {int(source) for source in Source})


@pytest.mark.parametrize("ggml_type", LACKING)
def test_no_value_changes(monkeypatch: pytest.MonkeyPatch, ggml_type: int) -> None:
    monkeypatch.setattr(packed, "_CHUNK_VALUES", 1024)
    kind = GGMLQuantizationType(ggml_type)
    num_values, num_bytes = GGML_QUANT_SIZES[kind]
    rows, row_bytes = 13, 768 // num_values * num_bytes
    blocks = np.random.default_rng(0).integers(0, 256, (rows, row_bytes), np.uint8)
    with np.errstate(all="ignore"):
        found = for_kernels(RawTensor(ggml_type, (rows, 768), blocks.reshape(-1)))
        expected = Source.Q8_0 if kind.name == "Q5_0" else F32
        assert (found.ggml_type, found.shape) == (expected, (rows, 768))
        values = dequantize(found.data, GGMLQuantizationType(found.ggml_type))
        np.testing.assert_array_equal(values.reshape(rows, 768), dequantize(blocks, kind))


def test_what_the_kernels_read_stays() -> None:
    for source in Source:
        raw = RawTensor(source, (1, 256), np.zeros(source.row_bytes(256), np.uint8))
        assert for_kernels(raw) is raw


def write_blocks(path: Path, kind: str) -> ModelFiles:
    """A Llama with all its matrices in blocks of `kind`."""
    model, rng = random_family("llama", **WIDE, num_attention_heads=4), np.random.default_rng(0)
    tensors = converted_tensors(model)
    blocks = {n: random_blocks(kind, t.shape, rng) for n, t in tensors.items() if t.ndim == 2}
    quants = dict.fromkeys(blocks, GGMLQuantizationType[kind])
    return write_family(model, path / f"{kind}.gguf", tensors | blocks, quants)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q5_K", "IQ4_XS"])
def test_the_native_executor_computes_as_torch_does(tmp_path: Path, kind: str) -> None:
    load_or_skip()
    files = write_blocks(tmp_path, kind)
    ids = np.random.default_rng(1).integers(0, 131, 40)
    batch = make_batch([Row(ids, range(40), ids[1:], samples=False)])
    theirs = torch_executor.TorchExecutor(files, max_total_tokens=50).run(batch).prompt_logprobs
    native = NativeExecutor(files, max_total_tokens=50, num_threads=2, exact=True)
    np.testing.assert_allclose(native.run(batch).prompt_logprobs, theirs, atol=1e-3)
    assert make_executor("auto", files, ExecutorOptions(max_total_tokens=50)).name == "native"
    with pytest.raises(ConfigError, match=f"weight is {kind} in the file already"):
        NativeExecutor(files, max_total_tokens=50, num_threads=2, quantization="q8")


def test_memory_of_recoded_weights(tmp_path: Path) -> None:
    load_or_skip()
    sizes = {
        kind: NativeExecutor(write_blocks(tmp_path, kind), max_total_tokens=8).weight_bytes
        for kind in ("Q8_0", "Q5_0", "Q5_K")
    }
    assert sizes["Q5_0"] == sizes["Q8_0"] < 0.3 * sizes["Q5_K"]
