"""Positions of three parts, against transformers' and against positions written out by hand."""

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.media.spans import Spans, until_last
from srt.wire.media import MediaItem, MediaSpan
from tests.running.late import late
from tests.running.profiles import seeds

if TYPE_CHECKING:
    import torch
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
    from transformers.models.qwen3_vl import modeling_qwen3_vl
else:
    modeling_qwen2_5_vl = late("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    modeling_qwen3_vl = late("transformers.models.qwen3_vl.modeling_qwen3_vl")
    torch = late("torch")


MERGE = 2
TOKENS_PER_SECOND = 4
IMAGE, VIDEO = 1, 2


def item_of(grid: tuple[int, int, int], time_step: float = 0.0) -> MediaItem:
    """An item with this grid of embeddings."""
    kind = "image" if grid[0] == 1 else "video"
    length = grid[0] * grid[1] * grid[2]
    return MediaItem(b"", kind, length, (1, 1, 1, 3), grid=grid, time_step=time_step)


def test_written_out() -> None:
    """Two tokens, a picture of 2 by 3, a token, a video of two frames, and outputs."""
    spans = [
        MediaSpan(2, item_of((1, 2, 3))),
        MediaSpan(9, item_of((2, 1, 2), time_step=5.5)),
    ]
    ours = Spans(spans, has_grid=True).grid_positions(0, 15)
    assert ours.dtype == np.int32
    assert ours.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 11, 11, 12, 13],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 6, 6, 12, 13],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 6, 7, 12, 13],
    ]


def test_of_text() -> None:
    positions, shift = until_last([])
    assert positions.shape == (3, 0) and shift == 0


@pytest.mark.parametrize("seed", seeds(2))
def test_any_part_is_that_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    spans, _, length = _layout(rng, is_split=False)
    ours = Spans(spans, has_grid=True)
    whole = ours.grid_positions(0, length + 9)
    for _ in range(30):
        start = rng.randrange(length + 9)
        stop = rng.randrange(start, length + 9)
        assert np.array_equal(ours.grid_positions(start, stop), whole[:, start:stop])


@pytest.mark.parametrize("is_split", [False, True], ids=["qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize("seed", seeds(4))
def test_equal_to_transformers(seed: int, is_split: bool) -> None:
    """Pictures, and videos: whole ones with a step in time, or one item per temporal patch."""
    rng = random.Random(seed)
    spans, inputs, length = _layout(rng, is_split)
    model: Any = modeling_qwen3_vl.Qwen3VLModel if is_split else modeling_qwen2_5_vl.Qwen2_5_VLModel
    vision = SimpleNamespace(spatial_merge_size=MERGE, tokens_per_second=TOKENS_PER_SECOND)
    fake = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = model.get_vision_position_ids.__get__(fake)
    theirs, shift = model.get_rope_index(fake, torch.zeros((1, length), dtype=torch.long), **inputs)
    ours, our_shift = until_last(spans)
    stop = ours.shape[1]
    assert np.array_equal(ours, theirs[:, 0, :stop].numpy())
    assert our_shift == int(shift) or stop < length
    whole = Spans(spans, has_grid=True).grid_positions(0, length + 3)
    assert np.array_equal(whole[:, :length], theirs[:, 0].numpy())
    assert (whole[:, length:] == np.arange(length, length + 3) + int(shift)).all()


def _layout(rng: random.Random, is_split: bool) -> tuple[list[MediaSpan], dict[str, Any], int]:
    """Random spans between random texts, what transformers is told of them, and their length.

    A video is not longer than it is high or wide, in positions: transformers 5.3 and later goes on
    behind it as if it had one frame, and counts outputs from its last frame all the same; earlier
    ones and the paper go on behind its last frame.
    """
    spans: list[MediaSpan] = []
    types: list[int] = [0] * rng.randrange(1, 6)
    grids: dict[int, list[tuple[int, int, int]]] = {IMAGE: [], VIDEO: []}
    seconds = []
    for _ in range(rng.randrange(1, 5)):
        rows, columns = rng.randrange(1, 7), rng.randrange(1, 7)
        kind, frames, step = rng.choice([IMAGE, VIDEO]), 1, 0.0
        if kind == VIDEO:
            frames = rng.randrange(1, 5)
            second = rng.choice([0.1, 0.3, 1 / 3, 0.5, 1.0])
            if not is_split:
                second = min(second, (max(rows, columns) - 1) / (TOKENS_PER_SECOND * frames))
                seconds.append(second)
                step = TOKENS_PER_SECOND * second
        grids[kind].append((frames, rows * MERGE, columns * MERGE))
        for part in [1] * frames if is_split else [frames]:
            grid = (part, rows, columns)
            # A step of 0 stands for 1.
            if part > 1 and step == 0.0:
                step = 1e-6
            spans.append(MediaSpan(len(types), item_of(grid, step)))
            types += [kind] * spans[-1].item.length + [0] * rng.randrange(1, 6)
    inputs: dict[str, Any] = {"mm_token_type_ids": torch.tensor([types], dtype=torch.int)}
    if grids[IMAGE]:
        inputs["image_grid_thw"] = torch.tensor(grids[IMAGE])
    if grids[VIDEO]:
        inputs["video_grid_thw"] = torch.tensor(grids[VIDEO])
    if seconds:
        inputs["second_per_grid_ts"] = torch.tensor(seconds)
    return spans, inputs, len(types)
