"""Videos as items of the families that take them, and their texts.

transformers' processors of videos need torchvision, but what they compute of frames' numbers and
sizes does not: it is what these tests compare with.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from srt.wire.media import MediaItem, MediaRef
from tests.running.late import late
from tests.running.profiles import some
from tests.tokenizer_proc.media.checkpoints import config, load
from tests.tokenizer_proc.media.films import decoded, film
from tests.tokenizer_proc.media.gallery import encoded, rgb
from tests.tokenizer_proc.media.test_families import CASES, ours
from tokenizer_proc.media.base import MediaError, MediaProcessor, Processed
from tokenizer_proc.media.families.qwen_vl import Qwen3VL, VideoSettings
from tokenizer_proc.media.resize import Size
from tokenizer_proc.media.settings import Settings

if TYPE_CHECKING:
    import torch
    import transformers
    from transformers import video_utils
    from transformers.models.qwen3_vl import video_processing_qwen3_vl
else:
    torch = late("torch")
    transformers = late("transformers")
    video_processing_qwen3_vl = late("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    video_utils = late("transformers.video_utils")

COUNTS = (1, 2, 3, 4, 7, 10, 31, 64, 100)


def watched(mine: MediaProcessor, files: Sequence[bytes], num_frames: int = 0) -> list[Processed]:
    """The items of a video."""
    return mine.process(MediaRef("video", b"", len(files), num_frames=num_frames), files)


def qwen(name: str, path: Path, **video: object) -> MediaProcessor:
    """A Qwen processor with these settings of videos."""
    case = CASES[name]
    return load(
        path,
        config=config(case.family, **case.config),
        preprocessor_config=case.settings,
        video_preprocessor_config=video,
    )


def resized(image: Image.Image, item: MediaItem) -> np.ndarray:
    _, height, width, _ = item.shape
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def numbers_of(items: Sequence[Processed], frames: list[Image.Image]) -> list[int]:
    """Which frames the pixels are."""
    found = []
    for item, pixels in items:
        shown = [resized(frame, item) for frame in frames]
        for picture in pixels:
            found += [number for number, own in enumerate(shown) if np.array_equal(own, picture)]
    return found


def test_onevision(tmp_path: Path) -> None:
    mine = ours(CASES["LLaVA-OneVision"], tmp_path)
    data = film(40)
    frames = decoded(data)
    reference = transformers.LlavaOnevisionProcessor.__new__(transformers.LlavaOnevisionProcessor)
    reference.num_image_tokens, reference.video_token = 16, "<video>"
    for asked, count in ((0, 32), (6, 6), (100, 40)):
        [(item, pixels)] = watched(mine, [data], asked)
        expected = video_utils.default_sample_indices_fn(
            video_utils.VideoMetadata(40, 10.0), num_frames=count
        )
        assert numbers_of([Processed(item, pixels)], frames) == expected.tolist()
        assert (item.kind, item.shape, item.size) == ("video", (count, 28, 28, 3), (48, 64))
        text = reference.replace_video_token({"pixel_values_videos": [pixels]}, 0)
        assert mine.expansion("video", [item]) == text
        assert item.length == text.count("<video>")
    assert mine.placeholder("video") == "<video>"
    assert mine.video_placeholder_id == mine.placeholder_id + 1


def _qwen25_indices(video: "video_utils.VideoMetadata", asked: int, fps: int | None) -> list[int]:
    """As Qwen2VLVideoProcessor computes it, whose module cannot be imported without torchvision.
    Where it refuses a video with fewer frames, as many as there are."""
    total = video.total_num_frames
    if asked:
        count = round(asked / 2) * 2
    else:
        assert fps is not None and video.fps is not None
        count = math.floor(min(max(total / video.fps * fps, 4), 768, total) / 2) * 2
    count = max(min(count, total // 2 * 2), 1)
    chosen: list[int] = torch.arange(0, total, total / count).int().tolist()
    return chosen


@pytest.mark.parametrize("total", some(COUNTS, 3, 31))
def test_qwen25_looks_at_the_frames_that_transformers_chooses(total: int, tmp_path: Path) -> None:
    limits = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 4}
    data = film(total)
    frames = decoded(data)
    for asked, fps in ((0, 4), (0, 2), (4, None), (5, None), (7, None)):
        mine = qwen("Qwen2.5-VL", tmp_path, fps=fps, **limits)
        [(item, pixels)] = watched(mine, [data], asked)
        metadata = video_utils.VideoMetadata(total, 10.0)
        indices = _qwen25_indices(metadata, asked, fps)
        metadata.frames_indices = indices
        padded = indices + indices[-1:] * (len(indices) % 2)
        assert numbers_of([Processed(item, pixels)], frames) == padded
        assert item.grid[0] == len(padded) // 2
        seconds = 2 / metadata.sampled_fps
        assert item.time_step == pytest.approx(seconds * 4)
        assert item.length == np.prod(item.grid)
        assert mine.expansion("video", [item]) == "<|video_pad|>" * item.length


@pytest.mark.parametrize("total", some(COUNTS, 3, 31))
def test_qwen3_writes_the_times_that_transformers_writes(total: int, tmp_path: Path) -> None:
    data = film(total)
    frames = decoded(data)
    size = {"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 40}
    reference = transformers.Qwen3VLProcessor.__new__(transformers.Qwen3VLProcessor)
    reference.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    reference.video_token = "<|video_pad|>"
    reference.vision_start_token, reference.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    chooser: Any = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    mine = qwen("Qwen3-VL", tmp_path, size=size)
    for asked in (0, 1, 4, 5):
        items = watched(mine, [data], asked)
        count = min(asked, total) or None
        metadata = video_utils.VideoMetadata(total, 10.0)
        indices = video_processing_qwen3_vl.Qwen3VLVideoProcessor.sample_frames(
            chooser, metadata, count
        )
        metadata.frames_indices = indices.tolist()
        padded = indices.tolist() + indices.tolist()[-1:] * (len(indices) % 2)
        assert numbers_of(items, frames) == padded
        height, width = video_processing_qwen3_vl.smart_resize(
            max(len(indices), 2), 48, 64, 2, 32, size["shortest_edge"], size["longest_edge"]
        )
        grid = np.array([[len(items), height // 16, width // 16]])
        text = reference.replace_video_token(
            {"video_grid_thw": grid, "video_metadata": [metadata]}, 0
        )
        assert mine.expansion("video", [item for item, _ in items]) == text
        for item, pixels in items:
            assert pixels.shape == item.shape == (2, height, width, 3)
            assert item.grid == (1, height // 32, width // 32)
            assert pixels.flags.c_contiguous


def test_qwen3_sizes_of_frames() -> None:
    """Those of transformers, for some numbers of frames of some sizes."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        count, height, width = (int(n) for n in rng.integers((2, 1, 1), (200, 900, 900)))
        caps = bool(rng.integers(2))
        low, high = 128 * 32 * 32, 32 * 32 * 768 * int(rng.integers(1, 20))
        mine = _qwen3_frame_size(count, height, width, caps, low, high)
        scale = max(32 / height, 32 / width, 1)
        if max(int(height * scale), int(width * scale)) > 200 * min(height * scale, width * scale):
            continue
        if caps:
            frame_cap = 768 * 32 * 32
            high = max(min(frame_cap, high // count), int(low * 1.05)) * count
        assert mine == video_processing_qwen3_vl.smart_resize(
            count, height, width, 2, 32, low, high
        )


def _qwen3_frame_size(
    count: int, height: int, width: int, caps: bool, low: int, high: int
) -> tuple[int, int] | None:
    values = {"size": {"shortest_edge": low, "longest_edge": high}, "cap_pixels_per_frame": caps}
    how = VideoSettings(Settings("video", values), 16, Size(), 768)
    made = Qwen3VL.__new__(Qwen3VL)
    made._video = how
    try:
        return made._frame_size(count, height, width)
    except MediaError:
        return None


@pytest.mark.parametrize("name", ["Qwen2.5-VL", "Qwen3-VL"])
def test_pictures_are_frames(name: str, tmp_path: Path) -> None:
    """They are all looked at, unless fewer are asked for."""
    mine = qwen(name, tmp_path, size={"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 99})
    pictures = [rgb(64, 64, seed=number) for number in range(5)]
    files = [encoded(picture) for picture in pictures]
    items = watched(mine, files)
    assert numbers_of(items, pictures) == [0, 1, 2, 3, 4, 4]
    assert len(numbers_of(watched(mine, files, 2), pictures)) == 2
    [first] = watched(mine, files[:1])
    assert first.item.shape[0] == 2


def test_what_is_refused(tmp_path: Path) -> None:
    mine = ours(CASES["LLaVA-OneVision"], tmp_path / "a")
    for files, asked in (([film(3)], 769), ([film(3)], -1), ([], 0), ([b""] * 769, 0)):
        with pytest.raises(MediaError, match="1 to 768 frames"):
            watched(mine, files, asked)
    with pytest.raises(MediaError, match="not a video"):
        watched(mine, [b"#EXTM3U\n"])
    blind = ours(CASES["SmolVLM"], tmp_path / "b")
    with pytest.raises(MediaError, match="takes no videos"):
        watched(blind, [film(3)])
    vast = {"shortest_edge": 2_000_000, "longest_edge": 10**9}
    large = qwen("Qwen2.5-VL", tmp_path / "c", size=vast, fps=10)
    with pytest.raises(MediaError, match=r"100 frames of 1652 x 1232 pixels are .*num_frames"):
        watched(large, [film(100)])
