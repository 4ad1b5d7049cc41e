"""What happens when parts die, clients vanish and the server is stopped.

The bounds are generous, because the machine may be shared; the measured figures are printed.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.ring.places import send_now
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import Goodbye
from tests.e2e.server import Server, gone, running_server
from tests.waiting import SOON_S

LONG = {"max_new_tokens": 1200, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
TWO = {"max_new_tokens": 2, "temperature": 0}
PARTS = (
    "tokenizer",
    *(
        pytest.param(part, marks=pytest.mark.full)
        for part in ("gateway", "scheduler", "detokenizer")
    ),
)


class Stream:
    """One long streaming request; when it ended, and how."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended_at = 0.0
        self.error: Exception | None = None

    async def over_http(self, url: str) -> None:
        body = {"text": "Once upon a time", "stream": True, "sampling_params": LONG}
        try:
            async with (
                httpx2.AsyncClient(timeout=120) as client,
                client.stream("POST", url + "/generate", json=body) as response,
            ):
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if '"error"' in line:
                        raise RequestError(line)
                    if line.startswith("data:"):
                        self.started.set()
        except (httpx2.TransportError, RequestError) as error:
            self.error = error
        self.ended_at = time.monotonic()

    async def over_ring(self, client: AsyncClient) -> None:
        try:
            async for _ in client.stream("Once upon a time", sampling=LONG):
                self.started.set()
        except RequestError as error:
            self.error = error
        self.ended_at = time.monotonic()


@pytest.mark.parametrize("part", PARTS)
async def test_a_killed_part_fails_its_streams_at_once_and_comes_back(
    sacrificial: Server, part: str
) -> None:
    """kill -9 under 4 HTTP and 4 ZeroMQ streams. Every stream that needed the part ends with an
    error or a closed connection; the ring heals by itself; the next request is right. The
    gateway's death ends only the HTTP streams: the others finish. The scheduler's ends none (see
    test_resume)."""
    expected = httpx2.post(sacrificial.url + "/generate", json=short(), timeout=60).json()["text"]
    async with AsyncClient(sacrificial.ring) as client:
        http = [Stream() for _ in range(4)]
        ring = [Stream() for _ in range(4)]
        tasks = [asyncio.ensure_future(s.over_http(sacrificial.url)) for s in http]
        tasks += [asyncio.ensure_future(s.over_ring(client)) for s in ring]
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(stream.started.wait() for stream in http + ring))
        incarnation = sacrificial.incarnation()
        os.kill(sacrificial.pids()[part], signal.SIGKILL)
        killed_at = time.monotonic()
        hit = {"gateway": http, "scheduler": []}.get(part, http + ring)
        async with asyncio.timeout(SOON_S):
            while not all(stream.ended_at for stream in hit):
                await asyncio.sleep(0.005)
        assert all(stream.error is not None for stream in hit)
        worst = max([stream.ended_at for stream in hit], default=killed_at) - killed_at
        print(f"{part}: every stream ended within {1000 * worst:.0f} ms")
        # Not by the ring's silence, which all would notice after RING_LOST_S.
        assert not any("cannot be reached" in str(stream.error) for stream in hit)
        if part == "scheduler":  # nothing has ended that would show that all have heard of it
            await asyncio.to_thread(wait_ready_again, sacrificial, incarnation + 1)
        assert all(stream.error is None for stream in http + ring if stream not in hit)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(wait_ready_again, sacrificial)
    healed = time.monotonic() - killed_at
    print(f"{part}: whole again after {healed:.1f} s")
    assert (
        httpx2.post(sacrificial.url + "/generate", json=short(), timeout=60).json()["text"]
        == expected
    )
    await asyncio.to_thread(sacrificial.wait_idle)


def wait_ready_again(server: Server, incarnation: int = 0) -> None:
    deadline = time.monotonic() + SOON_S
    while not (server.is_ready() and server.incarnation() >= incarnation):
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def short() -> dict[str, object]:
    return {
        "text": "The capital of France is",
        "sampling_params": {"max_new_tokens": 8, "temperature": 0},
    }


@pytest.mark.full
async def test_twenty_clients_that_vanish_leave_nothing_behind(sacrificial: Server) -> None:
    """10 HTTP and 10 ZeroMQ clients vanish mid-stream, without a message: their work ends."""
    streams = [Stream() for _ in range(20)]
    tasks = [asyncio.ensure_future(s.over_http(sacrificial.url)) for s in streams[:10]]
    clients = [await AsyncClient(sacrificial.ring).__aenter__() for _ in range(10)]
    pairs = zip(streams[10:], clients, strict=True)
    tasks += [asyncio.ensure_future(s.over_ring(client)) for s, client in pairs]
    async with asyncio.timeout(120):
        await asyncio.gather(*(stream.started.wait() for stream in streams))
    for client in clients:  # as if their process were killed: no goodbye, no abort
        link = client._transport._link
        await link._tasks.close()
        link._context.destroy()
        link._event = None
    for task in tasks[:10]:
        task.cancel()
    vanished_at = time.monotonic()
    steps = (await asyncio.to_thread(sacrificial.stats))["forward_steps_total"]
    stats = await asyncio.to_thread(sacrificial.wait_idle)
    print(
        f"20 clients gone: idle after {time.monotonic() - vanished_at:.2f} s, "
        f"{stats['forward_steps_total'] - steps} steps later"
    )
    assert stats["forward_steps_total"] - steps < 100  # of about 400 that each had left
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_slept_through_its_lease_starts_afresh(sacrificial: Server) -> None:
    """The server has ended its lease; its requests fail, and the next one works."""
    async with AsyncClient(sacrificial.ring) as client:
        generation = await client.submit(text="Hello", sampling=LONG, stream=True)
        with pytest.raises(RingError, match="gave it up"):
            async for _ in generation:
                # like the end of the lease
                send_now(client._transport._link._sockets.back, Goodbye())
        await client._transport.wait_ready(10)
        output = await client.generate("Hello", sampling=TWO)
        assert output.completion_tokens == 2
    await asyncio.to_thread(sacrificial.wait_idle)


async def test_an_abort_ends_the_request_and_its_stream(sacrificial: Server) -> None:
    async with AsyncClient(sacrificial.ring) as client:
        generation = await client.submit(text="Hello", sampling=LONG, stream=True, rid="mine")
        seen = 0
        async for output in generation:
            seen += 1
            if seen == 2 and output.finish is None:
                await client.abort("mine")
        assert output.finish is not None and output.finish.type == "abort"
        assert 2 <= output.completion_tokens == len(output.output_ids) < 400
    await asyncio.to_thread(sacrificial.wait_idle)


@pytest.mark.full
def test_a_killed_launcher_takes_everything_with_it(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        pids = list(server.pids().values())
        assert len(pids) == 6
        server.process.kill()
        killed_at = time.monotonic()
        server.process.wait()
    assert gone(pids, SOON_S), "processes outlive their launcher"
    print(f"launcher killed: all gone after {time.monotonic() - killed_at:.2f} s")
    deadline = time.monotonic() + SOON_S
    while server.directory.exists():
        assert time.monotonic() < deadline, "sockets are left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "all_get_it"),
    [
        pytest.param(signal.SIGTERM, False, id="SIGTERM"),
        pytest.param(signal.SIGTERM, True, id="SIGTERM to all", marks=pytest.mark.full),
        pytest.param(signal.SIGINT, True, id="SIGINT", marks=pytest.mark.full),
    ],
)
def test_a_signal_drains_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, all_get_it: bool
) -> None:
    """A request in flight finishes, new ones get a 503, then everything ends. Ctrl-C goes to the
    whole process group, as from a terminal, and SIGTERM may, as from a service manager."""

    async def scenario(server: Server) -> None:
        async with AsyncClient(server.ring) as client:
            sampling = {"max_new_tokens": 300, "ignore_eos": True, "speculative": "off"}
            generation = await client.submit(text="Hello", sampling=sampling)
            deadline = time.monotonic() + SOON_S
            if all_get_it:
                os.killpg(server.process.pid, number)
            else:
                server.process.send_signal(number)
            refused = None
            while refused is None and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                try:
                    await (await client.submit(text="too late", sampling=sampling)).aclose()
                except RequestError as error:
                    refused = error
            assert refused is not None and refused.info.http_status == 503
            assert (await generation.result()).completion_tokens == 300

    with running_server(tmp_path, "--drain-timeout", "60") as server:
        pids = list(server.pids().values())
        asyncio.run(scenario(server))
        assert server.process.wait(60) == 0
    assert gone(pids, SOON_S) and not server.directory.exists()
    assert "died" not in server.log()


def test_a_missing_model_is_one_line() -> None:
    import subprocess
    import sys

    result = subprocess.run(
        [sys.executable, "-m", "srt.launch", "--model", "/nowhere/model"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("srt: model '/nowhere/model' not found")
    assert result.stderr.count("\n") == 1
