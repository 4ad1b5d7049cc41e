"""SmolVLM 2: pictures as Idefics3 has them, and videos, whose frames are whole pictures with the
time of each in words before it.

Frames are resized with Pillow, as pictures are; transformers has torchvision for them, whose
results differ from Pillow's by rounding.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from PIL import Image

from srt.wire.media import MAX_FRAMES, MediaItem
from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.families.frames import read_frames
from tokenizer_proc.media.families.idefics3 import MAX_SIDE, Idefics3, longest_edge
from tokenizer_proc.media.items import make_item
from tokenizer_proc.media.resize import resize
from tokenizer_proc.media.settings import Checkpoint
from tokenizer_proc.media.video import Video

_SKIP_S = 1.0  # of a long video's beginning and end
_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


class SmolVLM(Idefics3):
    """SmolVLMForConditionalGeneration. A checkpoint that does not say how frames are chosen, as
    those before SmolVLM 2, takes no videos."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        video = checkpoint.video
        self.video_token = "<video>"  # transformers' too; it is no token of the tokenizer
        sampling = video.section("video_sampling")
        self._fps = sampling.get("fps", float, video.get("fps", float, 0.0))
        count = sampling.count("max_frames", video.count("num_frames", 0))
        self._num_frames = min(count, MAX_FRAMES)
        if not (count and self._fps > 0):
            return
        if not video.flag("do_resize", True):
            raise video.error("do_resize", "false is not supported for videos")
        self.kinds = frozenset({"image", "video"})
        size = longest_edge(sampling, "video_size", 4 * 364)
        self._frame_longest = min(longest_edge(video, "size", size), MAX_SIDE)
        self._frame = longest_edge(video, "max_image_size", 364)
        self._frame_resample = video.resample(Image.Resampling.LANCZOS)

    def video(self, video: Video, num_frames: int) -> list[Processed]:
        indices = self._chosen(video, num_frames)
        size, frame = (video.height, video.width), (self._frame, self._frame)
        first = self.first_size(*size, self._frame_longest)

        def fit(image: Image.Image) -> Image.Image:
            return resize(resize(image, first, self._frame_resample), frame, self._frame_resample)

        pixels = read_frames(video, indices, frame, fit)
        last = video.total if video.is_film else indices[-1]
        return [
            make_item(
                "idefics3",
                "video",
                pixels[number : number + 1],
                self.length,
                size,
                time=index / video.fps,
                duration=last / video.fps,
            )
            for number, index in enumerate(indices)
        ]

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        if kind == "image":
            return super().expansion(kind, items)
        duration = timedelta(seconds=int(items[0].duration))
        count, texts = in_words(len(items)), []
        for item in items:
            minutes, seconds = divmod(int(item.time), 60)
            texts.append(f"\nFrame from {minutes:02d}:{seconds:02d}:{self.whole(item)}")
        return (
            f"You are provided the following series of {count} frames from a {duration} [H:MM:SS] "
            f"video.\n{''.join(texts)}\n\n"
        )

    def _chosen(self, video: Video, num_frames: int) -> list[int]:
        """Which frames are looked at. Of pictures all, unless fewer are asked for."""
        most, start, end = num_frames or self._num_frames, 0, video.total - 1
        if not video.is_film:
            count = min(num_frames or video.total, video.total)
        else:
            seconds = video.total / video.fps
            count = max(min(round(self._fps * seconds), most), 1)
            # Seconds against frames times frames per second: it is what transformers compares.
            if seconds - 2 * _SKIP_S > most * self._fps:
                start = int(_SKIP_S * video.fps)
                end = min(int(video.total - _SKIP_S * video.fps), end)
            if start >= end:
                start, end = 0, video.total - 1
        chosen: list[int] = np.unique(np.linspace(start, end, count, dtype=int)).tolist()
        return chosen


def in_words(number: int) -> str:
    """A number below 1000 in English."""
    hundreds, rest = divmod(number, 100)
    if rest < 20:
        words = _SMALL[rest]
    else:
        tens, ones = divmod(rest, 10)
        words = _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    if not hundreds:
        return words
    return f"{_SMALL[hundreds]} hundred" + (f" and {words}" if rest else "")
