"""Qwen2.5-VL and Qwen3-VL: pictures and frames of nearly any size, resized to whole patches, with
as many embeddings as they have patches, four (merge_size squared) to one.

`detail` "low" allows a picture 512 x 512 pixels, the size that OpenAI names for it, as far as the
checkpoint allows that. The frames of videos are resized with Pillow, as pictures are; transformers
has torchvision for them, whose results differ from Pillow's by rounding.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from srt.wire.media import MAX_FRAMES, MediaItem
from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.family import Family, Tokens
from tokenizer_proc.media.families.frames import evenly_spaced, read_frames
from tokenizer_proc.media.items import make_item, stacked
from tokenizer_proc.media.resize import Size, check_proportions, resize
from tokenizer_proc.media.settings import Checkpoint, Settings
from tokenizer_proc.media.video import Video

_MAX_RATIO = 200  # of the longer side to the shorter
_FPS = 2.0  # what frames per second are looked at, where the checkpoint does not say
_BUDGET = 0.9  # of max_video_tokens
_LOW_PIXELS = 512 * 512


class PatchSettings:
    """How pictures, or videos, become patches. Raises ConfigError."""

    def __init__(self, settings: Settings, patch: int, edges: Size) -> None:
        self.patch = settings.count("patch_size", patch)
        self.merge = settings.count("merge_size", 2)
        self.temporal = settings.count("temporal_patch_size", 2)
        self.factor = self.patch * self.merge
        # Their names have changed with transformers' versions; the outer ones count.
        size = settings.section("size")
        least, most = (0, 0) if settings.has("size") else (edges.shortest_edge, edges.longest_edge)
        least = size.count("min_pixels", size.count("shortest_edge", least))
        most = size.count("max_pixels", size.count("longest_edge", most))
        self.min_pixels = settings.count("min_pixels", least)
        self.max_pixels = settings.count("max_pixels", most)
        if not 0 < self.min_pixels <= self.max_pixels:
            raise settings.error("size", "must have a shortest_edge and a longest_edge")
        if not settings.flag("do_resize", True):
            raise settings.error("do_resize", "false is not supported")
        self.resample = settings.resample(Image.Resampling.BICUBIC)

    def fit(self, size: tuple[int, int]) -> Callable[[Image.Image], Image.Image]:
        """Resizes to (height, width) `size`."""
        return lambda image: resize(image, size, self.resample)


class VideoSettings(PatchSettings):
    """How frames are chosen too."""

    def __init__(self, settings: Settings, patch: int, edges: Size, max_tokens: int) -> None:
        super().__init__(settings, patch, edges)
        self.fps = settings.get("fps", float, _FPS)
        self.num_frames = settings.count("num_frames", 0)
        self.min_frames = settings.count("min_frames", 4)
        self.max_frames = min(settings.count("max_frames", MAX_FRAMES), MAX_FRAMES)
        self.max_tokens = settings.count("max_video_tokens", max_tokens)
        self.caps = settings.flag("cap_pixels_per_frame", False)


def whole_patches(
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    frames: int = 1,
    counted: int = 1,
) -> tuple[int, int]:
    """The size with sides that `factor` divides, nearest in proportions, at which `frames` frames
    have `min_pixels` to `max_pixels` pixels ("smart resize"). Whether they have is decided as if
    they were `counted` frames.

    Raises MediaError if one side is more than 200 times as long as the other.
    """
    check_proportions(height, width, _MAX_RATIO)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    pixels = counted * rows * columns
    if pixels > max_pixels:
        scale = math.sqrt(frames * height * width / max_pixels)
        rows = max(factor, math.floor(height / scale / factor) * factor)
        columns = max(factor, math.floor(width / scale / factor) * factor)
    elif pixels < min_pixels:
        scale = math.sqrt(min_pixels / (frames * height * width))
        rows = math.ceil(height * scale / factor) * factor
        columns = math.ceil(width * scale / factor) * factor
    return rows, columns


class QwenVL(Family):
    """What the two have in common."""

    kinds = frozenset({"image", "video"})
    name: str

    def __init__(self, checkpoint: Checkpoint, image: PatchSettings, video: VideoSettings) -> None:
        config, self._tokens = checkpoint.config, Tokens(checkpoint)
        image_id = config.token_id("image_token", 151_655)
        super().__init__(self._tokens, image_id, config.token_id("video_token", 151_656))
        self._image, self._video = image, video

    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        how, size = self._image, (image.height, image.width)
        most = how.max_pixels
        if detail == "low":
            most = max(min(most, _LOW_PIXELS), how.min_pixels)
        target = whole_patches(*size, how.factor, how.min_pixels, most)
        pixels = stacked([how.fit(target)(image)])
        return [self._item("image", pixels, 1, how, size)]

    def video(self, video: Video, num_frames: int) -> list[Processed]:
        how = self._video
        indices = self._choose(video, num_frames)
        target = self._frame_size(len(indices), video.height, video.width)
        pixels = read_frames(video, indices, target, how.fit(target))
        missing = -len(indices) % how.temporal
        if missing:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, 0)])
        indices += indices[-1:] * missing
        return self._video_items(pixels, indices, missing, video)

    def _choose(self, video: Video, num_frames: int) -> list[int]:
        """Which frames are looked at."""
        total, how = video.total, self._video
        if not num_frames and not video.is_film:
            return list(range(total))
        count = self._rounded(num_frames or how.num_frames)
        if not count:
            count = int(total / video.fps * how.fps)
            count = min(max(count, how.min_frames), how.max_frames)
        return self._spaced(total, min(count, total))

    def _item(
        self,
        kind: str,
        pixels: np.ndarray,
        times: int,
        how: PatchSettings,
        size: tuple[int, int],
        time_step: float = 0.0,
        time: float = 0.0,
    ) -> Processed:
        grid = (times, pixels.shape[1] // how.factor, pixels.shape[2] // how.factor)
        return make_item(
            self.name,
            kind,
            pixels,
            math.prod(grid),
            size,
            grid=grid,
            time_step=time_step,
            time=time,
        )

    def _rounded(self, count: int) -> int:
        """How many frames are looked at if so many are asked for."""
        return count

    @abstractmethod
    def _spaced(self, total: int, count: int) -> list[int]:
        """`count` frames of `total`, evenly spaced."""

    @abstractmethod
    def _frame_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        """The size of each of `count` frames."""

    @abstractmethod
    def _video_items(
        self, pixels: np.ndarray, indices: Sequence[int], missing: int, video: Video
    ) -> list[Processed]:
        """The items of frames, of which the last `missing` repeat one."""


class Qwen25VL(QwenVL):
    """Qwen2_5_VLForConditionalGeneration: a video is one item."""

    name = "qwen2_5_vl"

    def __init__(self, checkpoint: Checkpoint) -> None:
        image = PatchSettings(checkpoint.image, 14, Size(0, 0, 56 * 56, 28 * 28 * 1280))
        edges = Size(0, 0, 128 * 28 * 28, 28 * 28 * 768)
        video = VideoSettings(checkpoint.video, 14, edges, 128_000)
        super().__init__(checkpoint, image, video)
        self._tokens_per_second = checkpoint.vision.get("tokens_per_second", float, 4.0)

    def _rounded(self, count: int) -> int:
        temporal = self._video.temporal
        return max(round(count / temporal), 1) * temporal if count else 0

    def _spaced(self, total: int, count: int) -> list[int]:
        temporal = self._video.temporal
        return evenly_spaced(total, max(count // temporal * temporal, 1))

    def _frame_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        how = self._video
        most = how.max_pixels
        if how.caps:
            share = int(how.max_tokens * how.factor**2 * _BUDGET) * how.temporal // count
            most = max(min(most, share), int(how.min_pixels * 1.05))
        return whole_patches(height, width, how.factor, how.min_pixels, most)

    def _video_items(
        self, pixels: np.ndarray, indices: Sequence[int], missing: int, video: Video
    ) -> list[Processed]:
        how = self._video
        sampled_fps = (len(indices) - missing) / video.total * video.fps
        time_step = how.temporal / sampled_fps * self._tokens_per_second
        size = (video.height, video.width)
        times = len(pixels) // how.temporal
        return [self._item("video", pixels, times, how, size, time_step)]


class Qwen3VL(QwenVL):
    """Qwen3VLForConditionalGeneration: two frames of a video are an item, its time before it."""

    name = "qwen3_vl"

    def __init__(self, checkpoint: Checkpoint) -> None:
        image = PatchSettings(checkpoint.image, 14, Size(0, 0, 56 * 56, 28 * 28 * 1280))
        edges = Size(0, 0, 128 * 32 * 32, 32 * 32 * 768)
        video = VideoSettings(checkpoint.video, 16, edges, 768)
        super().__init__(checkpoint, image, video)
        config = checkpoint.config
        self._start = self._tokens[config.token_id("vision_start_token", 151_652)]
        self._end = self._tokens[config.token_id("vision_end_token", 151_653)]

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        if kind == "image":
            return super().expansion(kind, items)
        return "".join(
            f"<{item.time:.1f} seconds>{self._start}{self.video_token * item.length}{self._end}"
            for item in items
        )

    def _spaced(self, total: int, count: int) -> list[int]:
        return [int(index) for index in np.linspace(0, total - 1, count).round()]

    def _frame_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        how = self._video
        count = max(count, how.temporal)
        most = how.max_pixels
        if how.caps:
            each = min(how.max_tokens * how.factor**2, most // count)
            most = max(each, int(how.min_pixels * 1.05)) * count
        if min(height, width) < how.factor:
            scale = max(how.factor / height, how.factor / width)
            height, width = int(height * scale), int(width * scale)
        counted = round(count / how.temporal) * how.temporal
        return whole_patches(height, width, how.factor, how.min_pixels, most, count, counted)

    def _video_items(
        self, pixels: np.ndarray, indices: Sequence[int], missing: int, video: Video
    ) -> list[Processed]:
        how, size = self._video, (video.height, video.width)
        items = []
        for start in range(0, len(pixels), how.temporal):
            stop = start + how.temporal
            time = (indices[start] / video.fps + indices[stop - 1] / video.fps) / 2
            items.append(self._item("video", pixels[start:stop], 1, how, size, time=time))
        return items
