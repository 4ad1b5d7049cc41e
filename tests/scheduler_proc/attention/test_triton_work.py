"""How the Triton backend cuts steps into items: every token gets every slot that it sees, once."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.attention.cascade import CascadeCosts, find_cascade
from scheduler_proc.attention.triton.lists import Lists, cascade_lists, flat_lists
from scheduler_proc.attention.triton.work import Cut, Work, cut
from tests.scheduler_proc.ragged import indptr, int32

pytestmark = pytest.mark.full

CHEAP = CascadeCosts(slot_s=1.0, state_s=0.1, level_s=0.1, tile_tokens=8)


def how(**values: object) -> Cut:
    defaults = {
        "group": 2,
        "kv_heads": 2,
        "small_rows": 16,
        "large_rows": 64,
        "block_n": 32,
        "window": None,
        "num_sms": 16,
        "fixed": False,
    }
    return Cut(**{**defaults, **values})  # type: ignore[arg-type]


def seen(work: Work, lists: Lists, window: int | None) -> dict[int, dict[int, list[int]]]:
    """The slots that each token gets from each of its parts, as the kernels read them."""
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for first, count, start, begin, end, position, part, _ in np.vstack((work.small, work.large)):
        assert count > 0 and begin < end
        for i in range(count):
            token = first + i if lists.order is None else lists.order[first + i]
            limit = position + i + 1
            if lists.visible_until_of_tokens is not None:
                limit = max(limit, lists.visible_until_of_tokens[token])
            lower = 0 if window is None else position + i + 1 - window
            entries = np.arange(max(begin, lower), min(end, limit))
            assert part not in found[token]
            found[token][part] = lists.kv_indices[start + entries].tolist()
    return found


def expected(rows: RaggedRows, window: int | None) -> list[list[int]]:
    slots = []
    for row in range(rows.num_rows):
        own = rows.kv_indices[rows.kv_indptr[row] : rows.kv_indptr[row + 1]]
        for token in range(rows.qo_indptr[row], rows.qo_indptr[row + 1]):
            at = len(own) - (rows.qo_indptr[row + 1] - token)
            end = at + 1
            if rows.visible_until is not None:
                end = max(end, rows.visible_until[token])
            first = 0 if window is None else max(0, at + 1 - window)
            slots.append(own[first:end].tolist())
    return slots


def check(work: Work, lists: Lists, rows: RaggedRows, window: int | None) -> None:
    found = seen(work, lists, window)
    ranges: list[int] = []
    for token, slots in enumerate(expected(rows, window)):
        parts = found.pop(token)
        assert sorted(slot for part in parts.values() for slot in part) == sorted(slots)
        numbers = sorted(parts)
        entry = work.merges[work.merges[:, 0] == token]
        if numbers == [-1]:
            assert not len(entry)
        else:
            ((_, start, count, _),) = entry
            assert numbers == list(range(count)) and count > 1
            assert work.part_starts[token] == start
            ranges += range(start, start + count)
    assert not found
    assert sorted(ranges) == list(range(work.num_parts))


@st.composite
def batches(draw: st.DrawFn, with_until: bool = False) -> RaggedRows:
    """Rows of which some begin with the slots of others."""
    texts: list[list[int]] = []
    extends: list[int] = []
    fresh = 0
    for _ in range(draw(st.integers(1, 6))):
        shared: list[int] = []
        begins_alike: bool = draw(st.booleans())
        if texts and begins_alike:
            other = draw(st.integers(0, len(texts) - 1))
            shared = texts[other][: draw(st.integers(0, len(texts[other]) - extends[other]))]
        extend = draw(st.sampled_from([1, 1, 1, 2, 7, 9, 40, 70]))
        more = extend + draw(st.sampled_from([0, 1, 30, 64, 300]))
        texts.append([*shared, *range(fresh, fresh + more)])
        extends.append(extend)
        fresh += more
    lens = [len(text) for text in texts]
    until = None
    if with_until:
        spans = [draw(_spans(*pair)) for pair in zip(lens, extends, strict=True)]
        until = int32(np.concatenate(spans))
    return RaggedRows(indptr(extends), indptr(lens), int32(np.concatenate(texts)), until)


@st.composite
def _spans(draw: st.DrawFn, seq_len: int, extend: int) -> list[int]:
    return [draw(st.sampled_from([0, seq_len, seq_len - extend // 2])) for _ in range(extend)]


HOWS = st.builds(
    how,
    group=st.sampled_from([1, 3, 8]),
    window=st.sampled_from([None, None, 1, 20, 100]),
    num_sms=st.sampled_from([1, 16, 132]),
    fixed=st.booleans(),
)


@settings(max_examples=60)
@given(batches(), HOWS)
def test_every_token_gets_every_slot_once(rows: RaggedRows, way: Cut) -> None:
    lists = flat_lists(rows)
    check(cut(lists, way), lists, rows, way.window)


@settings(max_examples=40)
@given(batches(with_until=True), HOWS)
def test_with_tokens_that_see_each_other(rows: RaggedRows, way: Cut) -> None:
    lists = flat_lists(rows)
    check(cut(lists, way), lists, rows, way.window)


@settings(max_examples=60)
@given(batches(with_until=True), st.sampled_from([1, 16, 132]), st.booleans())
def test_with_shared_prefixes(rows: RaggedRows, num_sms: int, spans: bool) -> None:
    rows = rows if spans else rows._replace(visible_until=None)
    cascade = find_cascade(rows, CHEAP)
    if cascade is not None:
        lists = cascade_lists(cascade)
        check(cut(lists, how(num_sms=num_sms)), lists, rows, None)


def decodes(lens: list[int]) -> RaggedRows:
    kv = indptr(lens)
    return RaggedRows(indptr([1] * len(lens)), kv, int32(np.arange(kv[-1])))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), HOWS)
def test_a_graph_has_room_for_all_items(lens: list[int], way: Cut) -> None:
    work = cut(flat_lists(decodes(lens)), way)
    assert not len(work.large)
    assert len(work.small) <= way.max_items(len(lens))
    assert work.num_parts <= way.max_items(len(lens))


def test_few_long_rows_are_split_to_fill_the_gpu_and_many_are_not() -> None:
    way = how(num_sms=132, kv_heads=8)
    few = cut(flat_lists(decodes([8000, 100])), way)
    assert len(few.small) * 8 >= 2 * 132
    many = cut(flat_lists(decodes([2000] * 200)), way)
    assert len(many.small) == 200 and many.num_parts == 0
    prompts = flat_lists(RaggedRows(indptr([512] * 4), indptr([600] * 4), int32(range(2400))))
    assert cut(prompts, way).num_parts == 0


def test_splits_that_are_fixed_follow_from_the_row_alone() -> None:
    lens = [300, 64000, 20, 1500]
    for fixed in (True, False):
        way = how(fixed=fixed, num_sms=132, kv_heads=8)
        small = cut(flat_lists(decodes(lens)), way).small
        together = [sorted(small[small[:, 0] == row][:, 3:5].tolist()) for row in range(4)]
        alone = [cut(flat_lists(decodes([n])), way).small[:, 3:5].tolist() for n in lens]
        assert (together == [sorted(ranges) for ranges in alone]) == fixed


@pytest.mark.parametrize("window", [None, 50])
def test_the_longest_items_come_first(window: int | None) -> None:
    work = cut(flat_lists(decodes([10, 90, 40])), how(window=window))
    lengths = work.small[:, 4] - work.small[:, 3]
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
