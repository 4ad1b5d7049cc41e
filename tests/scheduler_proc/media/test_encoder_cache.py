"""The encoder cache by itself: what is encoded next, and what is forgotten."""

from collections.abc import Sequence

from scheduler_proc.media.encoder_cache import EncoderCache
from srt.wire.media import MediaItem


def item(name: str, length: int = 1) -> MediaItem:
    return MediaItem(name.encode(), "image", length, (1, 1, 1, 3))


def cache_of(parts: dict[str, int], max_bytes: int = 100) -> EncoderCache:
    """Items whose pixels have come, each needed by a req."""
    cache = EncoderCache(max_bytes, 1)
    for handle, (name, num_parts) in enumerate(parts.items()):
        assert not cache.need(handle, [item(name)])
        assert cache.take_wanted() == [name.encode()]
        assert cache.came(name.encode(), num_parts)
    return cache


def encoded(cache: EncoderCache, most: int = 100) -> str:
    """Encode up to `most` parts; returns whose they are."""
    names = ""
    while len(names) < most and (part := cache.next_part()) is not None:
        names += part[0].digest.decode()
        cache.encoded(part[0].digest)
        cache.check()
    return names


def test_pictures_pass_a_video_that_goes_on() -> None:
    assert encoded(cache_of({"v": 6, "a": 1, "b": 2})) == "vavbvbvvv"


def test_equal_pictures_are_encoded_one_after_the_other() -> None:
    assert encoded(cache_of({"a": 3, "b": 3, "c": 3})) == "aaabbbccc"


def test_one_part_at_a_time() -> None:
    cache = cache_of({"a": 2, "b": 1})
    assert cache.next_part() is not None and cache.next_part() is None


def test_what_is_half_encoded_for_nobody_is_forgotten() -> None:
    """Its pixels take memory that nobody counts; what is being encoded goes when that has ended."""
    cache = cache_of({"a": 3, "b": 1, "c": 1})
    assert encoded(cache, 1) == "a"
    cache.release(0)
    assert cache.take_dropped() == [b"a"] and cache.num_bytes == 2
    part = cache.next_part()
    assert part is not None and part[0].digest == b"b"
    cache.release(1)
    assert cache.take_dropped() == [] and cache.has(b"b") is False
    assert cache.encoded(b"b") and cache.has(b"b")  # ready: worth keeping
    assert encoded(cache) == "c" and cache.num_bytes == 2


def test_a_part_that_ends_for_nobody() -> None:
    cache = cache_of({"a": 3})
    assert cache.next_part() is not None
    cache.release(0)
    assert not cache.encoded(b"a")
    assert cache.take_dropped() == [b"a"] and cache.num_bytes == 0


def test_a_part_that_is_begun_goes_on_before_others() -> None:
    cache = cache_of({"v": 2, "a": 1})
    for _ in range(4):
        part = cache.next_part()
        assert part is not None and (part[0].digest, part[1]) == (b"v", 0)
        assert not cache.encoded(b"v", is_done=False)
        cache.check()
    assert encoded(cache) == "vva"


def test_what_is_begun_for_nobody_is_forgotten() -> None:
    """Between two slices or while one is encoded; if it is needed again, it begins anew."""
    for ends_first in (False, True):
        cache = cache_of({"a": 1, "b": 1})
        assert cache.next_part() is not None
        if ends_first:
            assert not cache.encoded(b"a", is_done=False)
        cache.release(0)
        if not ends_first:
            assert not cache.encoded(b"a", is_done=False)
        cache.check()
        assert cache.take_dropped() == [b"a"] and encoded(cache) == "b"
        assert not cache.need(2, [item("a")])
        assert cache.take_wanted() == [b"a"] and cache.came(b"a", 1)
        assert encoded(cache) == "a" and cache.has(b"a")


def test_what_is_begun_fails() -> None:
    cache = cache_of({"a": 2, "b": 1})
    assert cache.next_part() is not None and not cache.encoded(b"a", is_done=False)
    assert cache.next_part() is not None and cache.failed(b"a") == [0]
    cache.check()
    assert encoded(cache) == "b"


def test_needing_less_lets_go_of_the_rest() -> None:
    cache = EncoderCache(10, 1)
    both = [item("a"), item("b")]
    _have(cache, 0, both)
    assert cache.need(1, both)
    assert not cache.need(0, [item("b"), item("c")])
    cache.release(1)
    assert cache.pinned == {0: {b"b", b"c"}}
    assert cache.awaits(b"c") and not cache.awaits(b"b") and not cache.awaits(b"z")
    assert cache.users_of(b"b") == {0} and cache.users_of(b"a") == set()
    cache.check()


def test_no_room_pins_nothing() -> None:
    cache = EncoderCache(4, 1)
    _have(cache, 0, [item("a", 3)])
    assert not cache.need(1, [item("b", 1), item("c", 1)])
    assert cache.take_wanted() == [] and 1 not in cache.pinned
    cache.release(0)
    assert not cache.need(1, [item("b", 1), item("c", 1)])
    assert cache.take_dropped() == [b"a"] and cache.take_wanted() == [b"b", b"c"]
    cache.check()


def test_a_req_counts_what_it_finds_once() -> None:
    """Whatever else it needs by then; its own items are not found."""
    cache = EncoderCache(3, 1)
    _have(cache, 0, [item("a"), item("b")])
    assert cache.num_hits == 0
    assert cache.need(1, [item("a")])
    assert cache.need(1, [item("a"), item("b")]) and cache.num_hits == 2
    assert not cache.need(1, [item("a"), item("c", 2)])  # no room: it has nothing pinned
    assert cache.need(1, [item("b")]) and cache.need(0, [item("b")])
    assert cache.num_hits == 2
    cache.release(1)
    assert cache.need(1, [item("b")]) and cache.num_hits == 3


def _have(cache: EncoderCache, handle: int, items: Sequence[MediaItem]) -> None:
    cache.need(handle, items)
    for digest in cache.take_wanted():
        assert cache.came(digest, 1)
    encoded(cache)
    assert cache.need(handle, items)
