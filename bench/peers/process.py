"""Runs a server for a while: on a free port, its log in a file, from ready until stopped.

`running` is what the benchmark uses; the process never outlives it.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2

from bench.peers.catalogue import Peer

STOP_TIMEOUT_S = 30.0
POLL_S = 0.1
LOG_TAIL = 2000


class StartError(Exception):
    """The server ended, or was not ready in time."""


@asynccontextmanager
async def running(
    peer: Peer, model: Path, log: Path, extra: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Start `peer` and give its URL. Raises StartError with the end of its log."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *peer.command(model, port),
            *extra,
            env=os.environ | peer.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        await _wait_ready(process, url + peer.ready_path, peer.start_timeout_s, log)
        yield url
    finally:
        await _stop(process)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _wait_ready(
    process: asyncio.subprocess.Process, url: str, timeout_s: float, log: Path
) -> None:
    try:
        async with asyncio.timeout(timeout_s), httpx2.AsyncClient() as http:
            while not await _is_ready(http, url):
                if process.returncode is not None:
                    raise StartError(f"ended with status {process.returncode}:\n{_tail(log)}")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise StartError(f"not ready after {timeout_s:.0f} s:\n{_tail(log)}") from None


async def _is_ready(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    # Children are in the leader's process group: what it leaves running is killed with it.
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
