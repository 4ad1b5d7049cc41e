"""The JSON files of a model directory that say how it sees: config.json, preprocessor_config.json,
video_preprocessor_config.json, processor_config.json; and the texts of its special tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from PIL import Image

from srt.files.hf import MAX_TOKENIZER_BYTES
from srt.files.model_files import require_file
from srt.wire.errors import ConfigError
from tokenizer_proc.media.resize import Size

_T = TypeVar("_T")
_MAX_EDGE = 65_536


class _Token(Struct):
    content: str
    id: int = -1


class _Tokenizer(Struct):
    added_tokens: list[_Token] = []


class _TokenizerConfig(Struct):
    added_tokens_decoder: dict[str, _Token] = {}


class _Edges(Struct, forbid_unknown_fields=True):
    height: int = 0
    width: int = 0
    shortest_edge: int = 0
    longest_edge: int = 0


class Settings:
    """A JSON object of settings. What is null counts as left out, except of flags."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self._values = values

    def get(self, key: str, kind: type[_T], default: _T) -> _T:
        """A setting. Raises ConfigError if it has another type."""
        value = self._values.get(key)
        found: _T = default if value is None else self._convert(key, value, kind)
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Whether something is done; null says no, as it does for transformers."""
        is_null = key in self._values and not self.has(key)
        return False if is_null else self.get(key, bool, default)

    def count(self, key: str, default: int) -> int:
        """A setting that is a positive number, or zero if that is its default."""
        value = self.get(key, int, default)
        if value < 1 and value != default:
            raise self.error(key, f"{value} is not positive")
        return value

    def token_id(self, name: str, default: int) -> int:
        """A token id of config.json, which transformers 4 calls an index."""
        return self.get(f"{name}_id", int, self.get(f"{name}_index", int, default))

    def section(self, key: str) -> "Settings":
        """The object at `key`, or an empty one."""
        return Settings(f"{self.source}: {key}", self.get(key, dict, {}))

    def has(self, key: str) -> bool:
        """Whether a setting is there."""
        return self._values.get(key) is not None

    def edges(self, key: str, default: Size, number_is_square: bool) -> Size:
        """A size: an object, a height and width, or one number for both or for the shorter side."""
        found = self._values.get(key)
        if found is None:
            return default
        if isinstance(found, dict):
            found = {name: edge for name, edge in found.items() if edge is not None}
        value: int | list[int] | _Edges = self._convert(key, found, int | list[int] | _Edges)
        if isinstance(value, int):
            size = Size(value, value) if number_is_square else Size(shortest_edge=value)
        elif isinstance(value, list):
            if len(value) != 2:
                raise self.error(key, "is not a height and a width")
            size = Size(*value)
        else:
            size = Size(*msgspec.structs.astuple(value))
        if min(size) < 0 or bool(size.height) != bool(size.width) or not any(size):
            raise self.error(key, f"{value} is not a size")
        return size

    def fixed_size(self, key: str, default: Size, number_is_square: bool) -> Size:
        """A size that pictures get by `Size.of`: never only a limit of the longer side."""
        size = self.edges(key, default, number_is_square)
        if not size.height and not size.shortest_edge:
            raise self.error(key, "longest_edge alone is not supported")
        if max(size) > _MAX_EDGE:
            raise self.error(key, f"{max(size)} is more than {_MAX_EDGE}")
        return size

    def crop(self, default: tuple[int, int]) -> tuple[int, int]:
        """crop_size, as height and width."""
        size = self.fixed_size("crop_size", Size(*default), number_is_square=True)
        if not size.height:
            raise self.error("crop_size", "has no height and width")
        return size.height, size.width

    def resample(self, default: Image.Resampling) -> Image.Resampling:
        """The filter that pictures are resized with."""
        value = self.get("resample", int, int(default))
        try:
            return Image.Resampling(value)
        except ValueError:
            raise self.error("resample", f"{value} is no filter of Pillow's") from None

    def error(self, key: str, why: str) -> ConfigError:
        """What to raise about a setting."""
        return ConfigError(f"{self.source}: {key}: {why}")

    def _convert(self, key: str, value: object, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.error(key, str(error)) from error


class Checkpoint:
    """The settings of the model in a directory, with the tokenizer that is read from the file
    `text_path`. Raises ConfigError when a file cannot be read."""

    def __init__(self, path: Path, text_path: Path) -> None:
        self.path = path
        self._text_path = text_path
        self.config = self._read("config.json")
        self.vision = self.config.section("vision_config")
        self.processor = self._read("processor_config.json")

    @property
    def image(self) -> Settings:
        """How pictures are processed."""
        return self._first("image_processor", "preprocessor_config.json")

    @property
    def video(self) -> Settings:
        """How videos are processed; older checkpoints say it of pictures only."""
        name = "video_preprocessor_config.json"
        is_said = self.processor.has("video_processor") or (self.path / name).exists()
        return self._first("video_processor", name) if is_said else self.image

    def token_texts(self) -> dict[int, str]:
        """The added tokens of the tokenizer."""
        path, tokenizer = self._text_path, _Tokenizer()
        if path.suffix == ".json":
            tokenizer = self._typed(path, tokenizer)
        texts = {token.id: token.content for token in tokenizer.added_tokens}
        config = self._typed(path.with_name("tokenizer_config.json"), _TokenizerConfig())
        for number, token in config.added_tokens_decoder.items():
            if number.isdecimal():
                texts.setdefault(int(number), token.content)
        return texts

    def _first(self, nested: str, name: str) -> Settings:
        if self.processor.has(nested):
            return self.processor.section(nested)
        if not (self.path / name).exists():
            raise ConfigError(f"{self.path}: has no {name}, which says how pictures are processed")
        return self._read(name)

    def _read(self, name: str) -> Settings:
        path = self.path / name
        return Settings(str(path), self._typed(path, dict[str, Any]()))

    @staticmethod
    def _typed(path: Path, default: _T) -> _T:
        if not path.exists():
            return default
        require_file(path, MAX_TOKENIZER_BYTES)
        try:
            return msgspec.json.decode(path.read_bytes(), type=type(default))
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from error
