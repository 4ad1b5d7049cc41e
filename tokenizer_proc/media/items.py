"""Makes items of pixels: what identifies them, and what must not grow without bound."""

import hashlib

import msgspec
import numpy as np
from PIL import Image

from srt.wire.media import MediaItem
from tokenizer_proc.media.base import MediaError, Processed

# What one file may come to; a long video should ask for fewer frames.
MAX_PIXEL_BYTES = 512 * 2**20


def check_bytes(tiles: int, height: int, width: int) -> None:
    """Raise MediaError if so many pixels are too many for one file."""
    num_bytes = tiles * height * width * 3
    if num_bytes > MAX_PIXEL_BYTES:
        raise MediaError(
            f"{tiles} frames of {width} x {height} pixels are {num_bytes} bytes, more than "
            f"{MAX_PIXEL_BYTES}: ask for fewer frames (num_frames)"
        )


def stacked(tiles: list[Image.Image]) -> np.ndarray:
    """Pictures of one size, mode RGB, as uint8 [tiles, height, width, 3]."""
    return np.stack([np.asarray(tile) for tile in tiles])


def make_item(
    family: str,
    kind: str,
    pixels: np.ndarray,
    length: int,
    size: tuple[int, int],
    *,
    size_counts: bool = False,
    grid: tuple[int, int, int] = (0, 0, 0),
    time_step: float = 0.0,
    time: float = 0.0,
    duration: float = 0.0,
) -> Processed:
    """An item of `pixels`, uint8 [tiles, height, width, 3]. `size_counts` says that what is encoded
    depends on the picture's `size` too."""
    tiles, height, width, _ = pixels.shape
    shape = (tiles, height, width, 3)
    counted = size if size_counts else None
    facts = msgspec.json.encode([family, kind, shape, length, counted, grid, time_step])
    digest = hashlib.sha256(facts)
    digest.update(np.ascontiguousarray(pixels).data)
    item = MediaItem(digest.digest(), kind, length, shape, size, grid, time_step, time, duration)
    return Processed(item, pixels)
