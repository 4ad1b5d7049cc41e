"""Pixels as a tower takes them: scaled and normalised as preprocessor_config.json says, those of
videos as video_preprocessor_config.json does."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from srt.wire.errors import ConfigError

# By kind: the key of processor_config.json, which goes before the file.
_PLACES = {
    "image": ("image_processor", "preprocessor_config.json"),
    "video": ("video_processor", "video_preprocessor_config.json"),
}


class _Norm(NamedTuple):
    """(pixel * scale - mean) / std; mean and std are of the three colours."""

    scale: float
    mean: list[float]
    std: list[float]


class Normalise:
    """From uint8 [n, height, width, 3] to `dtype` [n, 3, height, width] on `device`."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Of the model in directory `path`. Raises ConfigError if a file is missing or broken."""
        self._norms = {kind: _read_norm(path, kind) for kind in _PLACES}
        self._device, self._dtype = device, dtype

    def __call__(self, pixels: np.ndarray, kind: str = "image") -> torch.Tensor:
        """The normalised pixels, of a picture or of a video's frames."""
        scale, mean, std = self._norms[kind]
        image = torch.from_numpy(np.array(pixels)).to(self._device)  # which may be read-only
        image = image.permute(0, 3, 1, 2).float()
        colours = torch.tensor([mean, std], device=self._device).view(2, 1, 3, 1, 1)
        return ((image * scale - colours[0]) / colours[1]).to(self._dtype)


def processing(path: Path, kind: str) -> dict[str, Any]:
    """What a model directory says of the preparation of its media of `kind` ("image" or "video");
    older ones say of videos what they say of pictures. Raises ConfigError."""
    key, name = _PLACES[kind]
    nested = _read(path / "processor_config.json").get(key)
    if isinstance(nested, dict):
        return nested
    if (path / name).exists():
        return _read(path / name)
    if kind == "image":
        raise ConfigError(f"{path}: {name} is missing, which says how pictures are normalised")
    return processing(path, "image")


def _read_norm(path: Path, kind: str) -> _Norm:
    config = processing(path, kind)
    scale = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    mean, std = [0.0] * 3, [1.0] * 3
    if config.get("do_normalize", True):
        mean, std = config.get("image_mean", ()), config.get("image_std", ())
    try:
        found = _Norm(float(scale), [float(x) for x in mean], [float(x) for x in std])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: the settings of {kind}s are broken: {error}") from error
    if len(found.mean) != 3 or len(found.std) != 3 or 0 in found.std:
        raise ConfigError(f"{path}: image_mean and image_std of {kind}s are not three numbers each")
    return found


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not an object")
    return found
