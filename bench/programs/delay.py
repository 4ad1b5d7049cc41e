"""A TCP proxy that delays what passes: a round trip through it takes so much longer.

Bytes keep their order; the first ones of a connection wait a whole round trip more, as for its
handshake.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
CHUNK_BYTES = 64 * 1024
MAX_CHUNKS = 1024  # on their way, in each direction of a connection


def _nobody(data: bytes) -> None:
    """Look at no data."""


@contextmanager
def relayed(
    address: str, round_trip_s: float, look: Callable[[bytes], None] = _nobody
) -> Iterator[str]:
    """The tcp:// address of a proxy to the tcp:// `address`, which runs in a thread of its own;
    `look` gets, in that thread, whatever passes in either direction."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    loop, ports = asyncio.new_event_loop(), []
    is_open, ends = threading.Event(), asyncio.Event()

    async def serve() -> None:
        try:
            async with delayed(host, int(port), round_trip_s, look) as own:
                ports.append(own)
                is_open.set()
                await ends.wait()
        finally:
            is_open.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="proxy")
    thread.start()
    try:
        is_open.wait()
        yield f"tcp://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def delayed(
    host: str, port: int, round_trip_s: float, look: Callable[[bytes], None] = _nobody
) -> AsyncIterator[int]:
    """The port of a proxy to `host:port`, for a while. `look` gets whatever passes."""
    ends: set[asyncio.Task[Any]] = set()
    writers: set[asyncio.StreamWriter] = set()

    def kept(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        ends.add(task)
        task.add_done_callback(ends.discard)
        return task

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        there, back = await kept(asyncio.open_connection(host, port))
        writers.add(back)
        one_way_s = round_trip_s / 2
        for way in (
            _pass(reader, back, look, one_way_s, first_s=round_trip_s),
            _pass(there, writer, look, one_way_s),
        ):
            kept(way)

    server = await asyncio.start_server(serve, "127.0.0.1")
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # those that have just come are among the ends
        for task in [*ends]:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for writer in writers:  # also those of tasks that had not begun
            writer.close()


async def _pass(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    look: Callable[[bytes], None],
    delay_s: float,
    first_s: float = 0.0,
) -> None:
    """Write what is read, each piece `delay_s` after it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)

    async def read() -> None:
        more_s = first_s
        with contextlib.suppress(OSError):  # the end was reset
            while data := await reader.read(CHUNK_BYTES):
                look(data)
                await pieces.put((loop.time() + delay_s + more_s, data))
                more_s = 0.0
        await pieces.put((loop.time() + delay_s, b""))

    source = asyncio.ensure_future(read())
    try:
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # an end has gone
    finally:
        source.cancel()
        await asyncio.gather(source, return_exceptions=True)
        with contextlib.suppress(OSError):
            writer.close()
