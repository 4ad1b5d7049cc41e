"""Opens a checkpoint, GGUF or safetensors: its configuration, and tensors by Hugging Face names.

Read by the loaders, from several threads at once. A reader hands out plain torch tensors on the
CPU, or the file's own bytes; only the two readers know file formats and llama.cpp's names. torch
is imported when one is asked for: the native executor, which wants bytes, does without it.
"""

import re
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.gguf_config import INTERLEAVED_ROPE, config_from_gguf
from scheduler_proc.models.gguf_names import ROPE_BEYOND, ROPE_DIVISORS, hf_name
from scheduler_proc.models.json_config import config_from_json
from scheduler_proc.models.safetensors_file import SafetensorsFile, Stored
from srt.files.gguf import BLOCK_TYPES, GGUFFile, GGUFTensor, open_gguf
from srt.files.model_files import ModelFiles, require_file
from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    import torch

# A matrix of one row, which is a vector in GGUF files.
_VECTOR = "mlp.shared_expert_gate.weight"

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# numpy's dequantisation is fastest, and shares two threads best, on rows of about this many blocks.
_BLOCKS_PER_ROW = 256

# ggml's ids of the types that are plain numbers.
F32, F16, BF16 = 0, 1, 30
# Of two matrices that are compared at a time.
_COMPARED_ROWS = 4096
_COMPARED_BYTES = 2**24
_SAFETENSORS_TYPES = {"F32": F32, "F16": F16, "BF16": BF16}


class RawTensor(NamedTuple):
    """A tensor as the file holds it: ggml type id, shape, bytes; `is_mapped` if these lie in a
    mapping of the file."""

    ggml_type: int
    shape: tuple[int, ...]
    data: np.ndarray  # [nbytes] uint8
    is_mapped: bool = False

    def float32(self) -> np.ndarray:
        """The values of a tensor of plain numbers, [*shape] float32."""
        if self.ggml_type == F32:
            values = self.data.view(np.float32)
        elif self.ggml_type == F16:
            values = self.data.view(np.float16).astype(np.float32)
        elif self.ggml_type == BF16:
            values = (self.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            raise ConfigError(f"ggml type {self.ggml_type} where plain numbers are expected")
        return values.reshape(self.shape).copy()

    def part(self, index: int) -> "RawTensor":
        """Element `index` of the first dimension; its bytes stay where they are."""
        size = len(self.data) // self.shape[0]
        data = self.data[index * size : (index + 1) * size]
        return self._replace(shape=self.shape[1:], data=data)


class Checkpoint(Protocol):
    """Named tensors in files. `interleaved_rope`: q/k rows pair (2i, 2i+1) within each head.

    `tensors` has every one by its name, with where it lies, which is the reader's own matter; a
    GGUF tensor without a Hugging Face name keeps its own.
    """

    path: Path
    config: DecoderConfig
    tensors: Mapping[str, Any]
    interleaved_rope: bool
    num_bytes: int  # of the tensors in the files

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        ...

    def raw(self, name: str, part: int | None = None) -> RawTensor:
        """The tensor's own bytes, or those of element `part` of its first dimension. Raises
        ConfigError for a type that has no ggml id."""
        ...

    def read_rows(
        self, name: str, start: int, stop: int, part: int | None = None
    ) -> "torch.Tensor":
        """Rows [start, stop) of the tensor's first dimension, or of the second one of its element
        `part`, on the CPU."""
        ...

    def read_scalar(self, name: str) -> float:
        """The only element of the tensor."""
        ...

    def rope_divisors(self) -> np.ndarray | None:
        """What to divide the frequencies of `config.rope` by, if anything: [rotated dims / 2]
        float32."""
        ...


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """The checkpoint at `files`. Raises ConfigError if it is malformed or not supported."""
    if files.kind == "gguf":
        return GGUFCheckpoint(open_gguf(files.path))
    return SafetensorsCheckpoint(files.path)


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def first_layers(whole: Checkpoint, count: int) -> Checkpoint:
    """The first `count` layers of a checkpoint, with what is in no layer, as a model of their own:
    to measure what a layer takes."""
    part, config = copy(whole), whole.config
    experts = config.experts
    if experts is not None:
        experts = replace(experts, dense=experts.dense[:count])
    part.config = replace(config, layers=count, windowed=config.windowed[:count], experts=experts)
    layers = {name: _LAYER.match(name) for name in whole.tensors}
    part.tensors = {
        name: whole.tensors[name] for name, at in layers.items() if at is None or int(at[1]) < count
    }
    part.num_bytes = sum(len(part.raw(name).data) for name in part.tensors)
    return part


class GGUFCheckpoint:
    """A GGUF file. `read_rows` dequantises to float32, `raw` does not."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self.config = config_from_gguf(file)
        arch = file.metadata["general.architecture"]
        self.interleaved_rope = arch in INTERLEAVED_ROPE
        self.num_bytes = sum(len(tensor.data) for tensor in file.tensors.values())
        tensors = {hf_name(arch, name): tensor for name, tensor in file.tensors.items()}
        divisors = [tensors.pop(name, None) for name in (*ROPE_DIVISORS, ROPE_BEYOND)]
        self._rope_divisors = divisors[0] or divisors[1]
        for name, tensor in tensors.items():
            if name.endswith(_VECTOR) and len(tensor.shape) == 1:
                tensors[name] = tensor._replace(shape=(1, *tensor.shape))
        self.tensors: Mapping[str, GGUFTensor] = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def raw(self, name: str, part: int | None = None) -> RawTensor:
        whole = _raw(self.tensors[name])
        return whole if part is None else whole.part(part)

    def read_rows(
        self, name: str, start: int, stop: int, part: int | None = None
    ) -> "torch.Tensor":
        import torch

        tensor = self.raw(name, part)
        row_bytes = len(tensor.data) // tensor.shape[0]
        data = tensor.data[start * row_bytes : stop * row_bytes]
        values = dequantise(data, tensor.ggml_type)
        return torch.from_numpy(values).reshape(stop - start, *tensor.shape[1:])

    def read_scalar(self, name: str) -> float:
        return float(self.raw(name).float32().item())

    def rope_divisors(self) -> np.ndarray | None:
        tensor = self._rope_divisors
        return None if tensor is None else dequantise(_raw(tensor).data, tensor.ggml_type)


def _raw(tensor: GGUFTensor) -> RawTensor:
    return RawTensor(tensor.ggml_type, tensor.shape, np.frombuffer(tensor.data, np.uint8), True)


def dequantise(data: np.ndarray, ggml_type: int) -> np.ndarray:
    """Whole blocks, uint8 [n], as their values in float32. gguf is imported here: the native
    executor does without it on most files."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    block_bytes = BLOCK_TYPES[ggml_type].num_bytes
    row = block_bytes * np.gcd(len(data) // block_bytes, _BLOCKS_PER_ROW)
    values = dequantize(data.reshape(-1, row), GGMLQuantizationType(ggml_type))
    # torch refuses read-only memory, which is what unquantised tensors are: views of the file.
    return np.require(values.reshape(-1), np.float32, ["C", "W"])


class _Place(NamedTuple):
    """The file that a tensor is in, and the tensor's name there."""

    file: SafetensorsFile
    name: str


class SafetensorsCheckpoint:
    """model.safetensors, or the shards that model.safetensors.index.json lists."""

    interleaved_rope = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = config_from_json(path / "config.json")
        # By the names that models of text alone have.
        tensors: dict[str, _Place] = {}
        for file in (SafetensorsFile(path / name) for name in safetensors_files(path)):
            tensors |= {_text_name(own): _Place(file, own) for own in file.tensors}
        tensors.pop("", None)
        if any(_STACKED.fullmatch(name) for name in tensors):
            tensors = {_stacked_name(name): place for name, place in tensors.items()}
            self.config = _stacked(self.config)
        self.tensors: Mapping[str, _Place] = tensors
        self.num_bytes = sum(file.num_bytes for file in {place.file for place in tensors.values()})
        if self.config.tie_embeddings and self._has_own_head():
            self.config = replace(self.config, tie_embeddings=False)

    def _has_own_head(self) -> bool:
        """Whether there is a head that is not the embedding, whatever the configuration says. As
        transformers sees it: files of tied weights may have them twice, and a training that has
        untied them may have left the configuration as it was."""
        if not {EMBED, HEAD} <= self.tensors.keys():
            return False
        head, embed = self._header(HEAD), self._header(EMBED)
        if head.shape != embed.shape:
            return True
        if head.dtype == embed.dtype:
            return not _have_same_bytes(self._data(HEAD), self._data(EMBED))
        for start in range(0, head.shape[0], _COMPARED_ROWS):
            rows = [
                self.read_rows(name, start, start + _COMPARED_ROWS).float()
                for name in (HEAD, EMBED)
            ]
            if not rows[0].equal(rows[1]):
                return True
        return False

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header(name).shape

    def raw(self, name: str, part: int | None = None) -> RawTensor:
        kind, shape = self._header(name).dtype, self.shape(name)
        if kind not in _SAFETENSORS_TYPES:
            raise ConfigError(f"{self.path}: tensor {name} is of type {kind}")
        data = self._data(name, part)
        shape = shape if part is None else shape[1:]
        return RawTensor(_SAFETENSORS_TYPES[kind], shape, data, not data.flags.owndata)

    def read_rows(
        self, name: str, start: int, stop: int, part: int | None = None
    ) -> "torch.Tensor":
        place = self.tensors[name]
        return place.file.rows(place.name, start, stop, part)

    def read_scalar(self, name: str) -> float:
        place = self.tensors[name]
        return float(place.file.tensor(place.name))

    def _header(self, name: str) -> Stored:
        place = self.tensors[name]
        return place.file.tensors[place.name]

    def _data(self, name: str, part: int | None = None) -> np.ndarray:
        place = self.tensors[name]
        return place.file.data(place.name, part)

    def rope_divisors(self) -> np.ndarray | None:
        return None


# Where models that see keep their text, in files of several generations of transformers.
_TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
# And the rest of them.
_OTHER_PREFIXES = (
    *("vision_tower.", "multi_modal_projector.", "visual.", "image_newline"),
    *("model.vision_tower.", "model.multi_modal_projector.", "model.visual."),
    *("model.image_newline", "model.vision_model.", "model.connector."),
)


def _text_name(name: str) -> str:
    """A tensor's name in a model of text alone; "" if it does not belong to the text."""
    for prefix, instead in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    return "" if name.startswith(_OTHER_PREFIXES) else name


# Experts as transformers 5 holds them in memory, and some files have them; Granite's have a prefix
# of their own.
_STACKED = re.compile(r"(model\.layers\.\d+\.)\w+\.experts\.(gate_up_proj|down_proj)")
_GRANITE_ROUTER = re.compile(r"(model\.layers\.\d+\.)block_sparse_moe\.router\.weight")


def _stacked_name(name: str) -> str:
    """The name that tensors of the layout "stacked" have, of whichever family."""
    name = _STACKED.sub(r"\1mlp.experts.\2.weight", name)
    return _GRANITE_ROUTER.sub(r"\1mlp.gate.weight", name)


def _stacked(config: DecoderConfig) -> DecoderConfig:
    experts = config.experts
    if experts is None:
        return config
    return replace(config, experts=replace(experts, layout="stacked"))


_MAX_INDEX_BYTES = 128 * 2**20


class _Index(Struct):
    weight_map: dict[str, str]


def safetensors_files(path: Path) -> list[str]:
    """The names of the files that hold the weights of a model directory. Raises ConfigError for
    an index that is not one, or that leads out of the directory."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    require_file(index, _MAX_INDEX_BYTES)
    try:
        names = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{index}: not a safetensors index ({error!r})") from error
    for name in names:
        if Path(name).name != name:
            raise ConfigError(f"{index}: {name!r} is not the name of a file next to it")
    return sorted(names)


def _have_same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    parts = (slice(i, i + _COMPARED_BYTES) for i in range(0, len(a), _COMPARED_BYTES))
    return all(np.array_equal(a[part], b[part]) for part in parts)
