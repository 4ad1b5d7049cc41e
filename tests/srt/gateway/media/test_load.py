"""Loading of files: base64 in turns, one load of what several name, and the room they take."""

import asyncio

import pytest

from srt.client.media import MediaFile
from srt.gateway.media import load
from srt.gateway.media.fetch import Fetcher
from srt.gateway.media.given import GivenMedia, MediaList, MediaRules
from srt.gateway.media.load import MediaLoader
from srt.gateway.media.urls import SLICE_CHARS
from srt.wire.errors import OVERLOADED, RequestError, RingError
from srt.wire.media import MAX_FRAMES
from tests.srt.gateway.media.setup import CAT, DOG, FILM, RULES, base64_of, data_url
from tests.srt.gateway.media.test_fetch import internet, says

SEES = MediaRules(frozenset({"image", "video"}), 3, ("pictures.test",))


def listed(*given: GivenMedia, keeps: bool = False) -> MediaList:
    media = MediaList(SEES, bare=True, keeps=keeps)
    for each in given:
        media.add(each)
    return media


async def loaded(
    *lists: MediaList, loader: MediaLoader | None = None, tenant: str = "a"
) -> list[list[MediaFile]]:
    loader = loader or MediaLoader()
    with loader.room(tenant) as room:
        return await loader.load(lists, SEES.domains, tenant, room)


async def test_files_in_their_order() -> None:
    answer = says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")
    async with internet(answer) as net:
        media = listed(
            GivenMedia("image", data_url(CAT), "a", "low"),
            GivenMedia("image", "http://pictures.test/cat", "b"),
            GivenMedia("video", base64_of(FILM), "c", num_frames=4),
        )
        files = await loaded(media, loader=MediaLoader(net.fetcher()))
    assert files == [
        [
            MediaFile("image", (CAT,), "low"),
            MediaFile("image", (b"cat",)),
            MediaFile("video", (FILM,), "auto", 4),
        ]
    ]
    assert [each.source for each in media.given] == [(), (), ()] and media.files == []
    assert media.names == {"media": "a", "media[0]": "a", "media[1]": "b", "media[2]": "c"}


async def test_others_get_turns() -> None:
    """Between the slices of a long text."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count())
    (files,) = await loaded(listed(GivenMedia("image", data_url(bytes(3_000_000)), "a")))
    other.cancel()
    assert files[0].frames == (bytes(3_000_000),) and turns >= 4_000_000 // SLICE_CHARS


async def test_a_video_of_pictures() -> None:
    url = data_url(CAT, DOG, CAT, kind="video/jpeg")
    assert (await loaded(listed(GivenMedia("video", url, "v"))))[0][0].frames == (CAT, DOG, CAT)
    with pytest.raises(RequestError, match="v is not valid base64"):
        await loaded(listed(GivenMedia("image", url, "v")))
    for bad in (url + ",", url.replace(",", ",,")):
        with pytest.raises(RequestError, match="v must have 1 to 20000000 bytes"):
            await loaded(listed(GivenMedia("video", bad, "v")))
    many = data_url(*[b"a"] * (MAX_FRAMES + 1))
    with pytest.raises(RequestError, match="v has more than 768 pictures"):
        await loaded(listed(GivenMedia("video", many, "v")))


async def test_what_several_name_is_loaded_once() -> None:
    answer = says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")
    url = "http://pictures.test/cat"
    async with internet(answer) as net:
        urls = [url] * 4 + ["".join([*url])]  # equal, and another object
        lists = [listed(GivenMedia("image", each, "a"), keeps=True) for each in urls]
        files = await loaded(*lists, loader=MediaLoader(net.fetcher()))
    assert len(net.connected) == 1 and len({id(each[0].frames[0]) for each in files}) == 1
    assert [each.files for each in lists] == files


async def test_room_is_held_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_CALLER_BYTES", 300)
    loader = MediaLoader()
    cat = GivenMedia("image", data_url(b"c" * 100), "a")
    with loader.room("a") as room:
        files = await loader.load([listed(cat)], (), "a", room)
        assert len(files[0][0].frames[0]) == 100
        with pytest.raises(RequestError) as caught:
            await loaded(listed(cat), loader=loader)
        assert (caught.value.info.code, caught.value.info.retryable) == (OVERLOADED, True)
        await loaded(listed(cat), loader=loader, tenant="another")
    await loaded(listed(cat), loader=loader)


async def test_texts_take_room_until_all_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there as long, although some have become files."""
    monkeypatch.setattr(load, "MAX_CALLER_BYTES", 1000)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int) -> list[str]:
        began.set()
        await go_on.wait()
        return []

    loader = MediaLoader(Fetcher(slow))
    large = GivenMedia("image", data_url(b"c" * 330), "a")  # and 462 characters
    web = GivenMedia("image", "http://pictures.test/", "w")
    request = asyncio.ensure_future(loaded(listed(large, web), loader=loader))
    await began.wait()
    cat = GivenMedia("image", data_url(b"c" * 100), "a")
    with pytest.raises(RequestError) as caught:
        await loaded(listed(cat), loader=loader)
    assert caught.value.info.code == OVERLOADED
    go_on.set()
    with pytest.raises(RequestError, match="w: its host is not known"):
        await request
    await loaded(listed(cat), loader=loader)


async def test_of_a_failure_no_fetch_is_left() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    web = GivenMedia("image", "http://pictures.test/", "w")
    bad = GivenMedia("image", "data:;base64,AAA", "b")
    with pytest.raises(RequestError, match="b is not valid base64"):
        await loaded(listed(web, bad), loader=MediaLoader(Fetcher(never)))
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (MediaRules(), "p: this model takes text only"),
        (MediaRules(frozenset({"video"})), "p: this model takes no pictures"),
        (MediaRules(frozenset({"image"}), 0), r"p: a request shows at most 0 .*\(--limit-media\)"),
        (MediaRules(frozenset({"image"})), "--media-domain"),
    ],
)
def test_refusals_before_anything_is_looked_at(rules: MediaRules, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        MediaList(rules).add(GivenMedia("image", "http://pictures.test/a", "p"))
    assert caught.value.info.param == "p"


def test_before_it_is_known_what_the_model_takes() -> None:
    with pytest.raises(RingError) as caught:
        MediaList(MediaRules(None)).add(GivenMedia("image", data_url(CAT), "p"))
    assert caught.value.info.retryable


def test_limits_are_those_of_one_request() -> None:
    assert RULES.limit == 3
    cat = GivenMedia("image", data_url(CAT), "p")
    with pytest.raises(RequestError, match="at most 3 pictures and videos"):
        listed(cat, cat, cat, cat)
