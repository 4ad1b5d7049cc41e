"""Tensors of a safetensors file as bytes, held against what torch reads of them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scheduler_proc.models.safetensors_file import SafetensorsFile
from srt.wire.errors import ConfigError
from tests.running.late import late

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch
else:
    safetensors_torch = late("safetensors.torch")
    torch = late("torch")


def test_bytes_are_those_that_torch_reads(tmp_path: Path) -> None:
    wide = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    tensors = {
        "wide": wide,
        "half": wide.half(),
        "brain": wide.bfloat16(),
        "one": wide[0, 0].clone(),
    }
    safetensors_torch.save_file(
        tensors, tmp_path / "x.safetensors", {"format": "pt", "shape": "unlike a tensor's"}
    )
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert {name: stored.shape for name, stored in file.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    for name, tensor in tensors.items():
        read = torch.from_numpy(file.data(name).copy()).view(tensor.dtype).reshape(tensor.shape)
        assert read.equal(tensor) and file.tensor(name).equal(tensor)
    assert file.rows("wide", 2, 5).equal(wide[2:5])


def test_data_is_aligned_where_the_file_is_not(tmp_path: Path) -> None:
    values = np.array([1.5, -2.25], np.float32)
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\7" + values.tobytes())
    data = SafetensorsFile(path).data("b")
    assert data.ctypes.data % 4 == 0
    np.testing.assert_array_equal(data.view(np.float32), values)


@pytest.mark.parametrize("content", [b"", b"\1\0\0\0\0\0\0\0{", b"\xff" * 64, None])
def test_what_is_no_such_file_is_a_config_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.safetensors"):
        SafetensorsFile(path)
