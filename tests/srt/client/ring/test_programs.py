"""A client's questions to the part that runs programs."""

import asyncio
from types import SimpleNamespace
from typing import Any

from srt.client.ring.programs import RingPrograms
from srt.ring.inbox import Dropped
from srt.wire.errors import RingError


async def test_an_answer_that_cannot_be_decoded_fails_all_who_wait() -> None:
    """It may be anybody's. The next ones are read."""
    link: Any = SimpleNamespace(listeners=[], dropped=Dropped())
    programs, frames = RingPrograms(link), asyncio.Queue[list[bytes]]()
    frames.put_nowait([b"\xc1"])
    programs._waiting["a"] = queue = asyncio.Queue[Any]()
    socket: Any = SimpleNamespace(receive=frames.get)
    reading = asyncio.ensure_future(programs._read(socket))
    error = await queue.get()
    assert isinstance(error, RingError) and "could not be understood" in str(error)
    assert link.dropped.count == 1 and not reading.done()
    reading.cancel()
