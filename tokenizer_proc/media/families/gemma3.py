"""Gemma 3: the whole picture at one size, and with pan-and-scan parts of a long one too, each an
item of its own.

`detail` "low" is the whole picture alone; without pan-and-scan it changes nothing.
"""

import math
from collections.abc import Sequence

from PIL import Image

from srt.wire.media import MediaItem
from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Fit, Size, cut
from tokenizer_proc.media.settings import Checkpoint


class Gemma3(Family):
    """Gemma3ForConditionalGeneration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config, image = checkpoint.config, checkpoint.image
        tokens = Tokens(checkpoint)
        super().__init__(tokens, config.token_id("image_token", 262_144))
        self._begin = tokens[config.token_id("boi_token", 255_999)]
        self._end = tokens[config.token_id("eoi_token", 256_000)]
        self._length = checkpoint.processor.count(
            "image_seq_length", config.count("mm_tokens_per_image", 256)
        )
        if not image.flag("do_resize", True):
            raise image.error("do_resize", "false is not supported")
        size = image.fixed_size("size", Size(224, 224), number_is_square=True)
        self._fit = Fit(None, size, image.resample(Image.Resampling.BILINEAR), None)
        self._scans = image.flag("do_pan_and_scan", False)
        self._min_crop = image.count("pan_and_scan_min_crop_size", 256)
        self._max_crops = image.count("pan_and_scan_max_num_crops", 4)
        self._min_ratio = image.get("pan_and_scan_min_ratio_to_activate", float, 1.2)

    def placeholder(self, kind: str) -> str:
        return self._begin

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        parts = self._parts(image) if self._scans and detail != "low" else []
        size = (image.height, image.width)
        views = [stacked([self._fit.apply(view)]) for view in (image, *parts)]
        return [make_item("gemma3", "image", view, self._length, size) for view in views]

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        texts = [
            f"\n\n{self._begin}{self.image_token * item.length}{self._end}\n\n" for item in items
        ]
        if len(texts) == 1:
            return texts[0]
        parts = " ".join(texts[1:])
        return (
            f"Here is the original image {texts[0]} and here are some crops to help you see better "
            f"{parts}"
        )

    def _parts(self, image: Image.Image) -> list[Image.Image]:
        """The parts of a long picture side by side along it, none if it is not long enough."""
        long, short = max(image.size), min(image.size)
        ratio = long / short
        if ratio < self._min_ratio:
            return []
        count = max(2, min(long // self._min_crop, math.floor(ratio + 0.5)))
        part = math.ceil(long / min(count, self._max_crops))
        if min(part, short) < self._min_crop:
            return []
        is_wide = image.width >= image.height
        return cut(image, short, part) if is_wide else cut(image, part, short)
