"""Qwen2.5-VL and Qwen3-VL: pictures of any size, in patches that the tower merges by squares.

Frames go in groups of `temporal_patch_size`; a single picture is its own group, repeated. Groups do
not attend to each other in the tower, so each is a part.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scheduler_proc.models.vision.pixels import Normalise
from scheduler_proc.models.vision.tower import Tower
from srt.wire.media import MediaItem


class QwenVL(Tower):
    """Both versions; Qwen3-VL has features for the decoder's first layers too."""

    has_grid_positions = True

    def __init__(self, model: Any, normalise: Normalise) -> None:
        super().__init__(model, normalise)
        vision = model.config.vision_config
        self._patch, self._merge = vision.patch_size, vision.spatial_merge_size
        self._group: int = vision.temporal_patch_size
        deep = len(getattr(vision, "deepstack_visual_indexes", ()))
        self.width *= 1 + deep

    def num_parts(self, item: MediaItem) -> int:
        """Its groups of frames."""
        return -(-item.shape[0] // self._group)

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> torch.Tensor:
        """The embeddings of one group of frames, [n, width]."""
        frames = pixels[part * self._group : (part + 1) * self._group]
        patches, grid = self._patches(self._normalise(frames, item.kind))
        found = self._model.get_image_features(patches, grid)
        deep = [features[0] for features in getattr(found, "deepstack_features", None) or ()]
        return torch.cat([found.pooler_output[0], *deep], dim=-1)

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """One group after the other."""
        return torch.cat(list(parts))

    def _patches(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The patches of a group, [rows * columns, 3 * group * patch * patch], those of each square
        that is merged together, and their grid [1, 3]."""
        missing = self._group - len(frames)
        frames = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1)))
        patch, merge = self._patch, self._merge
        rows, columns = frames.shape[2] // patch, frames.shape[3] // patch
        cut = frames.reshape(
            *(self._group, 3, rows // merge, merge, patch, columns // merge, merge, patch)
        )
        patches = cut.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)
        return patches, torch.tensor([[1, rows, columns]], device=frames.device)
