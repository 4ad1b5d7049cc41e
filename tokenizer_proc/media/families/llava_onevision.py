"""LLaVA-OneVision: pictures as in LLaVA-NeXT, of which many embeddings are shrunk to fewer; videos
as frames of one size, whose embeddings are pooled, with one at the end.

`detail` "low" is the view that the model has of one of several pictures: the whole picture in a
square, alone, with one embedding at the end.
"""

import math

from PIL import Image

from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.families.frames import evenly_spaced, read_frames
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Fit, Size
from tokenizer_proc.media.settings import Checkpoint, Settings
from tokenizer_proc.media.tiles import AnyResolution, num_grid_features
from tokenizer_proc.media.video import Video

_SIZE = Size(384, 384)
_EDGES = (384, 768, 1152, 1536, 1920, 2304)
_RESOLUTIONS = [[height, width] for height in _EDGES for width in _EDGES]
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_ASPECT_RATIO = "anyres_max_"
_NUM_FRAMES = 32  # where the checkpoint does not say; what the model was evaluated with


class LlavaOnevision(Family):
    """LlavaOnevisionForConditionalGeneration."""

    kinds = frozenset({"image", "video"})

    def __init__(self, checkpoint: Checkpoint) -> None:
        config, processor = checkpoint.config, checkpoint.processor
        image_id = config.token_id("image_token", 151_646)
        super().__init__(Tokens(checkpoint), image_id, config.token_id("video_token", 151_647))
        image = checkpoint.image
        self._views = AnyResolution(image, _SIZE, None, _RESOLUTIONS)
        strategy = "vision_feature_select_strategy"
        if processor.get(strategy, str, config.get(strategy, str, "full")) != "full":
            raise processor.error(strategy, "only 'full' is supported")
        self._side = _features_side(checkpoint)
        self._max_tiles = _max_tiles(processor, config)
        red, green, blue = image.get("image_mean", tuple[float, float, float], _CLIP_MEAN)
        self._low = self._views.fit._replace(
            pad_colour=(int(red * 255), int(green * 255), int(blue * 255))
        )
        self._video_fit, self._num_frames = _read_video(checkpoint.video)

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        size = (image.height, image.width)
        if detail == "low":
            pixels, length = stacked([self._low.apply(image)]), self._side**2 + 1
        else:
            tiles, resolution = self._views.of(image)
            pixels, tile = stacked(tiles), (tiles[0].height, tiles[0].width)
            grid = (self._side, self._side)
            length = self._side**2
            length += num_grid_features(size, resolution, tile, grid, self._max_tiles)
        return [make_item("llava_onevision", "image", pixels, length, size, size_counts=True)]

    def video(self, video: Video, num_frames: int) -> list[Processed]:
        count = num_frames or (self._num_frames if video.is_film else video.total)
        indices = evenly_spaced(video.total, min(count, video.total))
        size = self._video_fit.size_of(video.height, video.width)
        pixels = read_frames(video, indices, size, self._video_fit.apply)
        pooled = math.ceil(self._side / 2)
        length = len(indices) * pooled**2 + 1
        shown = (video.height, video.width)
        return [make_item("llava_onevision", "video", pixels, length, shown)]


def _features_side(checkpoint: Checkpoint) -> int:
    """Rows, and columns, of the tower's embeddings."""
    vision = checkpoint.vision
    given = checkpoint.config.has("vision_config")
    size = vision.count("image_size", 224 if given else 384)
    patch = vision.count("patch_size", 16 if given else 14)
    count = checkpoint.processor.count("num_image_tokens", (size // patch) ** 2)
    if math.isqrt(count) ** 2 != count:
        raise checkpoint.processor.error("num_image_tokens", f"{count} is not a square")
    return math.isqrt(count)


def _max_tiles(processor: Settings, config: Settings) -> int:
    key = "vision_aspect_ratio"
    ratio = processor.get(key, str, config.get(key, str, f"{_ASPECT_RATIO}9"))
    number = ratio.removeprefix(_ASPECT_RATIO)
    if not number.isdecimal() or number == ratio or not int(number):
        raise processor.error(key, f"{ratio!r} is not supported")
    return int(number)


def _read_video(settings: Settings) -> tuple[Fit, int]:
    """What is done to frames, and how many are looked at."""
    if settings.flag("do_center_crop", False):
        raise settings.error("do_center_crop", "is not supported for videos")
    if not settings.flag("do_resize", True):
        raise settings.error("do_resize", "false is not supported for videos")
    size = settings.fixed_size("size", _SIZE, number_is_square=False)
    fit = Fit(None, size, settings.resample(Image.Resampling.BICUBIC), None)
    return fit, settings.count("num_frames", _NUM_FRAMES)
