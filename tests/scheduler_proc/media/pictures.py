"""Pictures in the prompts of the fake model: each of their tokens is a number of its own there.

Number PICTURE + 100 * p + n stands for token n of picture p; the core sees placeholder ids and
spans.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from srt.wire.media import MediaItem, MediaSpan

PICTURE = 1 << 40  # no token id
PLACEHOLDER = 3  # an ordinary token too, where no picture is
GRIDS = {0: (1, 1, 1), 1: (1, 2, 2), 2: (1, 1, 5), 3: (2, 2, 3), 4: (3, 3, 2)}  # by picture
PARTS = {3: 2, 4: 3}  # of the others one


def item_of(picture: int) -> MediaItem:
    frames, rows, columns = GRIDS[picture]
    shape = (PARTS.get(picture, 1), 1, 1, 3)
    length = frames * rows * columns
    return MediaItem(b"digest %d" % picture, "image", length, shape, grid=GRIDS[picture])


ITEMS = {item_of(picture).digest: picture for picture in GRIDS}


def numbers_of(picture: int) -> list[int]:
    """What stands for a picture in a prompt."""
    return [PICTURE + 100 * picture + n for n in range(item_of(picture).length)]


def pixels_of(item: MediaItem) -> np.ndarray:
    return np.full(item.shape, ITEMS[item.digest], np.uint8)


def plain(prompt: Iterable[int]) -> list[int]:
    """The prompt's token ids."""
    return [PLACEHOLDER if number >= PICTURE else number for number in prompt]


def spans_of(prompt: Sequence[int]) -> list[MediaSpan]:
    """The spans of the pictures in a prompt."""
    return [
        MediaSpan(at, item_of((number - PICTURE) // 100))
        for at, number in enumerate(prompt)
        if number >= PICTURE and (number - PICTURE) % 100 == 0
    ]


def whole(prompt: Sequence[int]) -> list[int]:
    """The prompt without the tokens of pictures that are not all there."""
    kept: list[int] = []
    at = 0
    while at < len(prompt):
        number = prompt[at]
        picture = numbers_of((number - PICTURE) // 100) if number >= PICTURE else [number]
        if list(prompt[at : at + len(picture)]) == picture:
            kept += picture
            at += len(picture)
        else:
            at += 1
    return kept
