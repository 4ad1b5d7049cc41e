"""Which rows of a step share the beginnings of their slots, and when to read these once for all.

A shared prefix of the radix tree gets the same slots in every row that uses it, at every depth of
the tree. A cascade reads such a run of slots once for a group of rows, level by level, and what is
left of each row in a last level; the partial results are merged by their log-sum-exps. Groups are
found in the slots themselves, as the native engine finds them (kernels/src/attention_plan.cpp), so
nothing rests on the tree. The cascades of "Cascade Inference" (FlashInfer, 2024) have two levels
and one group; here there are any number, chosen by a cost model.

Layers with a window do not take part: their kinds run the step's rows as they are. Sinks are one
entry of a softmax, so only the last level counts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.attention.base import LayerKind, RaggedRows
from scheduler_proc.ragged import entries_of, indptr_of, slices_of

_FIRST_COMPARED = 64  # slots: most rows that part at all do so early, after a common first token
_MAX_DEPTH = 16  # of runs inside runs that are looked for: bounds the search


class Cascade(NamedTuple):
    """The layout of a step by levels; every token attends to its group's slots on each level.

    Groups are consecutive in an order of the rows of their own, in which all levels are laid out.
    Where rows have no group on a level, a group without slots stands for them: its tokens' result
    there has the log-sum-exp -inf and takes no weight.
    """

    order: np.ndarray  # [R] the batch's rows in the levels' order
    tokens: np.ndarray | None  # [T] the batch's tokens in that order; None: as in the batch
    levels: tuple[RaggedRows, ...]  # a "row" is a group; not causal: all its tokens see its slots
    rest: RaggedRows  # the rows in `order`, without the slots of `levels`; causal
    saved_s: float  # what a layer saves by it, as the costs have it


@dataclass(frozen=True)
class DeviceCosts:
    """What a GPU needs, in seconds. What reading costs is measured on an H200 by
    `bench.gpu_report`; the others are estimates from the ceilings of an H100."""

    byte_s: float = 1 / 12e12  # to read a byte of K or V that other rows read too: mostly from L2
    state_byte_s: float = 4 / 3.0e12  # a byte of a partial result: written, read, merged, written
    level_s: float = 10e-6  # to launch one more attention and merge in a layer
    tile_rows: int = 128  # query rows (tokens times heads of a group) that share one read


H100 = DeviceCosts()


@dataclass(frozen=True)
class CascadeCosts:
    """Seconds in one layer. A row reads its slots once per tile of its tokens, and so does a group;
    every token of a group pays for one more partial result."""

    slot_s: float  # to read one slot
    state_s: float  # one token's partial result
    level_s: float
    tile_tokens: int
    max_levels: int = 3  # the last level not counted

    @classmethod
    def of(
        cls, kind: LayerKind, q_bytes: int, kv_bytes: int, device: DeviceCosts = H100
    ) -> "CascadeCosts":
        """Those of layers of a kind, with numbers of these sizes in queries and in the pool."""
        slot_bytes = kind.kv_heads * (kind.head_dim + kind.value_dim) * kv_bytes
        state_bytes = kind.heads * (kind.value_dim * q_bytes + 4)  # and a float32 log-sum-exp
        return cls(
            slot_s=slot_bytes * device.byte_s,
            state_s=state_bytes * device.state_byte_s,
            level_s=device.level_s,
            tile_tokens=max(1, device.tile_rows * kind.kv_heads // kind.heads),
        )

    def tiles(self, tokens: Any) -> Any:
        """How often that many tokens (a number or an array) read their slots."""
        return -(-tokens // self.tile_tokens)


@dataclass(slots=True)
class _Run:
    """The first `end` slots of `rows`, which no other row begins with. The runs in `inside` are
    longer ones of some of these rows, all different."""

    rows: np.ndarray  # [at least 2], ascending
    end: int
    inside: list["_Run"] = field(default_factory=list)


class _Group(NamedTuple):
    """Slots [begin, end) of `rows`, which are read once, on a level."""

    level: int
    rows: np.ndarray
    begin: int
    end: int


def takes_part(kind: LayerKind) -> bool:
    """Whether layers of this kind can run a cascade."""
    return kind.window is None


def find_cascade(rows: RaggedRows, costs: CascadeCosts) -> Cascade | None:
    """The cascade that saves most by `costs`, or None if none saves anything."""
    runs = _shared_runs(rows)
    if not runs:
        return None
    search = _Search(rows.extend_lens, costs)
    saved_s, best = 0.0, 0
    for levels in range(1, 1 + min(costs.max_levels, _depth(runs))):
        saved = search.saved(runs, 0, levels) - levels * costs.level_s
        if saved > saved_s:
            saved_s, best = saved, levels
    return _laid_out(rows, search.groups(runs, best), saved_s) if best else None


def _shared_runs(rows: RaggedRows) -> list[_Run]:
    """The runs that at least two rows share from their beginnings, as a forest. What a row adds in
    this step belongs to no run."""
    first, slots = rows.kv_indptr[:-1], rows.kv_indices
    limits = rows.seq_lens - rows.extend_lens
    prefixes = [slots[f : f + n] for f, n in zip(first.tolist(), limits.tolist(), strict=True)]
    forest: list[_Run] = []
    waiting = [(forest, np.arange(rows.num_rows), 0, 0)]  # rows that share all before a position
    while waiting:
        runs, members, at, depth = waiting.pop()
        members = members[limits[members] > at]
        if len(members) < 2 or depth >= _MAX_DEPTH:
            continue
        for alike in _alike(members, slots[first[members] + at]):
            # The runs along the first row's slots: rows leave it where they have no more in common.
            one, inside, level = prefixes[alike[0]], runs, depth
            ends = np.array([_common(one, prefixes[row], at + 1) for row in alike.tolist()])
            while len(alike) > 1 and level < _MAX_DEPTH:
                end = int(ends.min())
                run = _Run(alike, end)
                inside.append(run)
                inside, level = run.inside, level + 1
                stay = ends > end
                waiting.append((inside, alike[~stay], end, level))
                alike, ends = alike[stay], ends[stay]
    return forest


def _alike(members: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
    """The members that have the same slot, where there are several of them."""
    if (slots == slots[0]).all():
        return [members]
    order = slots.argsort(kind="stable")
    cuts = np.flatnonzero(np.diff(slots[order])) + 1
    bounds = [0, *cuts.tolist(), len(members)]
    members = members[order]
    return [members[a:b] for a, b in pairwise(bounds) if b - a > 1]


def _common(one: np.ndarray, other: np.ndarray, at: int) -> int:
    """The first position from `at` on where they differ, or the length of the shorter."""
    if one is other:
        return len(one)
    shorter, step = min(len(one), len(other)), _FIRST_COMPARED
    while at < shorter:
        stop = min(at + step, shorter)
        differs = one[at:stop] != other[at:stop]
        where = int(differs.argmax())
        if differs[where]:
            return at + where
        at, step = stop, shorter
    return shorter


def _depth(runs: Sequence[_Run]) -> int:
    return max((1 + _depth(run.inside) for run in runs), default=0)


class _Search:
    """Which runs to make groups of: the best choice for a number of levels, by dynamic programming.

    A run that is no group leaves its slots to the groups inside it, so what a group reads begins
    where the group around it ends.
    """

    def __init__(self, tokens: np.ndarray, costs: CascadeCosts) -> None:
        self._tokens, self._tiles, self._costs = tokens, costs.tiles(tokens), costs
        self._weights: dict[int, tuple[float, float]] = {}
        self._known: dict[tuple[int, int, int], tuple[float, bool]] = {}

    def saved(self, runs: Sequence[_Run], begin: int, levels: int) -> float:
        """Seconds that groups on at most this many levels save, when others read all slots before
        `begin`; launches not counted."""
        return sum(self._best(run, begin, levels)[0] for run in runs) if levels else 0.0

    def groups(self, runs: Sequence[_Run], levels: int) -> list[_Group]:
        """The groups of the best choice."""
        chosen = []
        waiting = [(run, 0, 0) for run in runs]
        while waiting:
            run, begin, level = waiting.pop()
            if level == levels:
                continue
            if self._best(run, begin, levels - level)[1]:
                chosen.append(_Group(level, run.rows, begin, run.end))
                begin, level = run.end, level + 1
            waiting += [(inner, begin, level) for inner in run.inside]
        return chosen

    def _best(self, run: _Run, begin: int, levels: int) -> tuple[float, bool]:
        """What a run and those inside it can save, and whether the run itself is to be a group."""
        key = (id(run), begin, levels)
        known = self._known.get(key)
        if known is None:
            slot_s, state_s = self._weigh(run)
            own = slot_s * (run.end - begin) - state_s
            without = self.saved(run.inside, begin, levels)
            within = own + self.saved(run.inside, run.end, levels - 1) if own > 0 else 0.0
            known = self._known[key] = (max(within, without), within > without)
        return known

    def _weigh(self, run: _Run) -> tuple[float, float]:
        """Seconds that a group of its rows saves per slot, and pays for partial results."""
        weights = self._weights.get(id(run))
        if weights is None:
            tokens = int(self._tokens[run.rows].sum())
            saved = int(self._tiles[run.rows].sum()) - self._costs.tiles(tokens)
            weights = (saved * self._costs.slot_s, tokens * self._costs.state_s)
            self._weights[id(run)] = weights
        return weights


def _laid_out(rows: RaggedRows, groups: list[_Group], saved_s: float) -> Cascade:
    count, tokens = rows.num_rows, rows.extend_lens
    levels = 1 + max(group.level for group in groups)
    # Rows are sorted by their groups, level by level; groups and other rows keep the batch's order.
    keys = np.tile(np.arange(count), (levels + 1, 1))
    begins, ends = (np.zeros((levels, count), np.int64) for _ in range(2))
    for group in groups:
        keys[group.level, group.rows] = group.rows[0]
        begins[group.level, group.rows], ends[group.level, group.rows] = group.begin, group.end
    order = np.lexsort(keys[::-1])
    qo_indptr = indptr_of(tokens[order])
    first = rows.kv_indptr[:-1].astype(np.int64)
    laid_out = []
    for key, begin, end in zip(keys, begins, ends, strict=False):
        grouped = end[order] > 0
        # A new group where the key changes; neighbours without a group are taken together.
        cut = (np.diff(key[order]) != 0) & (grouped[1:] | grouped[:-1])
        heads = np.concatenate(([0], np.flatnonzero(cut) + 1))
        one = order[heads]
        laid_out.append(
            RaggedRows(
                np.append(qo_indptr[heads], qo_indptr[-1]),
                *slices_of(rows.kv_indices, first[one] + begin[one], first[one] + end[one]),
            )
        )
    own = ends.max(axis=0)  # where what a row reads alone begins
    moved = bool((order != np.arange(count)).any())
    token_order = entries_of(rows.qo_indptr, order) if moved else None
    until = rows.visible_until
    if until is not None:  # positions are counted from `own` on
        until = np.maximum(until - np.repeat(own, tokens), 0).astype(np.int32)
        until = until if token_order is None else until[token_order]
    rest = slices_of(rows.kv_indices, (first + own)[order], rows.kv_indptr[1:][order])
    return Cascade(
        order, token_order, tuple(laid_out), RaggedRows(qo_indptr, *rest, until), saved_s
    )
