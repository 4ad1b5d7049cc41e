"""One forked child that does one piece of work at a time, within limits.

The tokenizer process has what users send read by such children: a text, a picture. The work may run
for ever, take all memory or crash the process: so a child has limits of CPU time, of time by the
clock and of memory for each piece, and if it dies only that piece fails and another is forked.
"""

import asyncio
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BufferedIOBase, BufferedReader
from typing import Literal, NoReturn

import numpy as np

from srt.ring.forked import detach, limit_memory
from srt.ring.socket import Blob
from tokenizer_proc.children.forker import Forker, Life

log = logging.getLogger(__name__)

MEMORY_BYTES = 2 * 2**30
# The number of frames that follow, each behind its length, and the CPU time that they may take.
_HEAD, _LENGTH = struct.Struct("<Id"), struct.Struct("<Q")
_MAX_READ, _SHORT_BYTES = 2**20, 2**14
MAX_ANSWER_BYTES, _MAX_FRAMES = 2**30, 2**16
MAX_END_S = 5.0  # how long the end of a killed child may take to be told

Work = Callable[[list[memoryview]], Sequence[Blob]]  # frames to frames; called in the child


class ChildDied(Exception):
    """A child ended before it answered: "time", its CPU time was over; "starved", it did not answer
    in time by the clock, or was stopped; "none", no child could be forked; "crash", all else."""

    def __init__(self, how: Literal["time", "starved", "none", "crash"]) -> None:
        super().__init__(how)
        self.how = how


class Child:
    """Does `work` in a child that `forker` forks when there is none. `what` it is, for the log; it
    is `niceness` nicer than this process."""

    def __init__(self, forker: Forker, work: Work, what: str, niceness: int = 0) -> None:
        self._forker, self._what = forker, what
        self._kind = forker.add(partial(_live, work, niceness))
        self._life: Life | None = None

    @property
    def pid(self) -> int:
        """The child's; 0 if there is none."""
        return self._life.pid if self._life is not None else 0

    async def ask(self, frames: Sequence[Blob], cpu_s: float, wall_s: float) -> list[memoryview]:
        """What `work` makes of the frames, in this CPU time and time by the clock. Large frames are
        sent and received in parts: the loop goes on meanwhile. Cancelling kills the child.

        Raises ChildDied.
        """
        try:
            async with asyncio.timeout(wall_s):
                life = await self._ready()
                return await _exchange(life.socket, frames, cpu_s)
        except TimeoutError:
            self.close()
            log.warning("a %s did not answer in %.0f s", self._what, wall_s)
            raise ChildDied("starved") from None
        except (OSError, EOFError) as error:
            self.close()
            status = await _status_of(life)
            log.warning("a %s ended with status %d: %s", self._what, status, type(error).__name__)
            if life.is_given_up:
                raise ChildDied("starved") from None
            ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            raise ChildDied("time" if ended_by == signal.SIGPROF else "crash") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the child, if there is one."""
        life, self._life = self._life, None
        if life is not None:
            life.socket.close()
            self._forker.kill(life)

    async def _ready(self) -> Life:
        """A child that lives: it may have been killed while it waited. Raises ChildDied."""
        if self._life is not None and not _waits(self._life):
            self.close()
        if self._life is None:
            try:
                self._life = await self._forker.fork(self._kind)
            except OSError as error:
                log.warning("no %s could be started: %s", self._what, error)
                raise ChildDied("none") from None
        return self._life


async def _status_of(life: Life) -> int:
    """How a child that is killed has ended; 0 if that is not told in time."""
    try:
        async with asyncio.timeout(MAX_END_S):
            return await asyncio.shield(life.ended)
    except TimeoutError:
        return 0


def _waits(life: Life) -> bool:
    """Whether a child has neither ended nor said anything."""
    try:
        life.socket.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


async def _exchange(
    connection: socket.socket, frames: Sequence[Blob], cpu_s: float
) -> list[memoryview]:
    """Give a child these frames; its answer. Raises OSError, and EOFError."""
    loop = asyncio.get_running_loop()
    for number, part in enumerate(_parts(_framed(frames, cpu_s))):
        if number > 0:
            await asyncio.sleep(0)  # it does not wait while there is room
        await loop.sock_sendall(connection, part)
    answer = _Answer(connection, memoryview(await loop.sock_recv(connection, _SHORT_BYTES)))
    count, _ = _HEAD.unpack(await answer.take(_HEAD.size))
    lengths = await answer.take(_LENGTH.size * min(count, _MAX_FRAMES))
    sizes = [size for (size,) in _LENGTH.iter_unpack(lengths)]
    if count > _MAX_FRAMES or sum(sizes) > MAX_ANSWER_BYTES:
        raise EOFError  # it is not itself any more
    taken = [await answer.take(size) for size in sizes]
    if answer.has_more:
        raise EOFError
    return taken


def _framed(frames: Sequence[Blob], cpu_s: float) -> list[Blob]:
    """What is written for these frames, which are not copied if they are large."""
    lengths = b"".join(_LENGTH.pack(len(frame)) for frame in frames)
    head = _HEAD.pack(len(frames), cpu_s) + lengths
    if sum(map(len, frames)) <= _SHORT_BYTES:
        return [b"".join((head, *frames))]
    return [head, *(frame for frame in frames if len(frame))]


def _parts(blobs: Sequence[Blob]) -> Iterator[memoryview]:
    for blob in blobs:
        data = memoryview(blob)
        for start in range(0, len(data), _MAX_READ):
            yield data[start : start + _MAX_READ]


class _Answer:
    """What a child writes, of which the beginning is here: a short answer is read at once."""

    def __init__(self, connection: socket.socket, here: memoryview) -> None:
        self._connection, self._here = connection, here

    @property
    def has_more(self) -> bool:
        return len(self._here) > 0

    async def take(self, size: int) -> memoryview:
        """The next bytes. Raises OSError, and EOFError."""
        taken, self._here = self._here[:size], self._here[size:]
        if len(taken) == size:
            return taken
        loop, data, done = asyncio.get_running_loop(), _buffer(size), len(taken)
        data[:done] = taken
        while done < size:
            count = await loop.sock_recv_into(self._connection, data[done : done + _MAX_READ])
            if count == 0:
                raise EOFError
            done += count
            if done < size:
                await asyncio.sleep(0)  # it does not wait while there is data
        return data.toreadonly()


def _buffer(size: int) -> memoryview:
    """Room for this many bytes. A bytearray would be filled with zeros first."""
    return np.empty(size, np.uint8).data


# ---- in the child ------------------------------------------------------------------------------


def _live(work: Work, niceness: int, connection: socket.socket, parent: int) -> NoReturn:
    """The child's whole life. No exception may leave it and reach its parent's code."""
    try:
        # What a library writes when it panics helps nobody.
        detach(parent, connection.fileno(), os.open(os.devnull, os.O_WRONLY))
        os.nice(niceness)
        limit_memory(MEMORY_BYTES)
        stream = BufferedReader(connection.makefile("rb", 0), _SHORT_BYTES)
        while True:
            count, seconds = _HEAD.unpack(_read(stream, _HEAD.size))
            lengths = _read(stream, _LENGTH.size * count)
            sizes = [size for (size,) in _LENGTH.iter_unpack(lengths)]
            # When this time is over, the kernel ends the process, whatever it is doing.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answer = work([_read(stream, size) for size in sizes])
            signal.setitimer(signal.ITIMER_PROF, 0)
            for data in _framed(answer, 0.0):
                connection.sendall(data)
            del answer
    finally:
        os._exit(1)


def _read(stream: BufferedIOBase, size: int) -> memoryview:
    data = _buffer(size)
    if stream.readinto(data) < size:
        os._exit(0)  # the parent has closed
    return data
