"""What the front holds of media: counts are right after every step, whatever happens."""

import random

import pytest

import tokenizer_proc.media.store
from srt.wire.errors import RequestError
from srt.wire.media import MediaItem
from tests.tokenizer_proc.media.fake_processor import image, video
from tokenizer_proc.media.store import Held, MediaStore, Name, key_of


def item(digest: bytes, size: int = 10) -> MediaItem:
    return MediaItem(digest, "image", 1, (1, 1, size, 3))


def check(store: MediaStore) -> None:
    """Everything that is counted is held, and the other way round."""
    held = {id(one): one for files in store._of.values() for one in files}.values()
    assert store.num_bytes == sum(one.num_bytes for one in held)
    for one in held:
        assert one.num_bytes == sum(map(len, one.frames or list(one.pixels.values())))
        assert set(one.holders) == {name for name, files in store._of.items() if one in files}
    assert {one.key for one in held if one.key} == set(store._by_key)
    digests = {i.digest for one in held for i in one.items or ()}
    assert digests == set(store._by_digest)
    for one in held:
        assert not one.num_bytes or store._shares._holders[one] in one.holders.values()


def test_random_lives() -> None:
    """2,000 steps: requests come with some of ten files, which are hashed and decoded in any order,
    and go."""
    rng = random.Random(5)
    store = MediaStore(500)
    names: dict[Name, list[Held]] = {}
    unhashed: list[Held] = []
    undecoded: list[Held] = []
    for step in range(2000):
        kind = rng.randrange(8)
        if kind < 2:
            files = [Held(image(), [bytes([rng.randrange(10)]) * 20]) for _ in range(2)]
            name = (b"c", str(step))
            store.hold(rng.choice("abc"), [name, (b"d", str(step))], files)
            names[name] = names[(b"d", str(step))] = files
            unhashed += files
        elif kind < 4 and unhashed:
            held = unhashed.pop(rng.randrange(len(unhashed)))
            if held.holders:
                known = store.identify(held, key_of(held.ref, held.frames))
                if known.items is None:
                    undecoded.append(known)
        elif kind < 6 and undecoded:
            held = undecoded.pop(rng.randrange(len(undecoded)))
            digest = held.key[:2] * 16
            store.made(held, [(item(digest, n), bytes(3 * n)) for n in (rng.choice([10, 40]),)])
        elif names and kind < 8:
            name = rng.choice(list(names))
            del names[name]
            store.release(name)
        check(store)
    for name in names:
        store.release(name)
    check(store)
    assert store.num_bytes == 0 and not store._of


def test_a_key_is_of_all_that_makes_the_items() -> None:
    keys = {
        key_of(image(), [b"ab"]),
        key_of(image(detail="low"), [b"ab"]),
        key_of(video(1), [b"ab"]),
        key_of(video(2), [b"a", b"b"]),
        key_of(video(2), [b"", b"ab"]),
        key_of(image(num_frames=3), [b"ab"]),
        key_of(image(), [b"abc"]),
    }
    assert len(keys) == 7
    assert key_of(image(b"claimed"), [b"ab"]) == key_of(image(), [memoryview(b"ab")])


def test_facts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_proc.media.store, "MAX_FACTS", 4)
    store = MediaStore(1000)

    def knows(number: int) -> bool:
        held = Held(image(), [bytes([number])])
        store.hold("a", [(b"c", "r")], [held])
        known = store.identify(held, key_of(held.ref, held.frames)).items is not None
        store.release((b"c", "r"))
        return known

    def learn(number: int, count: int) -> None:
        held = Held(image(), [bytes([number])])
        store.hold("a", [(b"c", "r")], [held])
        held = store.identify(held, key_of(held.ref, held.frames))
        store.made(held, [(item(bytes([number, i])), b"x" * 30) for i in range(count)])
        store.release((b"c", "r"))

    learn(1, 2)
    learn(2, 2)
    assert knows(2) and knows(1)
    learn(3, 2)
    assert [knows(number) for number in (1, 2, 3)] == [True, False, True]
    learn(4, 9)  # more than all: only itself
    assert [knows(number) for number in (1, 3, 4)] == [False, False, True]
    store.clear()
    assert knows(4)


def test_room() -> None:
    store = MediaStore(100)
    store.check_room("a", 1000)  # nothing is there
    store.hold("a", [(b"c", "r")], [Held(image(), [bytes(80)])])
    store.check_room("a", 20)
    with pytest.raises(RequestError, match="of this caller are in flight"):
        store.check_room("a", 21)
    store.check_room("b", 100)
    store.hold("b", [(b"d", "r")], [Held(image(), [bytes(60)])])
    with pytest.raises(RequestError, match="of this caller are in flight"):
        store.check_room("b", 1)  # the rest is for others
    store.check_room("c", 60)
    with pytest.raises(RequestError, match="at its limit: 0 MB of pictures and videos are"):
        store.check_room("c", 61)


def test_pixels_take_what_their_caller_may_have() -> None:
    """As files do; else the file is kept."""
    store = MediaStore(100)
    for rid, size in (("1", 60), ("2", 30), ("3", 11)):
        held = Held(image(), [rid.encode() * 10])
        store.hold("a", [(b"c", rid)], [held])
        store.made(store.identify(held, rid.encode()), [(item(rid.encode()), bytes(size))])
        assert bool(held.pixels) == (rid != "3")
        check(store)
    assert store.num_bytes == 100


def test_what_waits_gives_way() -> None:
    """The newest of who has most; not what others have too, nor what has gone on."""
    waiting: set[Name] = set()

    def end(held: Held) -> None:
        for name in list(held.holders):
            ended.append(name[1])
            store.release(name)

    ended: list[str] = []
    store = MediaStore(50, waiting.__contains__, end)
    files: dict[str, Held] = {}
    for caller, rid, size in (("a", "1", 20), ("a", "2", 20), ("b", "3", 20), ("b", "4", 20)):
        name = (b"c", rid)
        waiting.add(name)
        files[rid] = Held(image(), [rid.encode() * size])
        store.hold(caller, [name], [files[rid]])
    store.identify(files["4"], b"4")
    shared = Held(image(), [b"4" * 20])
    store.hold("x", [(b"x", "x")], [shared])
    waiting.add((b"x", "x"))
    assert store.identify(shared, b"4") is files["4"]
    waiting.remove((b"c", "2"))  # it has gone on
    store.hold("d", [(b"c", "5")], [Held(image(), [bytes(30)])])
    assert ended == ["1"] and store.num_bytes == 90
    store.release((b"c", "4"))  # from now on it counts for "x" alone
    assert (store._shares.held("b"), store._shares.held("x")) == (20, 20)
    check(store)
