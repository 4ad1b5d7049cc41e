"""The embeddings of media that an executor holds, and what a step takes of them.

Each executor that sees media has one, in the arrays that it computes with: numpy's or torch's. It
forgets nothing by itself: the scheduler core bounds it (see MediaExecutor).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from scheduler_proc.batch import Embeds
from scheduler_proc.executor.slices import Slices
from srt.wire.media import MediaItem

Part = TypeVar("Part")
Rows = TypeVar("Rows", bound=Any)  # a float array of two dimensions, numpy's or torch's


class MediaStore(Generic[Part, Rows]):
    """Items by digest. `num_parts` says of how many parts an item is made, `encode` makes one of
    its pixels, and `join` makes all of them embeddings, [item.length, hidden]. With `slices`, a
    part may be encoded in several calls."""

    def __init__(
        self,
        hidden: int,
        num_parts: Callable[[MediaItem], int],
        encode: Callable[[MediaItem, np.ndarray, int], Part],
        join: Callable[[MediaItem, Sequence[Part]], Rows],
        slices: Slices | None = None,
    ) -> None:
        self.hidden = hidden
        self.num_parts = num_parts
        self._encode = encode
        self._join = join
        self._slices = slices
        self._begun: dict[bytes, list[Part]] = {}
        self._ready: dict[bytes, Rows] = {}

    def __len__(self) -> int:
        """How many items are encoded."""
        return len(self._ready)

    def encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = math.inf
    ) -> bool:
        """See MediaExecutor.encode. Raises ValueError for pixels that are not the item's, a part
        that is not its next one, and embeddings that are not finite numbers: in a batch, these
        would be its other requests' neighbours."""
        work = partial(self._encode_part, item, pixels, part)
        if self._slices is not None:
            return self._slices.run((item.digest, part), work, seconds)
        work()
        return True

    def _encode_part(self, item: MediaItem, pixels: np.ndarray, part: int) -> None:
        if pixels.dtype != np.uint8 or pixels.shape != item.shape:
            raise ValueError(f"pixels {pixels.dtype}{pixels.shape}, not uint8{item.shape}")
        if part == 0:
            self._forget(item.digest)
        parts = self._begun.pop(item.digest, [])
        if part != len(parts):
            raise ValueError(f"part {part} of an item of which {len(parts)} are encoded")
        parts.append(self._encode(item, pixels, part))
        if len(parts) < self.num_parts(item):
            self._begun[item.digest] = parts
            return
        self._ready[item.digest] = self._checked(item, self._join(item, parts))

    def drop(self, digest: bytes) -> None:
        """Forget an item, encoded or not, if it is there."""
        slices = self._slices
        if slices is not None and slices.paused is not None and slices.paused[0] == digest:
            slices.drop()
        self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        self._begun.pop(digest, None)
        self._ready.pop(digest, None)

    def rows(self, embeds: Embeds) -> list[Rows]:
        """What the runs of tokens take, each [its length, hidden]. Raises ValueError for an item
        that is not encoded, and for rows that it does not have."""
        found = []
        for start, length, digest in zip(
            embeds.offsets.tolist(), embeds.lengths.tolist(), embeds.digests, strict=True
        ):
            rows = self._ready.get(digest)
            if rows is None:
                raise ValueError(f"item {digest.hex()[:16]} is not encoded")
            if not 0 <= start < start + length <= len(rows):
                raise ValueError(f"rows {start} to {start + length} of {len(rows)} embeddings")
            found.append(rows[start : start + length])
        return found

    def _checked(self, item: MediaItem, rows: Rows) -> Rows:
        if tuple(rows.shape) != (item.length, self.hidden):
            raise ValueError(f"embeddings {[*rows.shape]}, not {[item.length, self.hidden]}")
        if not math.isfinite(float(abs(rows).max())):
            raise ValueError("the embeddings are not finite numbers")
        return rows


class MediaHolder:
    """Of a MediaExecutor, what it has a MediaStore for; None if the model sees nothing."""

    _media: MediaStore[Any, Any] | None

    def num_parts(self, item: MediaItem) -> int:
        """See MediaExecutor."""
        return self._store.num_parts(item)

    def encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = math.inf
    ) -> bool:
        """See MediaExecutor."""
        return self._store.encode(item, pixels, part, seconds)

    def drop_media(self, digest: bytes) -> None:
        """See MediaExecutor."""
        self._store.drop(digest)

    @property
    def _store(self) -> MediaStore[Any, Any]:
        if self._media is None:
            raise ValueError("the model sees no media")
        return self._media


def tokens_of(embeds: Embeds, num_tokens: int) -> np.ndarray:
    """The tokens of all runs, int32, ascending. Raises ValueError for runs that overlap or are not
    among the batch's tokens."""
    starts, stops = embeds.at, embeds.at + embeds.lengths
    follows = np.append(starts[1:], num_tokens)
    if starts.min(initial=0) < 0 or (embeds.lengths < 1).any() or (stops > follows).any():
        raise ValueError(f"embeds: runs at {starts.tolist()} of {embeds.lengths.tolist()} tokens")
    before = np.cumsum(embeds.lengths) - embeds.lengths
    tokens = np.arange(embeds.lengths.sum()) + np.repeat(starts - before, embeds.lengths)
    found: np.ndarray = tokens.astype(np.int32)
    return found
