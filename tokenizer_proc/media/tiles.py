"""Pictures of any size as tiles of one size, as LLaVA-NeXT and LLaVA-OneVision take them: the whole
picture small, then a grid of tiles of the picture at the best of some resolutions ("anyres").

After Liu et al., LLaVA-NeXT (https://llava-vl.github.io/blog/2024-01-30-llava-next/), and what
transformers makes of it, to the pixel and the token. Sizes are (height, width).
"""

import math
from collections.abc import Sequence

from PIL import Image

from tokenizer_proc.media.resize import Fit, Size, cut, pad_around, resize
from tokenizer_proc.media.settings import Settings

# With more features than this times what the limit asks for, OneVision shrinks its grid of them.
_SHRINKS_ABOVE = 1.1


def best_resolution(
    size: tuple[int, int], resolutions: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The one that shows most pixels of a picture of this size, and of such the one that wastes
    least."""
    height, width = size

    def usefulness(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - resolution[0] * resolution[1]

    return max(resolutions, key=usefulness)


class AnyResolution:
    """Pictures as tiles, as `settings` say; what these leave out is given.

    Raises ConfigError.
    """

    def __init__(
        self,
        settings: Settings,
        size: Size,
        crop: tuple[int, int] | None,
        resolutions: list[list[int]],
    ) -> None:
        size = settings.fixed_size("size", size, number_is_square=False)
        crops = settings.flag("do_center_crop", crop is not None)
        crop_size = (
            settings.crop(crop or size.square) if settings.has("crop_size") or crop else None
        )
        self.fit = Fit(
            pad_colour=None,
            size=size if settings.flag("do_resize", True) else None,
            resample=settings.resample(Image.Resampling.BICUBIC),
            crop=crop_size if crops else None,
        )
        self._whole = size.square
        self._tile = crop_size[0] if crop_size else size.square[0]
        self._resolutions = _read_resolutions(settings, resolutions, self._tile)

    def of(self, image: Image.Image) -> tuple[list[Image.Image], tuple[int, int]]:
        """The whole picture, then its tiles, row by row; and which resolution was the best."""
        target = best_resolution((image.height, image.width), self._resolutions)
        within = resize(image, fitting(image.height, image.width, target), self.fit.resample)
        views = [resize(image, self._whole, self.fit.resample)]
        views += cut(pad_around(within, target), self._tile, self._tile)
        return [self.fit.apply(view) for view in views], target


def num_grid_features(
    size: tuple[int, int],
    resolution: tuple[int, int],
    tile: tuple[int, int],
    features: tuple[int, int],
    max_tiles: int | None = None,
) -> int:
    """How many embeddings the tiles of a picture of this size leave, when those of the padding are
    taken away and one is put at each row's end.

    `tile` is the size of a tile in pixels, `features` the rows and columns of its embeddings.
    `max_tiles`: more embeddings than so many tiles have are shrunk, if it is not None.
    """
    rows = features[0] * (resolution[0] // tile[0])
    columns = features[1] * (resolution[1] // tile[1])
    height, width = size
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    if max_tiles is not None:
        ratio = math.sqrt(rows * columns / (max_tiles * features[0] ** 2))
        if ratio > _SHRINKS_ABOVE:
            rows, columns = int(rows // ratio), int(columns // ratio)
    return rows * columns + rows


def _read_resolutions(
    settings: Settings, default: list[list[int]], tile: int
) -> list[tuple[int, int]]:
    key = "image_grid_pinpoints"
    found = settings.get(key, list[list[int]], default)
    for pair in found:
        if len(pair) != 2 or min(pair) < tile or any(edge % tile for edge in pair):
            raise settings.error(key, f"{pair} is not a height and width of whole tiles of {tile}")
    if not found:
        raise settings.error(key, "is empty")
    return [(pair[0], pair[1]) for pair in found]


def fitting(height: int, width: int, target: tuple[int, int]) -> tuple[int, int]:
    """The largest size with these proportions inside of `target`."""
    by_width, by_height = target[1] / width, target[0] / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), target[0]), target[1]
    return target[0], min(math.ceil(width * by_height), target[1])
