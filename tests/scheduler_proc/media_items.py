"""Items, and a stand-in for a vision tower that gives embeddings of the test's own choice."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scheduler_proc.batch import Embeds
from srt.wire.media import MediaItem
from tests.running.late import late
from tests.scheduler_proc.ragged import int32

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


SIDE = 2  # pixels


def item_of(name: str, length: int, tiles: int = 1) -> MediaItem:
    """An item that only its name tells from others."""
    digest = hashlib.sha256(name.encode()).digest()
    return MediaItem(digest, "image", length, (tiles, SIDE, SIDE, 3))


def pixels_of(item: MediaItem) -> np.ndarray:
    return np.zeros(item.shape, np.uint8)


def embeds_of(*runs: tuple[int, int, int, MediaItem]) -> Embeds:
    """Runs of (first token, length, first row of the item, item)."""
    at, lengths, offsets, items = zip(*runs, strict=True)
    return Embeds(int32(at), int32(lengths), int32(offsets), [item.digest for item in items])


class GivenVision:
    """A VisionModel whose items have the embeddings that were given for them, a tile after the
    other."""

    num_bytes = 0
    sees_both_ways = has_grid_positions = False
    num_bytes = 0

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: dict[bytes, np.ndarray] = {}

    def give(self, item: MediaItem, rows: np.ndarray) -> None:
        self._rows[item.digest] = rows

    def num_parts(self, item: MediaItem) -> int:
        return item.shape[0]

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> "torch.Tensor":
        assert not pixels.any()
        rows = self._rows[item.digest]
        return torch.from_numpy(np.array_split(rows, item.shape[0])[part])

    def join(self, item: MediaItem, parts: "Sequence[torch.Tensor]") -> "torch.Tensor":
        return torch.cat([*parts])
