"""What a step's arrays say of media: which tokens take embeddings, where they stand in a grid, and
what they see. Called when rows are laid out, joined or taken apart; all is None in a step of text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import Embeds, ForwardBatch
from scheduler_proc.core.steps.step import Row
from scheduler_proc.media.spans import NO_SPANS

_Run = tuple[int, int, int, bytes]  # of embeddings: see the fields of Embeds


class MediaArrays(NamedTuple):
    """The fields of the same names of a ForwardBatch."""

    embeds: Embeds | None = None
    grid_positions: np.ndarray | None = None
    visible_until: np.ndarray | None = None


NO_MEDIA = MediaArrays()


def media_arrays(rows: Sequence[Row], qo_indptr: np.ndarray, positions: np.ndarray) -> MediaArrays:
    """Of these rows, whose tokens have these positions in their sequences."""
    showing = [number for number, row in enumerate(rows) if row.req.spans is not NO_SPANS]
    if not showing:
        return NO_MEDIA
    runs: list[_Run] = []
    until, grid = np.zeros(len(positions), np.int32), np.tile(positions, (3, 1))
    sees_both_ways = has_grid = False
    for number in showing:
        row = rows[number]
        first, spans, stop = int(qo_indptr[number]), row.req.spans, row.start + row.extend_len
        for span in spans.within(row.start, stop):
            begin, end = max(span.start, row.start), min(span.stop, stop)
            at = first + begin - row.start
            runs.append((at, end - begin, begin - span.start, span.item.digest))
            if spans.are_whole:
                sees_both_ways = True
                until[at : at + end - begin] = span.stop
        if spans.has_grid:
            has_grid = True
            grid[:, first : first + row.extend_len] = spans.grid_positions(row.start, stop)
    return MediaArrays(_embeds(runs), grid if has_grid else None, until if sees_both_ways else None)


def joined_media(a: ForwardBatch, b: ForwardBatch) -> MediaArrays:
    """Of both batches' tokens, one after the other."""
    grid = until = None
    if a.grid_positions is not None or b.grid_positions is not None:
        grid = np.concatenate((_grid_of(a), _grid_of(b)), axis=1)
    if a.visible_until is not None or b.visible_until is not None:
        until = np.concatenate((_until_of(a), _until_of(b)))
    return MediaArrays(_embeds(_runs_of(a, 0) + _runs_of(b, a.num_tokens)), grid, until)


def media_of(batch: ForwardBatch, tokens: np.ndarray) -> MediaArrays:
    """Of those tokens of a batch (ascending, whole rows)."""
    kept = set(tokens.tolist())
    runs = [
        (int(np.searchsorted(tokens, at)), length, offset, digest)
        for at, length, offset, digest in _runs_of(batch, 0)
        if at in kept
    ]
    grid, until = batch.grid_positions, batch.visible_until
    return MediaArrays(
        _embeds(runs),
        None if grid is None else grid[:, tokens],
        None if until is None or not runs else until[tokens],
    )


def _embeds(runs: list[_Run]) -> Embeds | None:
    if not runs:
        return None
    numbers = np.array([run[:3] for run in runs], np.int32).T
    return Embeds(numbers[0], numbers[1], numbers[2], [run[3] for run in runs])


def _runs_of(batch: ForwardBatch, shift: int) -> list[_Run]:
    """Each run of embeddings, with its first token counted from `shift` on."""
    if batch.embeds is None:
        return []
    at, lengths, offsets, digests = batch.embeds
    columns = (at + shift).tolist(), lengths.tolist(), offsets.tolist(), digests
    return list(zip(*columns, strict=True))


def _grid_of(batch: ForwardBatch) -> np.ndarray:
    if batch.grid_positions is not None:
        return batch.grid_positions
    return np.tile(batch.positions, (3, 1))


def _until_of(batch: ForwardBatch) -> np.ndarray:
    if batch.visible_until is not None:
        return batch.visible_until
    return np.zeros(batch.num_tokens, np.int32)
