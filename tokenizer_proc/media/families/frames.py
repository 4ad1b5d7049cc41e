"""Which frames of a video are looked at, and what holds them."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from tokenizer_proc.media.items import check_bytes
from tokenizer_proc.media.video import Video


def evenly_spaced(total: int, count: int) -> list[int]:
    """The first frame of each of `count` equal parts of `total` frames."""
    return [number * total // count for number in range(count)]


def read_frames(
    video: Video,
    indices: Sequence[int],
    size: tuple[int, int],
    fit: Callable[[Image.Image], Image.Image],
) -> np.ndarray:
    """Some frames, each made `size` (height, width) by `fit`: uint8 [frames, height, width, 3].

    Raises MediaError; if they are too many, before any is decoded.
    """
    check_bytes(len(indices), *size)
    pixels = np.empty((len(indices), *size, 3), np.uint8)
    for row, frame in zip(pixels, video.frames(indices), strict=True):
        row[:] = np.asarray(fit(frame))
    return pixels
