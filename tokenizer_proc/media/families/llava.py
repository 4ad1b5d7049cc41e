"""LLaVA-1.5 and LLaVA-NeXT, and the vision towers that both know.

`detail` changes nothing: each model knows one view.
"""

from PIL import Image

from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Fit, Size
from tokenizer_proc.media.settings import Checkpoint, Settings
from tokenizer_proc.media.tiles import AnyResolution, num_grid_features

_BICUBIC = Image.Resampling.BICUBIC
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
# Each kind of processor by the beginning of its name, with its default size, and whether it crops.
_KINDS = {
    "CLIP": (Size(shortest_edge=224), True),
    "Llava": (Size(shortest_edge=224), True),
    "Siglip": (Size(224, 224), False),
}
# The patch size of a tower that config.json does not describe, and of one whose description has
# none, by its model_type.
_PATCH = 14
_PATCHES = {"clip_vision_model": 32, "siglip_vision_model": 16}
_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


class TowerFeatures:
    """How many embeddings a tower makes of a picture, as the processor's settings say, and
    otherwise the model's. `patch` is the side of a patch in pixels."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        vision, processor = checkpoint.vision, checkpoint.processor
        kind = vision.get("model_type", str, "clip_vision_model")
        if kind not in _PATCHES:
            raise vision.error("model_type", f"{kind!r} is not supported")
        patch = _PATCHES[kind] if checkpoint.config.has("vision_config") else _PATCH
        self.patch = processor.count("patch_size", vision.count("patch_size", patch))
        strategy = "vision_feature_select_strategy"
        selected = processor.get(strategy, str, checkpoint.config.get(strategy, str, "default"))
        if selected not in ("default", "full"):
            raise processor.error(strategy, f"{selected!r} is not supported")
        more = processor.get("num_additional_image_tokens", int, int(kind == "clip_vision_model"))
        self._more = more - (selected == "default")

    def of(self, height: int, width: int) -> int:
        """The embeddings of a picture of this size."""
        return (height // self.patch) * (width // self.patch) + self._more


class Llava(Family):
    """LLaVA-1.5: one picture of one size, whose embeddings are those of the tower's patches."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(Tokens(checkpoint), checkpoint.config.token_id("image_token", 32_000))
        self._fit = _read_fit(checkpoint.image)
        self._features = TowerFeatures(checkpoint)

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        view = self._fit.apply(image)
        length = self._features.of(view.height, view.width)
        size = (image.height, image.width)
        return [make_item("llava", "image", stacked([view]), length, size)]


class LlavaNext(Family):
    """LLaVA-NeXT: the whole picture small and tiles of it large, without the embeddings of padding
    and with one at each row's end."""

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


def _read_fit(settings: Settings) -> Fit:
    kind = settings.get("image_processor_type", str, "")
    kind = kind or settings.get("feature_extractor_type", str, "CLIPImageProcessor")
    found = next((k for k in _KINDS if kind.startswith((f"{k}Image", f"{k}Feature"))), None)
    if found is None:
        raise settings.error("image_processor_type", f"{kind!r} is not supported")
    size, crops = _KINDS[found]
    pads = settings.flag("do_pad", False)
    if pads and found != "Llava":
        raise settings.error("do_pad", "is not supported")
    mean = settings.get("image_mean", tuple[float, float, float], _CLIP_MEAN)
    red, green, blue = (int(value * 255) for value in mean)
    resizes = settings.flag("do_resize", True)
    return Fit(
        (red, green, blue) if pads else None,
        settings.fixed_size("size", size, number_is_square=False) if resizes else None,
        settings.resample(_BICUBIC),
        settings.crop((224, 224)) if settings.flag("do_center_crop", crops) else None,
    )
