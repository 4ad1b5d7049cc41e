"""LLaVA-1.5: one picture of one size, whose embeddings are those of the tower's patches.

`detail` changes nothing: there is one view.
"""

from PIL import Image

from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.families.tower import TowerFeatures
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Fit, Size
from tokenizer_proc.media.settings import Checkpoint, Settings

_BICUBIC = Image.Resampling.BICUBIC
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
# Each kind of processor by the beginning of its name, with its default size, and whether it crops.
_KINDS = {
    "CLIP": (Size(shortest_edge=224), True),
    "Llava": (Size(shortest_edge=224), True),
    "Siglip": (Size(224, 224), False),
}


class Llava(Family):
    """LlavaForConditionalGeneration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(Tokens(checkpoint), checkpoint.config.token_id("image_token", 32_000))
        self._fit = _read_fit(checkpoint.image)
        self._features = TowerFeatures(checkpoint)

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        view = self._fit.apply(image)
        length = self._features.of(view.height, view.width)
        size = (image.height, image.width)
        return [make_item("llava", "image", stacked([view]), length, size)]


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
