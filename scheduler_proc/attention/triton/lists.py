"""What a step's items attend to: runs of query tokens over lists of slots, with or without shared
prefixes taken out."""

from typing import NamedTuple

import numpy as np

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.attention.cascade import Cascade


class Level(NamedTuple):
    """Runs of query tokens, each over one list of slots: integer arrays of one length.

    A run's tokens are consecutive in the order of its Lists. Its token i sees the entries of its
    list up to and with positions + i, as far as there are any.
    """

    first_tokens: np.ndarray
    num_tokens: np.ndarray
    list_starts: np.ndarray  # in kv_indices
    list_lens: np.ndarray
    positions: np.ndarray


class Lists(NamedTuple):
    """The lists of a batch. Every token is in one run of the last level, and in at most one of each
    other; the runs of a level are within those of the level before."""

    levels: tuple[Level, ...]
    kv_indices: np.ndarray
    num_tokens: int
    order: np.ndarray | None = None  # [T] the batch's tokens as runs have them; None: as they are
    # [T] in that order: what of the last level's lists each token sees beyond its own slot
    visible_until: np.ndarray | None = None

    @property
    def visible_until_of_tokens(self) -> np.ndarray | None:
        """The same in the batch's order."""
        if self.order is None or self.visible_until is None:
            return self.visible_until
        until = np.empty_like(self.visible_until)
        until[self.order] = self.visible_until
        return until


def flat_lists(rows: RaggedRows) -> Lists:
    """Each row over all its slots."""
    level = _rows_level(rows, 0)
    num_tokens = int(rows.qo_indptr[-1])
    return Lists((level,), rows.kv_indices, num_tokens, None, rows.visible_until)


def cascade_lists(cascade: Cascade) -> Lists:
    """Each group over its prefix, level by level, and each row over what is left of its slots."""
    levels, start = [], 0
    for groups in cascade.levels:
        with_slots = groups.seq_lens > 0
        lens = groups.seq_lens[with_slots]
        levels.append(
            Level(
                groups.qo_indptr[:-1][with_slots],
                groups.extend_lens[with_slots],
                groups.kv_indptr[:-1][with_slots] + start,
                lens,
                lens,  # all is visible to the first token already
            )
        )
        start += len(groups.kv_indices)
    rest = cascade.rest
    levels.append(_rows_level(rest, start))
    indices = np.concatenate([*(groups.kv_indices for groups in cascade.levels), rest.kv_indices])
    num_tokens = int(rest.qo_indptr[-1])
    return Lists(tuple(levels), indices, num_tokens, cascade.tokens, rest.visible_until)


def _rows_level(rows: RaggedRows, start: int) -> Level:
    """The rows, whose slots begin at `start` in kv_indices."""
    lens, seq_lens = rows.extend_lens, rows.seq_lens
    starts = rows.kv_indptr[:-1] + start
    return Level(rows.qo_indptr[:-1], lens, starts, seq_lens, seq_lens - lens)
