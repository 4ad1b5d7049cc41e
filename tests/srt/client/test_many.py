"""Batches: the order of their requests, and refusals for load, after which a request is sent again
when the server says."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from srt.client import many
from srt.client.generation import Request
from srt.client.many import Job, generate_many, key_of, patiently, run_jobs
from srt.client.media import Media, MediaFile, Picture, Video
from srt.wire.errors import BAD_REQUEST, OVERLOADED, RATE_LIMITED, RequestError
from tests.fakes import FakeClient
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output


def pauses_of(monkeypatch: pytest.MonkeyPatch, errors: list[RequestError]) -> list[float]:
    """The pauses between attempts; the first attempts fail with `errors`."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def ask() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(patiently(ask)) == "done"
    return pauses


def overloaded(**fields: Any) -> RequestError:
    return RequestError("full", code=OVERLOADED, retryable=True, **fields)


def test_the_server_is_asked_again_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = pauses_of(monkeypatch, [overloaded() for _ in range(8)])
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_its_own_word_counts_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [overloaded(retry_after_s=seconds) for seconds in (3.5, 0.0, 600.0)]
    errors[1] = RequestError("60 a minute", code=RATE_LIMITED, retryable=True)
    assert pauses_of(monkeypatch, errors) == [3.5, 0.1, 10.0]


def test_other_errors_are_raised() -> None:
    async def ask() -> None:
        raise RequestError("no", code=BAD_REQUEST)

    with pytest.raises(RequestError, match="no"):
        asyncio.run(patiently(ask))


class Ring:
    """A `Client` with only `submit_samples`, over a scheduler's core and a pool that holds some of
    the prompts; it steps while somebody waits."""

    def __init__(self, pool: int) -> None:
        self.driver = Driver(
            lag=1,
            check=False,
            max_total_tokens=pool,
            max_running_requests=16,
            max_wait_s=1e9,
        )

    async def submit_samples(self, request: Request) -> list[Any]:
        rid = f"r{self.driver.core.state.counters.requests}"
        self.driver.add(rid, request.input_ids or (), 1)
        return [Pending(self.driver, rid)]


class Pending:
    """One request of a `Ring`."""

    def __init__(self, driver: Driver, rid: str) -> None:
        self._driver, self._rid = driver, rid

    async def result(self) -> list[int]:
        while self._rid not in self._driver.finishes:
            self._driver.step()
            await asyncio.sleep(0)
        return self._driver.outputs[self._rid]

    async def aclose(self) -> None:
        pass


async def test_batches_reuse_what_their_prompts_share() -> None:
    """64 documents with 24 questions each, shuffled, in a pool that holds four: each document is
    computed once, although 256 requests are in flight; results are in the caller's order."""
    rng, ring = random.Random(0), Ring(pool=700)
    prompts = [[d, *range(100 + d, 200 + d), q] for d in range(64) for q in range(24)]
    rng.shuffle(prompts)
    requests = [Request(input_ids=ids) for ids in prompts]
    results: list[Any] = await generate_many(ring, requests)  # type: ignore[arg-type]
    assert results == [[reference_output(ids, 1)] for ids in prompts]
    computed = ring.driver.core.state.counters.computed_prompt_tokens
    assert computed <= 1.05 * (64 * 101 + len(prompts))


async def test_prompts_are_read_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request is sent before all are read, and at most MAX_IN_FLIGHT are read at once."""
    monkeypatch.setattr(many, "MAX_IN_FLIGHT", 8)
    client, events = FakeClient(), list[str]()
    reading = most = 0

    def job(i: int) -> Job:
        async def make() -> Request:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0.001)
            reading -= 1
            events.append(f"read {len(client.requests)}")
            return Request(text=f"{i:02}")

        return Job(key_of(f"{i:02}"), 1, make)

    outputs = await run_jobs(client, [job(i) for i in reversed(range(40))])
    assert len(outputs) == 40 and most == 8
    assert events[0] == "read 0" and events[-1] != "read 0"
    assert [request.text for request in client.requests[:8]] == [f"{i:02}" for i in range(8)]


async def test_what_is_no_prompt_is_refused_by_name() -> None:
    async def make() -> Request:
        raise RequestError(" must be integers", at="input_ids")

    jobs = [Job((1, ids), 1, make) for ids in ([1, "a"], [1, 2])]
    with pytest.raises(RequestError, match="input_ids"):
        await run_jobs(FakeClient(), jobs)


async def test_requests_that_show_the_same_follow_each_other() -> None:
    client = FakeClient()
    pictures: list[Media] = [Path(__file__), b"a" * 200, b"b" * 200]
    asked = [(f"question {i}", picture) for i in range(3) for picture in pictures]
    requests = [Request(text=text) for text, _ in asked]
    await generate_many(client, requests, [[picture] for _, picture in asked])
    shown = [request.media[0].frames for request in client.requests]
    assert len(client.requests) == 9 and len({*shown}) == 3
    assert [frames for frames, _ in itertools.groupby(shown)] == [*dict.fromkeys(shown)]
    again = [*client.requests]
    client.requests.clear()
    random.Random(0).shuffle(again)
    await generate_many(client, again)
    files = [request.media for request in client.requests]
    assert len([*itertools.groupby(files)]) == 3


def test_keys_have_no_files_in_them() -> None:
    data = bytes(10**6)
    message = {"role": "user", "content": [{"type": "image", "image": data}]}
    assert len(repr(key_of(None, messages=[message]))) < 1000
    assert len(repr(key_of("a", media=[data, Video([data]), MediaFile("image", (data,))]))) < 2000
    url = "data:image/png;base64," + "A" * 10**6
    assert len(repr(key_of("a", media=[Picture(url)]))) < 1000
    assert key_of("a", media=[data]) != key_of("a", media=[data + b"1"]) != key_of("b", media=[url])
