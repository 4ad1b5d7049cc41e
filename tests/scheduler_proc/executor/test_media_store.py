"""The embeddings of media that an executor holds."""

from collections.abc import Sequence

import numpy as np
import pytest

from scheduler_proc.executor.media_store import MediaStore, tokens_of
from srt.wire.media import MediaItem
from tests.scheduler_proc.media_items import embeds_of, item_of, pixels_of

HIDDEN = 4


class Maker:
    """Encodes a part as its number, and notes the calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.value = 1.0
        self.fails = False

    def num_parts(self, item: MediaItem) -> int:
        return item.shape[0]

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> int:
        if self.fails:
            raise RuntimeError("no memory")
        self.calls.append(part)
        return part

    def join(self, item: MediaItem, parts: Sequence[int]) -> np.ndarray:
        assert [*parts] == [*range(item.shape[0])]
        return np.arange(item.length * HIDDEN, dtype=np.float32).reshape(-1, HIDDEN) * self.value


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def store(maker: Maker) -> MediaStore[int, np.ndarray]:
    return MediaStore(HIDDEN, maker.num_parts, maker.encode, maker.join)


def fill(store: MediaStore[int, np.ndarray], item: MediaItem) -> None:
    for part in range(item.shape[0]):
        store.encode(item, pixels_of(item), part)


def test_runs_take_rows_of_items(store: MediaStore[int, np.ndarray]) -> None:
    first, second = item_of("first", 6, tiles=3), item_of("second", 3)
    fill(store, first)
    fill(store, second)
    one, two, three = store.rows(embeds_of((2, 3, 0, second), (9, 2, 4, first), (11, 1, 0, first)))
    np.testing.assert_array_equal(one, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(two, np.arange(16, 24).reshape(2, 4))
    np.testing.assert_array_equal(three, [[0, 1, 2, 3]])


def test_an_item_is_there_after_its_last_part(store: MediaStore[int, np.ndarray]) -> None:
    item = item_of("tiles", 4, tiles=2)
    store.encode(item, pixels_of(item), 0)
    with pytest.raises(ValueError, match=f"{item.digest.hex()[:16]} is not encoded"):
        store.rows(embeds_of((0, 4, 0, item)))
    store.encode(item, pixels_of(item), 1)
    assert len(store.rows(embeds_of((0, 4, 0, item)))[0]) == 4
    store.drop(item.digest)
    store.drop(item.digest)
    assert len(store) == 0
    with pytest.raises(ValueError, match="not encoded"):
        store.rows(embeds_of((0, 4, 0, item)))


def test_parts_come_in_order_and_begin_anew(
    maker: Maker, store: MediaStore[int, np.ndarray]
) -> None:
    item = item_of("tiles", 4, tiles=3)
    with pytest.raises(ValueError, match="part 1 of an item of which 0"):
        store.encode(item, pixels_of(item), 1)
    store.encode(item, pixels_of(item), 0)
    maker.fails = True
    with pytest.raises(RuntimeError, match="no memory"):
        store.encode(item, pixels_of(item), 1)
    maker.fails = False
    with pytest.raises(ValueError, match="part 1 of an item of which 0"):
        store.encode(item, pixels_of(item), 1)
    fill(store, item)
    assert maker.calls == [0, 0, 1, 2] and len(store) == 1
    with pytest.raises(ValueError, match="part 1"):
        store.encode(item, pixels_of(item), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(
    maker: Maker, store: MediaStore[int, np.ndarray], value: float
) -> None:
    maker.value = value
    with pytest.raises(ValueError, match="not finite"), np.errstate(invalid="ignore"):
        fill(store, item_of("odd", 2))
    assert len(store) == 0


def test_other_shapes_are_refused(maker: Maker) -> None:
    store = MediaStore(HIDDEN + 1, maker.num_parts, maker.encode, maker.join)
    item = item_of("narrow", 2)
    with pytest.raises(ValueError, match=r"embeddings \[2, 4\], not \[2, 5\]"):
        fill(store, item)
    for pixels in (pixels_of(item)[:, 1:], pixels_of(item).astype(np.float32)):
        with pytest.raises(ValueError, match="pixels"):
            store.encode(item, pixels, 0)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (2, 2), (0, 4), (3, 1)])
def test_rows_that_an_item_lacks_are_refused(
    store: MediaStore[int, np.ndarray], offset: int, length: int
) -> None:
    item = item_of("three", 3)
    fill(store, item)
    with pytest.raises(ValueError, match="of 3 embeddings"):
        store.rows(embeds_of((0, length, offset, item)))


def test_tokens_of_runs() -> None:
    item = item_of("any", 9)
    found = tokens_of(embeds_of((1, 2, 0, item), (3, 1, 4, item), (7, 3, 0, item)), 10)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [1, 2, 3, 7, 8, 9])


@pytest.mark.parametrize(
    "runs", [[(8, 3)], [(-1, 2)], [(2, 3), (4, 1)], [(4, 1), (2, 1)], [(2, 0)], [(10, 1)]]
)
def test_runs_outside_the_batch_are_refused(runs: list[tuple[int, int]]) -> None:
    item = item_of("any", 9)
    with pytest.raises(ValueError, match="embeds: runs at"):
        tokens_of(embeds_of(*((at, length, 0, item) for at, length in runs)), 10)
