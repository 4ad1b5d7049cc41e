"""Cascades of random rows against all pairs of rows, and all choices of groups, tried out."""

from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running.late import late
from tests.scheduler_proc.ragged import indptr, int32

if TYPE_CHECKING:
    from scheduler_proc.attention import base
    from scheduler_proc.attention import cascade as cascades
else:
    base = late("scheduler_proc.attention.base")
    cascades = late("scheduler_proc.attention.cascade")


@cache
def always() -> "cascades.CascadeCosts":
    return cascades.CascadeCosts(slot_s=1, state_s=0, level_s=0, tile_tokens=99, max_levels=99)


class Run(NamedTuple):
    rows: frozenset[int]
    end: int


def ragged(rows: list[tuple[list[int], int]], until: np.ndarray | None = None) -> "base.RaggedRows":
    """From each row's slots and how many of them it adds."""
    return base.RaggedRows(
        indptr([extend for _, extend in rows]),
        indptr([len(slots) for slots, _ in rows]),
        int32([slot for slots, _ in rows for slot in slots]),
        until,
    )


@st.composite
def random_rows(draw: st.DrawFn, most: int = 10) -> "base.RaggedRows":
    """Rows that share much: few different slots, and beginnings taken from rows before."""
    rows: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, most))):
        slots = draw(st.lists(st.integers(0, 2), max_size=6))
        shares: bool = draw(st.booleans())
        if rows and shares:
            other = draw(st.sampled_from(rows))[0]
            slots = other[: draw(st.integers(0, len(other)))] + slots
        added = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        rows.append((slots + added, len(added)))
    return ragged(rows)


def slots_of(rows: "base.RaggedRows", row: int) -> list[int]:
    return list(rows.kv_indices[rows.kv_indptr[row] : rows.kv_indptr[row + 1]].tolist())


def groups_of(
    rows: "base.RaggedRows", cascade: "cascades.Cascade", level: int
) -> list[tuple[list[int], list[int]]]:
    """The rows and slots of a level's groups, with those that stand for rows without one."""
    layout = cascade.levels[level]
    bounds = indptr(rows.extend_lens[cascade.order].tolist()).tolist()
    groups = []
    for g in range(layout.num_rows):
        first, last = (bounds.index(at) for at in layout.qo_indptr[g : g + 2])
        groups.append((cascade.order[first:last].tolist(), slots_of(layout, g)))
    return groups


def all_pairs(rows: "base.RaggedRows") -> set[Run]:
    """All maximal runs: for rows i and j, what they share and who else shares it."""
    limits = rows.seq_lens - rows.extend_lens
    prefixes = [slots_of(rows, r)[: limits[r]] for r in range(rows.num_rows)]
    runs = set()
    for i, j in combinations(range(rows.num_rows), 2):
        same = 0
        for a, b in zip(prefixes[i], prefixes[j], strict=False):
            if a != b:
                break
            same += 1
        if same:
            common = prefixes[i][:same]
            others = (r for r, prefix in enumerate(prefixes) if prefix[:same] == common)
            runs.add(Run(frozenset(others), same))
    return runs


def check_cover(rows: "base.RaggedRows", cascade: "cascades.Cascade") -> None:
    """Levels and rest list each row's slots exactly once, in order."""
    covered: list[list[int]] = [[] for _ in range(rows.num_rows)]
    for level, layout in enumerate(cascade.levels):
        assert layout.qo_indptr[-1] == rows.qo_indptr[-1] and layout.qo_indptr.dtype == np.int32
        assert layout.kv_indices.dtype == layout.kv_indptr.dtype == np.int32
        for members, slots in groups_of(rows, cascade, level):
            for row in members:
                covered[row] += slots
    assert sorted(cascade.order.tolist()) == list(range(rows.num_rows))
    np.testing.assert_array_equal(cascade.rest.extend_lens, rows.extend_lens[cascade.order])
    assert (cascade.rest.seq_lens >= cascade.rest.extend_lens).all()
    for at, row in enumerate(cascade.order.tolist()):
        assert covered[row] + slots_of(cascade.rest, at) == slots_of(rows, row)
    starts = rows.qo_indptr.tolist()
    tokens = [t for r in cascade.order.tolist() for t in range(starts[r], starts[r + 1])]
    if cascade.tokens is None:
        assert tokens == list(range(len(tokens)))
    else:
        assert cascade.tokens.tolist() == tokens


def price(tokens: int, slots: int, costs: "cascades.CascadeCosts") -> float:
    return float(-(-tokens // costs.tile_tokens) * slots * costs.slot_s)


def laid_out_saving(
    rows: "base.RaggedRows", cascade: "cascades.Cascade", costs: "cascades.CascadeCosts"
) -> float:
    """What a cascade saves, by what its layouts read."""
    saved = -len(cascade.levels) * costs.level_s
    for extend, flat in zip(rows.extend_lens, rows.seq_lens, strict=True):
        saved += price(extend, flat, costs)
    for extend, own in zip(cascade.rest.extend_lens, cascade.rest.seq_lens, strict=True):
        saved -= price(extend, own, costs)
    for level in cascade.levels:
        for tokens, slots in zip(level.extend_lens, level.seq_lens, strict=True):
            saved -= price(tokens, slots, costs) + (tokens * costs.state_s if slots else 0)
    return saved


def best_saving(rows: "base.RaggedRows", costs: "cascades.CascadeCosts") -> float:
    """Of all choices of groups among all runs."""
    runs, lens = sorted(all_pairs(rows), key=lambda run: run.end), rows.extend_lens
    best = 0.0
    for chosen in (c for n in range(1, len(runs) + 1) for c in combinations(runs, n)):
        around = [[o for o in chosen if o.rows > run.rows] for run in chosen]
        levels = 1 + max(len(outer) for outer in around)
        saved = -levels * costs.level_s
        for run, outer in zip(chosen, around, strict=True):
            slots = run.end - max((o.end for o in outer), default=0)
            total = sum(int(lens[r]) for r in run.rows)
            saved += sum(price(int(lens[r]), slots, costs) for r in run.rows)
            saved -= price(total, slots, costs) + total * costs.state_s
        if levels <= costs.max_levels:
            best = max(best, saved)
    return best


@given(random_rows())
def test_without_costs_every_maximal_run_is_a_group(rows: "base.RaggedRows") -> None:
    cascade, runs = cascades.find_cascade(rows, always()), all_pairs(rows)
    if cascade is None:
        assert not runs
        return
    check_cover(rows, cascade)
    found, read = [], dict.fromkeys(range(rows.num_rows), 0)
    for level in range(len(cascade.levels)):
        for members, slots in groups_of(rows, cascade, level):
            read.update((row, read[row] + len(slots)) for row in members)
            if slots:
                found.append(Run(frozenset(members), read[members[0]]))
    assert len(found) == len(set(found)) and set(found) == runs


@given(random_rows())
def test_no_cascade_where_it_never_pays(rows: "base.RaggedRows") -> None:
    for never in (
        cascades.CascadeCosts(slot_s=1, state_s=0, level_s=1e9, tile_tokens=99),
        cascades.CascadeCosts(slot_s=1, state_s=1e9, level_s=0, tile_tokens=99),
        cascades.CascadeCosts(slot_s=0, state_s=0, level_s=0, tile_tokens=99),
        cascades.CascadeCosts(
            slot_s=1, state_s=0, level_s=0, tile_tokens=1
        ),  # reads are not shared
    ):
        assert cascades.find_cascade(rows, never) is None


@given(
    random_rows(most=6),
    st.floats(0, 3),
    st.floats(0, 6),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_choice_is_the_best_of_all(
    rows: "base.RaggedRows", state_s: float, level_s: float, tile: int, levels: int
) -> None:
    costs = cascades.CascadeCosts(1.0, state_s, level_s, tile_tokens=tile, max_levels=levels)
    cascade, best = cascades.find_cascade(rows, costs), best_saving(rows, costs)
    if cascade is None:
        assert best <= 1e-9
        return
    assert cascade.saved_s == pytest.approx(best)
    assert laid_out_saving(rows, cascade, costs) == pytest.approx(best)
    assert len(cascade.levels) <= levels
    check_cover(rows, cascade)


def test_runs_deeper_than_the_search_are_read_alone() -> None:
    """Each row shares one slot more with the rows after it."""
    rows = ragged([([*range(i), 100 + i], 1) for i in range(40)])
    cascade = cascades.find_cascade(rows, always())
    assert cascade is not None and 1 < len(cascade.levels) < 38
    check_cover(rows, cascade)


def test_one_prefix_of_a_large_batch_keeps_the_batch_in_order() -> None:
    rng = np.random.default_rng(0)
    slots = rng.permutation(8192 + 64 * 128)
    own = slots[8192:].reshape(64, 128).tolist()
    shared = slots[:8192].tolist()
    rows = ragged([(shared + own[i], 1 + i % 2) for i in range(64)])
    kind = base.LayerKind(32, 8, 128, 128, 1.0)
    cascade = cascades.find_cascade(rows, cascades.CascadeCosts.of(kind, 2, 2))
    assert cascade is not None and cascade.tokens is None and len(cascade.levels) == 1
    assert cascade.levels[0].kv_indices.tolist() == shared
    assert cascade.levels[0].qo_indptr.tolist() == [0, 96]
    check_cover(rows, cascade)


def test_long_extends_gain_nothing_and_a_first_token_is_no_group() -> None:
    costs = cascades.CascadeCosts.of(base.LayerKind(32, 8, 128, 128, 1.0), 2, 2)
    shared = list(range(2048))
    extends = [(shared + list(range(5000 + 512 * i, 5512 + 512 * i)), 512) for i in range(2)]
    assert cascades.find_cascade(ragged(extends), costs) is None
    start = [([0, *range(1 + 900 * i, 901 + 900 * i)], 1) for i in range(16)]
    assert cascades.find_cascade(ragged(start), costs) is None


def test_a_first_token_of_all_is_read_with_the_longer_prefixes() -> None:
    prefixes = [[0, *range(1 + 4000 * p, 4001 + 4000 * p)] for p in range(2)]
    rows = ragged([(prefixes[i % 2] + [9000 + i], 1) for i in range(32)])
    costs = cascades.CascadeCosts.of(base.LayerKind(8, 8, 128, 128, 1.0), 2, 2)
    cascade = cascades.find_cascade(rows, costs)
    assert cascade is not None
    assert [groups_of(rows, cascade, level) for level in range(len(cascade.levels))] == [
        [(list(range(p, 32, 2)), prefixes[p]) for p in range(2)]
    ]
    check_cover(rows, cascade)


def test_spans_that_see_both_ways_move_with_their_rows() -> None:
    """In the rest, positions are counted from the first slot that is not shared."""
    until = int32([0, 9, 0, 0, 8, 0])
    rows = ragged(
        [
            ([1, 2, 3, 4, 10, 11, 12, 13, 14], 3),
            ([30, 31], 1),
            ([1, 2, 3, 4, 20, 21, 22, 23], 2),
        ],
        until,
    )
    cascade = cascades.find_cascade(rows, always())
    assert cascade is not None and cascade.tokens is not None
    assert cascade.tokens.tolist() == [0, 1, 2, 4, 5, 3]
    assert cascade.rest.visible_until is not None
    assert cascade.rest.visible_until.tolist() == [0, 5, 0, 4, 0, 0]
    check_cover(rows, cascade)


def test_costs_follow_the_kind_and_the_device() -> None:
    wide = base.LayerKind(32, 8, 128, 64, 1.0)
    device = cascades.DeviceCosts(byte_s=2.0, state_byte_s=3.0, level_s=5.0, tile_rows=64)
    assert cascades.CascadeCosts.of(wide, 2, 1, device) == cascades.CascadeCosts(
        slot_s=8 * 192 * 2.0, state_s=32 * (64 * 2 + 4) * 3.0, level_s=5.0, tile_tokens=16
    )
    assert cascades.CascadeCosts.of(base.LayerKind(256, 1, 64, 64, 1.0), 2, 2).tile_tokens == 1
    assert cascades.takes_part(wide) and not cascades.takes_part(wide._replace(window=5))
