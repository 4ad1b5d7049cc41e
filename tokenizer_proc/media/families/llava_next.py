"""LLaVA-NeXT: the whole picture small and tiles of it large, without the embeddings of padding and
with one at each row's end.

`detail` changes nothing: the model knows no other view.
"""

from PIL import Image

from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.families.tower import TowerFeatures
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Size
from tokenizer_proc.media.settings import Checkpoint
from tokenizer_proc.media.tiles import AnyResolution, num_grid_features

_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


class LlavaNext(Family):
    """LlavaNextForConditionalGeneration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(Tokens(checkpoint), checkpoint.config.token_id("image_token", 32_000))
        self._views = AnyResolution(
            checkpoint.image, Size(shortest_edge=224), (224, 224), _RESOLUTIONS
        )
        self._features = TowerFeatures(checkpoint)

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        tiles, resolution = self._views.of(image)
        size, tile = (image.height, image.width), (tiles[0].height, tiles[0].width)
        patch = self._features.patch
        grid = (tile[0] // patch, tile[1] // patch)
        length = self._features.of(*tile) + num_grid_features(size, resolution, tile, grid)
        pixels = stacked(tiles)
        return [make_item("llava_next", "image", pixels, length, size, size_counts=True)]
