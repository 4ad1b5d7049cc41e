"""Families whose items are single squares: Idefics3, SmolVLM and Gemma 3."""

from collections.abc import Sequence

import numpy as np
import torch

from scheduler_proc.models.vision.tower import Tower
from srt.wire.media import MediaItem


class _Square(Tower):
    def num_parts(self, item: MediaItem) -> int:
        """A square is one part."""
        return 1

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The only part."""
        return parts[0]


class Idefics3(_Square):
    """An item is a tile of a picture, or all of it; SmolVLM is the same model."""

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> torch.Tensor:
        """Its embeddings, [length, hidden]."""
        found: torch.Tensor = self._model.get_image_features(
            self._normalise(pixels, item.kind)[None]
        ).pooler_output[0]
        return found


class Gemma3(_Square):
    """An item is a crop. Its tokens see each other both ways in the decoder."""

    sees_both_ways = True

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> torch.Tensor:
        """Its embeddings, [length, hidden]."""
        found: torch.Tensor = self._model.get_image_features(self._normalise(pixels)).pooler_output
        return found[0]
