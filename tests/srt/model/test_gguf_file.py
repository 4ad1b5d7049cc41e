"""GGUFFile against the gguf package's own reader, and against broken files."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from srt.errors import ConfigError
from srt.model.gguf_file import GGUFFile
from tests.model_files import write_gguf


def test_reads_what_the_package_reads(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "tiny.gguf")
    ours, theirs = GGUFFile(files.path), gguf.GGUFReader(files.path)
    fields = {
        name: field.contents()
        for name, field in theirs.fields.items()
        if not name.startswith("GGUF.")
    }
    assert ours.metadata == fields
    assert "tokenizer.ggml.tokens" in fields
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        read = ours.tensors[tensor.name]
        assert read.shape == tuple(reversed(tensor.shape.tolist()))
        assert read.ggml_type == tensor.tensor_type
        assert read.data.tobytes() == np.asarray(tensor.data).tobytes()


@pytest.mark.parametrize("keep", [3, 20, 200, -100])
def test_a_cut_file_is_a_config_error(tmp_path: Path, keep: int) -> None:
    files = write_gguf(tmp_path / "tiny.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(files.path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"cut\.gguf"):
        GGUFFile(cut)
