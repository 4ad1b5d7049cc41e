"""Requests that end their scheduler end alone, whatever they do to it; their company goes on."""

import asyncio
import os
import signal
import time
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.ring.crash_file import Record, left_by
from srt.ring.places import RING_LOST_S
from srt.wire.errors import RequestError
from tests.e2e.faulty_scheduler import (
    CONSTRAINT_CRASHES,
    CRASHES,
    FAILS,
    IS_KILLED,
    RUNS_FOR_EVER,
    WAITS_FOR_EVER,
)
from tests.e2e.sacrificial import STEP_TIMEOUT_S, Sacrificial
from tests.e2e.server import Server
from tests.waiting import SOON_S

LONG: dict[str, Any] = {
    "max_new_tokens": 150,
    "ignore_eos": True,
    "temperature": 0.0,
    "speculative": "off",
}
FULL = pytest.mark.full
TEXTS = ["Once upon a time", "My name is", "The capital of France is", "In the beginning", "1 2 3"]


def incarnation(client: AsyncClient) -> int:
    number: int = client._transport.ring.incarnation
    return number


@pytest.fixture(scope="module")
def expected(sacrificial_server: Sacrificial) -> list[str]:
    """What the company gets where nothing happens."""
    server = sacrificial_server.whole()

    async def alone() -> list[str]:
        async with AsyncClient(server.ring) as client:
            return await answers(client)

    return asyncio.run(alone())


async def answers(client: AsyncClient) -> list[str]:
    """Those of the company."""
    calls = (client.generate(text, sampling=LONG) for text in TEXTS)
    return [output.text for output in await asyncio.gather(*calls)]


async def end_of(client: AsyncClient, token: int, number: int) -> RequestError | None:
    """What becomes of a request with this token, which comes in the middle of the others."""
    own: dict[str, Any] = {"regex": "[a-z ]{200}"} if token == CONSTRAINT_CRASHES else {}
    try:
        ids = [1, 2, 3, 100 + number, token]
        await (await client.submit(input_ids=ids, sampling=LONG | own)).result()
    except RequestError as error:
        return error
    return None


async def crimes(
    server: Server, expected: list[str], token: int, count: int
) -> tuple[list[RequestError | None], int]:
    """What becomes of so many such requests, and how many schedulers were lost; the company gets
    what it gets without them."""
    async with AsyncClient(server.ring) as client, asyncio.timeout(SOON_S):
        before = incarnation(client)
        company = asyncio.ensure_future(answers(client))
        steps = (await client.stats())["forward_steps_total"]
        while (await client.stats())["forward_steps_total"] < steps + 20:
            await asyncio.sleep(0.002)
        ends = await asyncio.gather(*(end_of(client, token, i) for i in range(count)))
        assert await company == expected
        lost = incarnation(client) - before
    await asyncio.to_thread(server.wait_idle)
    return list(ends), lost


@pytest.mark.parametrize(
    ("token", "lost"),
    [
        pytest.param(CRASHES, [2], id="crashes", marks=FULL),
        # 1 if the scheduler has seen a loss before
        pytest.param(CONSTRAINT_CRASHES, [1, 2], id="its constraint crashes", marks=FULL),
        pytest.param(RUNS_FOR_EVER, [2], id="runs for ever", marks=FULL),
        pytest.param(WAITS_FOR_EVER, [2], id="waits for ever", marks=FULL),
        pytest.param(IS_KILLED, [3], id="is killed", marks=FULL),
    ],
)
async def test_one_that_ends_its_scheduler_ends_alone(
    sacrificial: Server, expected: list[str], token: int, lost: list[int]
) -> None:
    logged = len(sacrificial.log())
    (end,), schedulers = await crimes(sacrificial, expected, token, 1)
    assert end is not None and (end.info.http_status, end.info.retryable) == (503, True)
    assert "nothing but this request" in end.info.message
    assert schedulers in lost
    if token == RUNS_FOR_EVER:  # a hang is told with its stack, its step and the server's numbers
        log = sacrificial.log()[logged:]
        for text in ("in _run_for_ever", "a step hangs", "its last step: ", "'num_running_reqs': "):
            assert text in log, text


@FULL
async def test_two_at_once_are_both_found(sacrificial: Server, expected: list[str]) -> None:
    """In three losses if one step had both, else in two for each."""
    ends, schedulers = await crimes(sacrificial, expected, CRASHES, 2)
    assert [end is not None and end.info.http_status for end in ends] == [503, 503]
    assert schedulers in (3, 4)
    log = sacrificial.log()
    assert "is ended: a scheduler died when it ran only this" in log
    assert "Segmentation fault" in log and "in run" in log


@FULL
async def test_rows_that_fail_by_themselves(sacrificial: Server, expected: list[str]) -> None:
    """One of them is an error of its own; two might be the process's: it starts anew."""
    (end,), schedulers = await crimes(sacrificial, expected, FAILS, 1)
    assert end is not None and end.info.http_status == 500 and schedulers == 0
    ends, schedulers = await crimes(sacrificial, expected, FAILS, 2)
    assert [end is not None and end.info.http_status for end in ends] == [500, 500]
    assert schedulers <= 1


@FULL
async def test_stopping_the_whole_server_is_no_hang(
    sacrificial: Server, expected: list[str]
) -> None:
    """As with Ctrl-Z, for longer than a step may take, in the middle of one."""

    async def answer(http: httpx2.AsyncClient, text: str) -> str:
        body = {"text": text, "sampling_params": LONG}
        response = await http.post("/generate", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["text"])

    async with httpx2.AsyncClient(base_url=sacrificial.url, timeout=SOON_S) as http:
        before, first = sacrificial.incarnation(), sacrificial.stats()["forward_steps_total"]
        company = asyncio.gather(*(answer(http, text) for text in TEXTS))
        async with asyncio.timeout(SOON_S):
            while (await asyncio.to_thread(sacrificial.stats))["forward_steps_total"] < first + 10:
                await asyncio.sleep(0.002)
        os.killpg(sacrificial.process.pid, signal.SIGSTOP)
        await asyncio.sleep(1.2 * max(RING_LOST_S, STEP_TIMEOUT_S))
        os.killpg(sacrificial.process.pid, signal.SIGCONT)
        assert await company == expected
        assert sacrificial.incarnation() == before


@FULL
async def test_a_batch_of_one_that_is_killed_goes_on(sacrificial: Server) -> None:
    """Also when it is killed in its trial, once; it has several steps, which this process may sleep
    through on a busy machine: then again."""
    text = TEXTS[0] * 300
    async with AsyncClient(sacrificial.ring) as client, asyncio.timeout(2 * SOON_S):
        expected = (await client.generate(text, sampling=LONG)).text
        for _ in range(5):
            before = left_by(sacrificial.directory, sacrificial.incarnation()).record
            call = asyncio.ensure_future(client.generate(text, sampling=LONG))
            was_killed = [
                await killed(sacrificial, client, call, before, it) for it in (False, True)
            ]
            assert (await call).text == expected
            if all(was_killed):
                break
        assert all(was_killed)
    await asyncio.to_thread(sacrificial.wait_idle)


async def killed(
    server: Server, client: AsyncClient, call: asyncio.Future[Any], before: Record, is_trial: bool
) -> bool:
    """Kill the scheduler in a step of the call, and wait for the next one; False if the call has
    ended before."""
    number = incarnation(client)
    if not await asyncio.to_thread(kill_in_step, server, number, before, is_trial, call):
        return False
    while incarnation(client) == number:
        await asyncio.sleep(0.002)
    return True


def kill_in_step(
    server: Server, incarnation: int, before: Record, is_trial: bool, call: asyncio.Future[Any]
) -> bool:
    """Kill the scheduler of this incarnation, of which the gateway may not yet have heard, at the
    step of a request that came after `before`; False if the call has ended."""
    deadline = time.monotonic() + SOON_S
    while (pid := server.pids().get("scheduler")) is None:
        assert time.monotonic() < deadline
    while not call.done():
        assert time.monotonic() < deadline
        os.kill(pid, signal.SIGSTOP)
        record = left_by(server.directory, incarnation).record
        if len(record.running) == 1 and record != before and record.is_trial == is_trial:
            os.kill(pid, signal.SIGKILL)
            return True
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
    return False
