"""Where media stand among a req's tokens, and the rotary positions of three parts that they have.

Inside a span every token is the model's placeholder id. So a token alone does not say what a span
shows: where one begins, the item's digest stands for all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from srt.wire.media import MediaItem, MediaSpan


class MediaFacts(NamedTuple):
    """What planning must know of a model that sees media, as its executor gives it."""

    embedding_bytes: int  # that one token's embedding takes in the executor
    sees_both_ways: bool  # the tokens of an item see each other: they are planned in one step
    has_grid_positions: bool  # rotary positions have three parts
    in_slices: bool = False  # a part may be encoded a slice at a time


EdgeKey = int | bytes  # what follows a prefix: a token, or the digest of the item that begins


class Spans:
    """The spans of one req, in their order; none of them overlap. Without any it is false. If they
    `are_whole`, all tokens of one are computed in the same step; if they have a grid, positions
    have three parts."""

    __slots__ = ("_grid", "_shift", "_starts", "are_whole", "has_grid", "spans")

    def __init__(
        self, spans: Sequence[MediaSpan] = (), are_whole: bool = False, has_grid: bool = False
    ) -> None:
        self.spans = tuple(spans)
        self.are_whole, self.has_grid = are_whole, has_grid
        if has_grid:
            self._grid, self._shift = until_last(self.spans)
        self._starts = [span.start for span in spans]

    def __len__(self) -> int:
        return len(self.spans)

    def key(self, tokens: np.ndarray, at: int) -> EdgeKey:
        """What stands at position `at` of these tokens."""
        if self._starts:
            number = bisect_left(self._starts, at)
            if number < len(self._starts) and self._starts[number] == at:
                return self.spans[number].item.digest
        return int(tokens[at])

    def begins(self, at: int) -> bool:
        """Whether a span begins at `at`."""
        return bool(self._starts) and self.next_start(at - 1) == at

    def next_start(self, at: int) -> int | None:
        """Where the first span after position `at` begins; None if there is none."""
        number = bisect_right(self._starts, at)
        return self._starts[number] if number < len(self._starts) else None

    def around(self, at: int) -> MediaSpan | None:
        """The span that `at` cuts in two."""
        number = bisect_left(self._starts, at) - 1
        if number >= 0 and self.spans[number].stop > at:
            return self.spans[number]
        return None

    def grid_positions(self, start: int, stop: int) -> np.ndarray:
        """The positions of the tokens [start, stop) in time, rows and columns, int32 [3, n]."""
        known = self._grid[:, start:stop]
        first = max(start, self._grid.shape[1])
        rest = np.arange(first, max(first, stop), dtype=np.int32) + self._shift
        return np.concatenate((known, np.broadcast_to(rest, (3, len(rest)))), axis=1)

    def usable(self, length: int) -> int:
        """How many of the first `length` tokens may be computed when those after them are not."""
        span = self.around(length) if self.are_whole else None
        return length if span is None else span.start

    def within(self, start: int, stop: int) -> Sequence[MediaSpan]:
        """Those with tokens at positions [start, stop)."""
        first = bisect_right(self._starts, start)
        if first > 0 and self.spans[first - 1].stop > start:
            first -= 1
        return self.spans[first : bisect_left(self._starts, stop)]

    def alike(self, other: "Spans", stop: int) -> bool:
        """Whether both show the same before position `stop`."""
        ours, theirs = self._named_before(stop), other._named_before(stop)
        return ours == theirs

    def _named_before(self, stop: int) -> list[tuple[int, bytes]]:
        return [(span.start, span.item.digest) for span in self.spans if span.start < stop]

    def cuts(self, start: int, stop: int) -> list[int]:
        """Where spans begin after position `start` and before `stop`."""
        return self._starts[bisect_right(self._starts, start) : bisect_left(self._starts, stop)]


NO_SPANS = Spans()


def spans_of(spans: Sequence[MediaSpan], facts: MediaFacts | None) -> Spans:
    """Those of a req of a model of which these facts hold."""
    if not spans or facts is None:
        return Spans(spans) if spans else NO_SPANS
    return Spans(spans, facts.sees_both_ways, facts.has_grid_positions)


def until_last(spans: Sequence[MediaSpan]) -> tuple[np.ndarray, int]:
    """The rotary positions (time, row, column) of all tokens up to the end of the last span, int32
    [3, n], and what is added to the number of a later token.

    All parts of a text's token are the same number, one more than the token's before. An item's
    tokens count from the number that a text's token would have there, by their place in its grid;
    what follows goes on after the largest of theirs. Source: "Qwen2-VL: Enhancing Vision-Language
    Model's Perception of the World at Any Resolution", arXiv 2409.12191, section 2.1; with
    `time_step` as Qwen2.5-VL.
    """
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
