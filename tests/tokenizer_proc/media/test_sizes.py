"""Sizes and counts are those of transformers, for many sizes of pictures."""

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.running.late import late
from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.families.qwen_vl import whole_patches
from tokenizer_proc.media.tiles import best_resolution, fitting, num_grid_features

if TYPE_CHECKING:
    import transformers
    from transformers import image_processing_utils
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl
else:
    transformers = late("transformers")
    image_processing_utils = late("transformers.image_processing_utils")
    image_processing_pil_qwen2_vl = late(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    )

EDGES = (384, 768, 1152, 1536, 1920, 2304)
GRIDS = (
    [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)],
    [(height, width) for height in EDGES for width in EDGES],
)


def _sizes(count: int = 400) -> list[tuple[int, int]]:
    rng = random.Random(0)
    some = [(rng.randrange(1, 3000), rng.randrange(1, 3000)) for _ in range(count)]
    return [*some, (1, 1), (1, 2999), (2999, 1), (336, 672), (384, 384), (2304, 2304)]


@pytest.mark.parametrize("grid", GRIDS, ids=("LLaVA-NeXT", "LLaVA-OneVision"))
def test_best_resolutions(grid: list[tuple[int, int]]) -> None:
    for size in _sizes():
        best = best_resolution(size, grid)
        assert best == image_processing_utils.select_best_resolution(size, grid)
        picture = np.empty((3, *size), np.bool_)
        assert fitting(*size, best) == image_processing_utils.get_patch_output_size(
            picture, best, "channels_first"
        )


def test_numbers_of_embeddings() -> None:
    next_ = transformers.LlavaNextProcessor.__new__(transformers.LlavaNextProcessor)
    one = transformers.LlavaOnevisionProcessor.__new__(transformers.LlavaOnevisionProcessor)
    one.vision_aspect_ratio = "anyres_max_9"
    for size in _sizes():
        for grid, tile, side, reference, most in (
            (GRIDS[0], 336, 24, next_, None),
            (GRIDS[1], 384, 27, one, 9),
        ):
            best = best_resolution(size, grid)
            scale = (best[0] // tile, best[1] // tile)
            count: Any = reference._get_unpadded_features
            expected = sum(count(*size, side, side, *scale))
            found = num_grid_features(size, best, (tile, tile), (side, side), most)
            assert found == expected, size


def test_whole_patches() -> None:
    for factor, limits in ((28, (56 * 56, 28 * 28 * 1280)), (32, (64 * 64, 2**20))):
        for size in _sizes():
            if max(size) > 200 * min(size):
                with pytest.raises(MediaError, match="200 times"):
                    whole_patches(*size, factor, *limits)
            else:
                assert whole_patches(
                    *size, factor, *limits
                ) == image_processing_pil_qwen2_vl.smart_resize(*size, factor, *limits)
