"""The feed: one look for all pages, none without pages."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from srt.gateway.introspection import feed as module
from srt.gateway.introspection.feed import MAX_BEHIND, MAX_PAGES, Facts, Feed, Page
from srt.wire.errors import RequestError, RingError
from tests.fakes import LOOK, READY, FakeClient
from tests.waiting import SOON_S

FACTS = Facts("tiny", "0.1", 2048, 4096)


class Counted(FakeClient):
    """Counts what it is asked, and shows another tree each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def look(self) -> list[dict[str, Any]]:
        self.asked["look"] += 1
        number = self.asked["look"]
        return [LOOK | {"nodes": [(number, 0, 0, 4, 0, 0, 0, 4, 9)], "matches": number}]

    async def stats(self) -> dict[str, Any]:
        self.asked["stats"] += 1
        return await super().stats()


def feed_of(client: FakeClient) -> Feed:
    return Feed(client, FACTS, lambda: {"ttft_s": None, "itl_s": [0.1, 0.2]})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)


async def events_of(frames: AsyncGenerator[bytes, None]) -> list[dict[str, Any]]:
    """The events that come next, at once."""
    async with asyncio.timeout(SOON_S):
        data = b""
        while not data.startswith(b"data"):
            data = await anext(frames)
    found = []
    for frame in data.decode().split("\n\n")[:-1]:
        assert frame.startswith("data: ")
        found.append(msgspec.json.decode(frame.removeprefix("data: ")))
    return found


async def test_a_page_gets_everything_and_then_changes() -> None:
    feed = feed_of(Counted())
    page = feed.open()
    frames = page.events()
    first = await events_of(frames)
    assert [event["type"] for event in first] == ["hello", "pulse", "tree", "queue"]
    assert all(event["t"] > 1e9 for event in first)
    hello, pulse, tree, queue = first
    assert (hello["model"], hello["context_len"], hello["replicas"]) == ("tiny", 2048, 1)
    assert pulse["latency"] == {"ttft_s": None, "itl_s": [0.1, 0.2]}
    assert pulse["replicas"][0]["cached_tokens_total"] == 7
    assert tree["full"] and queue["num_running"] == 0
    later = await events_of(frames)
    assert [event["type"] for event in later] == ["pulse", "tree"]
    assert later[1]["removed"] == [tree["nodes"][0][0]] and not later[1]["full"]
    await page.aclose()


async def test_one_look_serves_all_pages_and_none_is_taken_for_nobody() -> None:
    client = Counted()
    feed = feed_of(client)
    assert client.asked == {}
    pages = [feed.open() for _ in range(20)]
    streams = [page.events() for page in pages]
    for stream in streams:
        assert (await events_of(stream))[0]["type"] == "hello"
    looks = client.asked["look"]
    before = [await events_of(stream) for stream in streams]
    assert all(each == before[0] for each in before)
    assert client.asked["look"] - looks <= 3
    late = feed.open()
    assert (await events_of(late.events()))[2]["full"]
    for page in [*pages, late]:
        await page.aclose()
    asked = client.asked["look"]
    await asyncio.sleep(0.05)
    assert client.asked["look"] == asked
    again = feed.open()  # it begins anew
    assert (await events_of(again.events()))[0]["type"] == "hello"
    await again.aclose()


async def test_a_page_that_reads_slowly_gets_everything_again() -> None:
    client = Counted()
    feed = feed_of(client)
    page = feed.open()
    frames = page.events()
    await events_of(frames)
    start = client.asked["look"]
    async with asyncio.timeout(SOON_S):
        while client.asked["look"] < start + 2 * MAX_BEHIND:
            await asyncio.sleep(0.01)
    found = await events_of(frames)
    assert found[0]["type"] == "hello" and found[2]["full"]
    await page.aclose()


async def test_runs_are_told_with_looks_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUN_BYTES", 5000)
    feed = feed_of(Counted())
    about = {"run": "a", "name": "judge", "started": 1.0, "ended": None}

    def steps(first: int, count: int) -> list[dict[str, Any]]:
        return [{"id": f"0/{first + i}", "after": [], "text": "x" * 600} for i in range(count)]

    def runs_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if event["type"] == "run"]

    feed.runs.add(about, steps(0, 2))  # before anybody looks
    page = feed.open()
    frames = page.events()
    (whole,) = runs_in(await events_of(frames))
    assert [step["id"] for step in whole["steps"]] == ["0/0", "0/1"] and whole["t"] > 1e9
    feed.runs.add(about, steps(2, 20))
    told: list[str] = []
    async with asyncio.timeout(SOON_S):
        while len(told) < 20:
            for event in runs_in(await events_of(frames)):
                assert len(event["steps"]) <= 8
                told += [step["id"] for step in event["steps"]]
    assert told == [f"0/{number}" for number in range(2, 22)]
    await page.aclose()
    assert feed.runs.news(5000) == []


async def test_schedulers_that_do_not_answer_are_shown_as_such() -> None:
    client = FakeClient()
    client.looks = []
    client.statistics = RingError("restarting")
    feed = feed_of(client)
    page = feed.open()
    hello, pulse = await events_of(page.events())
    assert hello["type"] == "hello" and pulse["replicas"] == []
    assert [part["name"] for part in pulse["parts"]] == ["launcher", "scheduler"]
    await page.aclose()


async def test_a_new_incarnation_begins_anew() -> None:
    client = FakeClient()
    feed = feed_of(client)
    page = feed.open()
    frames = page.events()
    assert (await events_of(frames))[0]["incarnations"] == [0]
    client.ring = msgspec.structs.replace(READY, incarnations=[1])
    found = await events_of(frames)
    while found[0]["type"] != "hello":
        found = await events_of(frames)
    assert found[0]["incarnations"] == [1] and found[2]["full"]
    await page.aclose()


async def test_pages_end_with_the_server() -> None:
    client = FakeClient()
    feed = feed_of(client)
    frames = feed.open().events()
    await events_of(frames)
    client.ring = msgspec.structs.replace(READY, draining=True)
    async with asyncio.timeout(SOON_S):
        async for _ in frames:
            pass


async def test_a_defect_ends_the_pages(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    client.looks = [{"replica": 0}]
    frames = feed_of(client).open().events()
    async with asyncio.timeout(SOON_S):
        assert [frame async for frame in frames] == []
    assert "feed has failed" in caplog.text


async def test_pages_are_bounded() -> None:
    feed = feed_of(FakeClient())
    pages: list[Page] = [feed.open() for _ in range(MAX_PAGES)]
    with pytest.raises(RequestError, match="pages watch this server already"):
        feed.open()
    await pages.pop().aclose()
    pages.append(feed.open())
    for page in pages:
        await page.aclose()


async def test_pages_end_when_keys_change() -> None:
    feed = feed_of(Counted())
    streams = [feed.open().events() for _ in range(2)]
    for stream in streams:
        await events_of(stream)
    feed.end_pages()
    async with asyncio.timeout(SOON_S):
        for stream in streams:
            assert [frame async for frame in stream] == []
    page = feed.open()
    first = await events_of(page.events())
    assert first[0]["type"] == "hello" and first[0]["whole"]
    await page.aclose()
