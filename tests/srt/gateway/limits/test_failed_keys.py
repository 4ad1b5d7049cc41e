"""Wrong keys: who waits, for how long, and what the log and the metrics say."""

import asyncio
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from srt.gateway.limits import failed_keys
from srt.gateway.limits.failed_keys import (
    FIRST_DELAY_S,
    HALF_LIFE_S,
    LOG_INTERVAL_S,
    MAX_ADDRESSES,
    MAX_DELAY_S,
    MAX_LINES,
    MAX_WAITING,
    MAX_WAITING_OF_ADDRESS,
    FailedKeys,
)
from srt.wire.errors import OVERLOADED, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served
from tests.waiting import SOON_S

KEYS: dict[str, Any] = {"api_keys": ("right",), "admin_keys": ("root",)}
WRONG, RIGHT, ROOT = ({"authorization": f"Bearer {key}"} for key in ("sesame", "right", "root"))


class Clock:
    """Time in seconds, which stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def delay(failed: FailedKeys, address: str) -> float:
    with failed.delay(address) as delay_s:
        return delay_s


def test_delays_grow_with_an_addresss_failures_and_shrink_with_time() -> None:
    clock = Clock()
    failed = FailedKeys(2048, clock)
    delays = [delay(failed, "203.0.113.1") for _ in range(20)]
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert delays == sorted(delays) and delays[-1] == MAX_DELAY_S
    assert delay(failed, "203.0.113.2") == FIRST_DELAY_S
    clock.now += 20 * HALF_LIFE_S
    assert delay(failed, "203.0.113.1") == pytest.approx(FIRST_DELAY_S, rel=0.01)


def test_an_ipv6_network_is_one_address_and_mapped_ones_are_ipv4() -> None:
    failed = FailedKeys(2048, Clock())
    assert delay(failed, "2001:db8::1") < delay(failed, "2001:db8::ffff:2")
    assert delay(failed, "2001:db8:0:1::1") == FIRST_DELAY_S
    assert [delay(failed, "::1"), delay(failed, "::2")] == [FIRST_DELAY_S] * 2
    assert delay(failed, "::ffff:203.0.113.1") < delay(failed, "203.0.113.1")


def test_what_is_held_is_bounded() -> None:
    failed = FailedKeys(2048, Clock())
    for i in range(MAX_ADDRESSES + 10):
        delay(failed, f"10.0.{i // 256}.{i % 256}")
    assert len(failed._addresses) == MAX_ADDRESSES and not failed._waiting
    with ExitStack() as waiting:
        for i in range(MAX_WAITING):
            waiting.enter_context(failed.delay(f"10.0.0.{i // MAX_WAITING_OF_ADDRESS}"))
        for address in ("10.0.0.0", "10.9.9.9"):
            with pytest.raises(RequestError, match="too many requests") as caught:
                delay(failed, address)
            assert caught.value.info.code == OVERLOADED
    delay(failed, "10.9.9.9")


def test_few_connections_leave_places_to_valid_keys() -> None:
    failed = FailedKeys(16, Clock())
    with failed.delay("10.0.0.1"), failed.delay("10.0.0.2"), pytest.raises(RequestError):
        delay(failed, "10.0.0.3")


def test_the_log_has_one_line_for_an_address_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failed = FailedKeys(2048, clock)
    for _ in range(5):
        delay(failed, "203.0.113.1")
    clock.now += LOG_INTERVAL_S
    delay(failed, "203.0.113.1")
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"requests from 203.0.113.1 with a wrong API key: {n}" for n in (1, 5)]
    for i in range(100):
        delay(failed, f"10.0.0.{i}")
    assert len(caplog.records) == 1 + MAX_LINES


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is longer than a test."""
    monkeypatch.setattr(failed_keys, "FIRST_DELAY_S", 60.0)
    monkeypatch.setattr(failed_keys, "MAX_DELAY_S", 60.0)


@pytest.mark.usefixtures("minute")
async def test_only_the_request_with_a_wrong_key_waits() -> None:
    """Without a key, or with a right one, the same address is answered meanwhile, and what expects
    an answer before its body is always."""
    async with in_process(FakeClient(), **KEYS) as http, asyncio.timeout(SOON_S):

        async def asked(headers: dict[str, str]) -> httpx2.Response:
            return await http.post("/generate", json={"text": "a"}, headers=headers)

        expecting = WRONG | {"expect": "100-continue"}
        assert (await asked(expecting)).status_code == 401
        some = range(MAX_WAITING_OF_ADDRESS + 1)
        tasks = [asyncio.ensure_future(asked(WRONG)) for _ in some]
        (refused,), waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (await asked(RIGHT)).status_code == 200
        assert (await asked({})).status_code == 401
        told = (await http.get("/metrics", headers=ROOT)).text
        assert len(waiting) == MAX_WAITING_OF_ADDRESS
        for task in waiting:
            task.cancel()
    assert refused.result().status_code == 429 and "retry-after" in refused.result().headers
    assert "wrong API keys" in error_of(refused.result())["message"]
    assert f"srt_failed_keys_total {len(some) + 1}.0" in told.splitlines()


@pytest.mark.usefixtures("minute")
async def test_a_wait_ends_with_its_client(caplog: pytest.LogCaptureFixture) -> None:
    async with served(FakeClient(), **KEYS) as server:
        before = asyncio.all_tasks()
        async with httpx2.AsyncClient(base_url=server.url, timeout=0.2) as http:
            with pytest.raises(httpx2.TimeoutException):
                await http.post("/generate", content=b"a" * 100_000, headers=WRONG)
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
    assert "a wrong API key" in caplog.text and "sesame" not in caplog.text
