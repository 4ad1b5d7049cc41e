"""Rotary positions of three parts: time, row and column.

All parts of a text's token are the same number, one more than the token's before. An item's tokens
count from the number that a text's token would have there, by their place in its grid; what follows
goes on after the largest of theirs. Source: "Qwen2-VL: Enhancing Vision-Language Model's Perception
of the World at Any Resolution", arXiv 2409.12191, section 2.1; with `time_step` as Qwen2.5-VL.
"""

from collections.abc import Sequence

import numpy as np

from srt.wire.media import MediaItem, MediaSpan


def until_last(spans: Sequence[MediaSpan]) -> tuple[np.ndarray, int]:
    """The positions of all tokens up to the end of the last span, int32 [3, n], and what is added
    to the number of a later token."""
    parts, at, following = [], 0, 0
    for span in spans:
        text = np.arange(following, following + span.start - at)
        parts.append(np.broadcast_to(text, (3, len(text))))
        following += len(text)
        shown = _in_grid(span.item) + following
        parts.append(shown)
        following, at = int(shown.max()) + 1, span.stop
    if not parts:
        return np.empty((3, 0), np.int32), 0
    return np.concatenate(parts, axis=1).astype(np.int32), following - at


def _in_grid(item: MediaItem) -> np.ndarray:
    """The places of an item's tokens, [3, length]."""
    frames, rows, columns = item.grid
    step = np.float32(item.time_step or 1.0)  # float32, as in transformers: it is rounded down
    times = (np.arange(frames, dtype=np.float32) * step).astype(np.int64)
    axes = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack([axis.ravel() for axis in axes])
