"""GGUFFile against the gguf package's own reader, and against broken and hostile files."""

import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from srt.files.gguf import BLOCK_TYPES, GGUFFile, open_gguf
from srt.files.model_files import ModelFiles, fingerprint_of, resolve_model
from srt.wire.errors import ConfigError
from srt.wire.filled_params import NEUTRAL, SamplingDefaults
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


def test_types_are_those_of_the_package() -> None:
    """All types that the package dequantises, except two that our models do not use."""
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {i: (kind.num_values, kind.num_bytes) for i, kind in BLOCK_TYPES.items()} == {
        i: sizes[i] for i in BLOCK_TYPES
    }
    plain = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}
    left_out = {GGMLQuantizationType.MXFP4, GGMLQuantizationType.NVFP4}
    assert set(BLOCK_TYPES) == plain.union(gguf.quants._type_traits) - left_out
    for i, kind in BLOCK_TYPES.items():
        assert kind.name == GGMLQuantizationType(i).name


def write_tensor(path: Path, array: np.ndarray, kind: GGMLQuantizationType) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_split(folder: Path, count: int, *, first_is_empty: bool = False) -> dict[str, np.ndarray]:
    """A model in files of one tensor each, as llama-gguf-split writes them; its tensors."""
    writer = gguf.GGUFWriter(
        folder / "m.gguf", "llama", split_max_tensors=1, small_first_shard=first_is_empty
    )
    writer.add_context_length(64)
    tensors = {f"blk.{i}.attn_norm.weight": np.full(32, i, np.float32) for i in range(count)}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file(folder / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("first_is_empty", [False, True])
def test_a_model_in_several_files(tmp_path: Path, first_is_empty: bool) -> None:
    tensors = write_split(tmp_path, 3, first_is_empty=first_is_empty)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3 + first_is_empty
    for path in paths:  # any of them stands for all
        files = resolve_model(str(path))
        assert files == ModelFiles("m", "gguf", paths[0])
    model = open_gguf(paths[0])
    assert model.metadata["llama.context_length"] == 64
    found = {name: np.frombuffer(each.data, np.float32) for name, each in model.tensors.items()}
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], values) for name, values in tensors.items())
    before = fingerprint_of(files, "16", NEUTRAL)
    assert before != fingerprint_of(files, "8", NEUTRAL)
    assert before != fingerprint_of(files, "16", SamplingDefaults(temperature=0.5))
    with paths[-1].open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert fingerprint_of(files, "16", NEUTRAL) != before


def test_files_of_a_model_that_do_not_fit(tmp_path: Path) -> None:
    write_split(tmp_path, 3)
    first, second, third = sorted(tmp_path.iterdir())
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(ConfigError, match=r"00002-of-00003\.gguf is not part 2"):
        open_gguf(first)
    second.unlink()
    with pytest.raises(ConfigError, match=r"00002-of-00003\.gguf: does not exist"):
        open_gguf(first)
    second.write_bytes(content)
    renamed = first.rename(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="first of 3 files"):
        open_gguf(renamed)


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "I32"])
def test_unsupported_types_are_named(tmp_path: Path, kind: str) -> None:
    ggml_type = GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[ggml_type][1]
    path = write_tensor(tmp_path / "m.gguf", np.zeros((4, size), np.uint8), ggml_type)
    with pytest.raises(
        ConfigError, match=f"token_embd.weight has the unsupported ggml type {kind}"
    ):
        GGUFFile(path)


def test_a_block_does_not_reach_over_rows(tmp_path: Path) -> None:
    path = write_tensor(tmp_path / "m.gguf", np.zeros((4, 34), np.uint8), GGMLQuantizationType.Q8_0)
    content = path.read_bytes()
    dims = (32).to_bytes(8, "little") + (4).to_bytes(8, "little")
    assert content.count(dims) == 1
    path.write_bytes(content.replace(dims, (16).to_bytes(8, "little") + (8).to_bytes(8, "little")))
    with pytest.raises(ConfigError, match="rows of 16 values in blocks of Q8_0"):
        GGUFFile(path)


# ---- files no writer makes ----------------------------------------------------------------------


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def file_of(
    path: Path,
    key: str = "general.alignment",
    value: bytes = struct.pack("<II", 4, 32),
    dims: Sequence[int] = (8,),
) -> Path:
    """One key, whose `value` begins with its type, and a float32 tensor of 32 bytes."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, 1, 1), gguf_string(key), value]
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    parts += [gguf_string("t"), shape, struct.pack("<IQ", 0, 0)]
    header = b"".join(parts)
    path.write_bytes(header + bytes(-len(header) % 32 + 32))
    return path


def test_a_file_written_here(tmp_path: Path) -> None:
    assert GGUFFile(file_of(tmp_path / "m.gguf")).tensors["t"].shape == (8,)


@pytest.mark.parametrize("dims", [(), (0, 1 << 40), (1 << 32, 1 << 32), (1 << 63, 2), (9,)])
def test_a_shape_that_the_file_does_not_hold(tmp_path: Path, dims: Sequence[int]) -> None:
    """For example one whose size overflows to 0 in 64 bits."""
    with pytest.raises(ConfigError, match=r"tensor t is (empty|cut short)"):
        GGUFFile(file_of(tmp_path / "m.gguf", dims=dims))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (struct.pack("<II", 4, 0), "alignment is 0"),
        (struct.pack("<Ii", 5, -8), "alignment is -8"),
        (struct.pack("<I", 8) + gguf_string("x"), "alignment is 'x'"),
        (struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20000, "recursion"),
        (struct.pack("<IIQ", 9, 4, 1 << 62), "not a readable GGUF file"),
        (struct.pack("<IIQ", 9, 8, 1 << 62), "not a readable GGUF file"),
    ],
)
def test_metadata_that_cannot_be(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GGUFFile(file_of(tmp_path / "m.gguf", value=value))


def test_a_number_of_parts_that_is_none(tmp_path: Path) -> None:
    value = struct.pack("<I", 8) + gguf_string("x")
    with pytest.raises(ConfigError, match="first of x files"):
        open_gguf(file_of(tmp_path / "m.gguf", "split.count", value))


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ConfigError, match="not a readable GGUF file"):
        GGUFFile(tmp_path / "m.gguf")
