"""Idefics3, and pictures of SmolVLM: a picture is resized to whole tiles, then each tile, and last
the whole picture small, is an item of its own, with its row and column in words before it.

`detail` "low" is the whole picture alone, as the model has it of pictures that are one tile.
"""

import math
from collections.abc import Sequence

from PIL import Image

from srt.wire.media import MediaItem
from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Size, cut, resize
from tokenizer_proc.media.settings import Checkpoint, Settings

MAX_SIDE = 4096  # of a picture before it is cut into tiles
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Idefics3(Family):
    """Idefics3ForConditionalGeneration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config, image = checkpoint.config, checkpoint.image
        super().__init__(Tokens(checkpoint), config.token_id("image_token", 128_257))
        self._resample = image.resample(Image.Resampling.LANCZOS)
        self._longest = longest_edge(image, "size", 4 * 364)
        self._tile = longest_edge(image, "max_image_size", 364)
        self._splits = image.flag("do_image_splitting", True)
        self._resizes = image.flag("do_resize", True)
        vision = checkpoint.vision
        patches = vision.count("image_size", 224) // vision.count("patch_size", 32)
        length = patches**2 // config.count("scale_factor", 2) ** 2
        self.length = checkpoint.processor.count("image_seq_len", length)

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        tile = (self._tile, self._tile)
        tiles: list[Image.Image] = []
        small = image
        if self._resizes:
            small = resize(
                image, self.first_size(image.height, image.width, self._longest), self._resample
            )
        if self._splits:
            small = resize(small, self._in_tiles(small.height, small.width), self._resample)
            if detail != "low" and max(small.size) > self._tile:
                tiles = cut(small, *tile)
        views = [*tiles, resize(small, tile, self._resample)]
        size = (image.height, image.width)
        return [
            make_item("idefics3", "image", stacked([view]), self.length, size) for view in views
        ]

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        whole = self.whole(items[-1])
        if len(items) == 1:
            return whole
        texts = [self.image_token * item.length for item in items]
        height, width = items[0].size
        size = self.first_size(height, width, self._longest) if self._resizes else (height, width)
        rows, columns = (edge // self._tile for edge in self._in_tiles(*size))
        lines = []
        for row in range(rows):
            for column in range(columns):
                text = texts[row * columns + column]
                lines.append(f"{_AROUND}<row_{row + 1}_col_{column + 1}>{text}")
            lines.append("\n")
        return "".join([*lines, "\n", whole])

    def whole(self, item: MediaItem) -> str:
        """What stands for a whole picture."""
        return f"{_AROUND}{_WHOLE}{self.image_token * item.length}{_AROUND}"

    @staticmethod
    def first_size(height: int, width: int, longest: int) -> tuple[int, int]:
        """The longer side at its configured length, and the shorter one even."""
        ratio = width / height
        if width >= height:
            width, height = longest, _even(int(longest / ratio))
        else:
            height, width = longest, _even(int(longest * ratio))
        height, width = max(height, 1), max(width, 1)
        if max(height, width) <= MAX_SIDE:
            return height, width
        ratio = width / height
        if width >= height:
            return max(int(MAX_SIDE / ratio), 1), MAX_SIDE
        return MAX_SIDE, max(int(MAX_SIDE * ratio), 1)

    def _in_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Whole tiles that a picture of this size fills: its longer side decides first."""
        ratio = width / height
        if width >= height:
            width = self._whole(width)
            return self._whole(int(width / ratio)), width
        height = self._whole(height)
        return height, self._whole(int(height * ratio))

    def _whole(self, edge: int) -> int:
        return math.ceil(edge / self._tile) * self._tile


def _even(edge: int) -> int:
    return edge + edge % 2


def longest_edge(settings: Settings, key: str, default: int) -> int:
    """A setting that is a size with a longest_edge only. Raises ConfigError if it is another."""
    size = settings.edges(key, Size(longest_edge=default), number_is_square=False)
    if size != Size(longest_edge=size.longest_edge):
        raise settings.error(key, "only a longest_edge is supported")
    return size.longest_edge
