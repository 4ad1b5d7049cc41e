"""Cuts a batch's attention into items for the kernels; pure numpy, once per step and layout.

An item is a block of query tokens over a range of one list of slots. Items of few query rows go to
the small tile, the others to the large one. Where there are too few items to fill the GPU, their
ranges are split; where rows share a prefix, the prefix is a list of its own for all their tokens.
Either way a token may get its output in parts, which the merge kernel combines. A token's parts are
consecutive: those of the longest shared prefix first, its own last.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_proc.attention.triton.lists import Level, Lists

# How finely work is cut: estimates, not measured. A small item streams K and V; three fit on an SM
# at a time, and two rounds of them even out their lengths. Shorter ranges than the least would
# spend their time on starting and on parts.
_SMALL_PER_SM = 6
_LARGE_PER_SM = 1
_LEAST_SMALL = 128
_LEAST_LARGE = 512
# Deterministic cuts: ranges of at least this many slots, at most this many for each block.
_FIXED_LEAST = 256
_FIXED_MOST = 16


class Cut(NamedTuple):
    """What of a kind of layer, and of the device, decides how work is cut."""

    group: int  # query heads per kv head
    kv_heads: int
    small_rows: int  # of the tiles: tokens times group
    large_rows: int
    block_n: int
    window: int | None
    num_sms: int
    fixed: bool  # splits follow from each row alone

    @property
    def max_small_splits(self) -> int:
        """How many items a balanced cut may make beyond one for each block."""
        return -(-self.num_sms * _SMALL_PER_SM // self.kv_heads)

    def max_items(self, num_rows: int) -> int:
        """The most items that rows of one token are cut into."""
        return num_rows * _FIXED_MOST if self.fixed else num_rows + self.max_small_splits


class Work(NamedTuple):
    """Everything int32; the fields of items and merges as the kernels say."""

    small: np.ndarray  # [items, 8]
    large: np.ndarray  # [items, 8]
    part_starts: np.ndarray  # [T]: the first part of each token that has parts
    merges: np.ndarray  # [tokens in parts, 4]
    num_parts: int


class _Blocks(NamedTuple):
    """Blocks of tokens that one program can take, in the order of their tokens."""

    runs: np.ndarray  # which run of the level each is of
    first_tokens: np.ndarray
    num_tokens: np.ndarray
    list_starts: np.ndarray
    begins: np.ndarray  # the entries of the list that its tokens see: [begins, ends)
    ends: np.ndarray
    positions: np.ndarray
    small: np.ndarray  # bool


def cut(lists: Lists, how: Cut) -> Work:
    """The work of a batch for the kinds of layers that are cut like this."""
    order = lists.order
    untils = [None] * (len(lists.levels) - 1) + [lists.visible_until]
    blocks = [_blocks(*pair, how) for pair in zip(lists.levels, untils, strict=True)]
    joined = _Blocks(*(np.concatenate(column) for column in zip(*blocks, strict=True)))
    lens = joined.ends - joined.begins
    splits = np.where(
        joined.small,
        _num_splits(lens, joined.small, joined.runs, how, large=False),
        _num_splits(lens, ~joined.small, joined.runs, how, large=True),
    )
    lengths = -(-lens // splits)
    steps = -(-lengths // how.block_n) * how.block_n
    splits = -(-lens // steps)
    before, counts = _parts(blocks, splits, lists)
    in_parts = np.flatnonzero(counts > 1)
    starts = np.zeros(lists.num_tokens, np.int32)
    starts[in_parts] = np.cumsum(counts[in_parts]) - counts[in_parts]
    first = joined.first_tokens if order is None else order[joined.first_tokens]
    whole = counts[first] == 1
    merges = np.zeros((len(in_parts), 4), np.int32)
    merges[:, 0], merges[:, 1], merges[:, 2] = in_parts, starts[in_parts], counts[in_parts]
    small, large = (
        _items(joined, chosen, splits, steps, np.where(whole, -1, before))
        for chosen in (joined.small, ~joined.small)
    )
    return Work(small, large, starts, merges, int(counts[in_parts].sum()))


def _blocks(level: Level, visible_until: np.ndarray | None, how: Cut) -> _Blocks:
    small = level.num_tokens * how.group <= how.small_rows
    per_block = np.where(small, how.small_rows // how.group, how.large_rows // how.group)
    per_run = -(-level.num_tokens // per_block)
    runs = np.repeat(np.arange(len(per_run)), per_run)
    nth = np.arange(len(runs)) - np.repeat(np.cumsum(per_run) - per_run, per_run)
    offset = nth * per_block[runs]
    first_tokens = level.first_tokens[runs] + offset
    num_tokens = np.minimum(per_block[runs], level.num_tokens[runs] - offset)
    positions = level.positions[runs] + offset
    ends = positions + num_tokens
    if visible_until is not None:
        ends = np.maximum(ends, np.maximum.reduceat(visible_until, first_tokens))
    ends = np.minimum(ends, level.list_lens[runs])
    begins = np.zeros_like(ends)
    if how.window is not None:
        begins = np.maximum(positions - how.window + 1, 0)
    starts = level.list_starts[runs]
    return _Blocks(runs, first_tokens, num_tokens, starts, begins, ends, positions, small[runs])


def _num_splits(
    lens: np.ndarray, chosen: np.ndarray, runs: np.ndarray, how: Cut, *, large: bool
) -> np.ndarray:
    """Into how many ranges each block's `lens` entries are split, where it is `chosen`."""
    if how.fixed:
        # Many blocks of one run fill the GPU without splits.
        most = np.maximum(1, _FIXED_MOST // np.bincount(runs)[runs]) if large else _FIXED_MOST
        fixed: np.ndarray = np.clip(-(-lens // _FIXED_LEAST), 1, most)
        return fixed
    num_items, total = int(chosen.sum()), int(lens[chosen].sum())
    wanted = how.max_small_splits
    least = _LEAST_SMALL
    if large:
        wanted, least = -(-how.num_sms * _LARGE_PER_SM // how.kv_heads), _LEAST_LARGE
        if num_items >= wanted:
            return np.ones_like(lens)
    splits: np.ndarray = -(-lens // max(least, -(-total // wanted)))
    return splits


def _parts(
    blocks: Sequence[_Blocks], splits: np.ndarray, lists: Lists
) -> tuple[np.ndarray, np.ndarray]:
    """The number of each block's first part, and how many parts each token of the batch has."""
    if len(blocks) == 1:
        return np.zeros_like(splits), np.repeat(splits, blocks[0].num_tokens)
    before = np.zeros_like(splits)
    counts = np.zeros(lists.num_tokens, splits.dtype)
    at = 0
    for level in blocks:
        here = slice(at, at + len(level.runs))
        at = here.stop
        sizes = level.num_tokens
        tokens = np.repeat(level.first_tokens - (np.cumsum(sizes) - sizes), sizes)
        tokens += np.arange(len(tokens))
        if lists.order is not None:
            tokens = lists.order[tokens]
        # All blocks of a run are split alike where its tokens go on to another level, so those of
        # the runs within it have the same number of parts before.
        before[here] = counts[tokens[np.cumsum(sizes) - sizes]]
        counts[tokens] += np.repeat(splits[here], sizes)
    return before, counts


def _items(
    blocks: _Blocks, chosen: np.ndarray, splits: np.ndarray, steps: np.ndarray, parts: np.ndarray
) -> np.ndarray:
    """The items of the chosen blocks, those of the longest ranges first."""
    numbers = np.flatnonzero(chosen)
    counts = splits[numbers]
    numbers = np.repeat(numbers, counts)
    nth = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = blocks.begins[numbers] + nth * steps[numbers]
    ends = np.minimum(begins + steps[numbers], blocks.ends[numbers])
    items = np.zeros((len(numbers), 8), np.int32)
    items[:, 0] = blocks.first_tokens[numbers]
    items[:, 1] = blocks.num_tokens[numbers]
    items[:, 2] = blocks.list_starts[numbers]
    items[:, 3], items[:, 4] = begins, ends
    items[:, 5] = blocks.positions[numbers]
    items[:, 6] = np.where(parts[numbers] < 0, -1, parts[numbers] + nth)
    return items[np.argsort(begins - ends, kind="stable")]
