"""Finds the tower of a model directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scheduler_proc.models.vision.base import VisionModel
from scheduler_proc.models.vision.llava import Llava, LlavaNext, LlavaOnevision
from scheduler_proc.models.vision.pixels import Normalise
from scheduler_proc.models.vision.qwen import QwenVL
from scheduler_proc.models.vision.seeing import seeing_config
from scheduler_proc.models.vision.squares import Gemma3, Idefics3
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError

# By model_type.
_FAMILIES: dict[str, type[Llava | Idefics3 | Gemma3 | QwenVL]] = {
    "llava": Llava,
    "llava_next": LlavaNext,
    "llava_onevision": LlavaOnevision,
    "idefics3": Idefics3,
    "smolvlm": Idefics3,
    "gemma3": Gemma3,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": QwenVL,
}


def vision_family(files: ModelFiles) -> "type[Llava | Idefics3 | Gemma3 | QwenVL] | None":
    """What encodes for the model at `files`; None if it sees nothing. Raises ConfigError for a
    family that is not known."""
    config = seeing_config(files)
    if config is None:
        return None
    path, kind = files.path / "config.json", str(config.get("model_type"))
    if kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ConfigError(f"{path}: models that see of type {kind!r} are not known ({known} are)")
    return _FAMILIES[kind]


def load_vision_of(
    files: ModelFiles, dtype: torch.dtype, device: torch.device
) -> VisionModel | None:
    """The tower of the model at `files`; None if it sees nothing. Raises ConfigError for a family
    that is not known, and for files that do not fit."""
    family = vision_family(files)
    return None if family is None else load_vision(files.path, dtype, device)


def load_vision(path: Path, dtype: torch.dtype, device: torch.device) -> VisionModel:
    """The tower of the model in directory `path`, which is of a known family.

    Raises ConfigError for files that do not fit.
    """
    transformers, load_tower = _library(path)
    try:
        config: Any = transformers.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each family's class checks its keys in its own way
        raise ConfigError(f"{path / 'config.json'}: {error}") from error
    model = load_tower(path, config, dtype, device)
    return _FAMILIES[config.model_type](model, Normalise(path, device, dtype))


def _library(path: Path) -> "tuple[Any, Callable[[Path, Any, torch.dtype, torch.device], Any]]":
    """transformers, and what loads with it; models of text alone need neither."""
    try:
        import transformers

        from scheduler_proc.models.vision.loading import load_tower
    except ImportError as error:
        raise ConfigError(
            f"{path}: transformers computes what the model sees: {error} "
            "(pip install 'srt-lang[vision]')"
        ) from error
    return transformers, load_tower
