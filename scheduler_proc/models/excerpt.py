"""The first layers of a checkpoint, as a model of their own: to measure what a layer takes."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from scheduler_proc.models.checkpoint import Checkpoint, RawTensor

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class FirstLayers:
    """A Checkpoint of the first `count` layers of another."""

    def __init__(self, whole: Checkpoint, count: int) -> None:
        config = whole.config
        windowed = config.windowed[:count]
        self._whole, self._count = whole, count
        self.path: Path = whole.path
        self.interleaved_rope = whole.interleaved_rope
        self.config = replace(config, layers=count, windowed=windowed)
        self.num_bytes = sum(len(whole.raw(name).data) for name in self.names())

    def names(self) -> Iterable[str]:
        """Those of the layers, and those of no layer."""
        layers = {name: _LAYER.match(name) for name in self._whole.names()}
        return [name for name, at in layers.items() if at is None or int(at[1]) < self._count]

    def shape(self, name: str) -> tuple[int, ...]:
        """See Checkpoint."""
        return self._whole.shape(name)

    def raw(self, name: str) -> RawTensor:
        """See Checkpoint."""
        return self._whole.raw(name)

    def read_rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """See Checkpoint."""
        return self._whole.read_rows(name, start, stop)

    def read_scalar(self, name: str) -> float:
        """See Checkpoint."""
        return self._whole.read_scalar(name)

    def rope_divisors(self) -> np.ndarray | None:
        """See Checkpoint."""
        return self._whole.rope_divisors()
