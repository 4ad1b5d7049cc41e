"""The process that the tokenizer's children are forked from, and its parent's side of it.

A forked process keeps the memory that its parent had, also what the parent frees later, and to fork
a large process takes long. So the tokenizer, which holds users' files, forks no children itself:
before any request comes it forks this process, which does nothing but fork them and wait for them.
"""

import asyncio
import errno
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from struct import Struct
from typing import NamedTuple, NoReturn

from srt.ring.forked import detach

# To the forker: a child's number, and what to fork, with the child's socket; or to kill it.
_ORDER, _KILL = Struct("<Ii"), -1
# From it: a child's number, its pid, and its wait status; or the error if it could not be forked.
_NEWS, _RUNS = Struct("<Iii"), -1

# A child's whole life, called in it with its socket and its parent's pid.
Live = Callable[[socket.socket, int], NoReturn]


class Life:
    """A child, and our end of the socket to it. `ended` is its wait status."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.socket = number, connection
        self.started: asyncio.Future[int] = loop.create_future()  # its pid
        self.ended: asyncio.Future[int] = loop.create_future()


class Forker:
    """Forks children of the kinds that were added before `start`."""

    def __init__(self) -> None:
        self._kinds: list[Live] = []
        self._lives: dict[int, Life] = {}
        self._number = 0
        self._control: socket.socket | None = None
        self._is_lost = asyncio.Event()
        self.pid = 0

    def add(self, live: Live) -> int:
        """The number of a kind of children."""
        assert self._control is None, "it has started"
        self._kinds.append(live)
        return len(self._kinds) - 1

    def start(self) -> None:
        """Fork the process, in a loop. Whatever memory this one has now, all children will have."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as undo, theirs:
            undo.callback(ours.close)
            parent = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                _serve(theirs, parent, self._kinds)
            undo.pop_all()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)

    async def fork(self, kind: int) -> Life:
        """A new child. Raises OSError if there is none."""
        if self._control is None:
            raise OSError("there is no process that forks")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ExitStack() as undo, theirs:
            undo.callback(ours.close)
            self._number += 1
            life = Life(self._number, ours)
            order = _ORDER.pack(life.number, kind)
            socket.send_fds(self._control, [order], [theirs.fileno()])
            self._lives[life.number] = life
            undo.callback(self.kill, life)
            await life.started
            undo.pop_all()
        return life

    def kill(self, life: Life) -> None:
        """Kill a child, unless it has ended."""
        if self._control is not None and life.number in self._lives:
            with suppress(OSError):  # it is lost, and its children with it
                self._control.send(_ORDER.pack(life.number, _KILL))

    async def watch(self) -> None:
        """Raises RuntimeError when the process has ended: another one would have what this process
        holds by now."""
        await self._is_lost.wait()
        _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        raise RuntimeError(
            f"the process that forks the tokenizer's children ended with status {status}"
        )

    async def close(self) -> None:
        """End the process and its children."""
        if self._control is not None:
            self._lose()
            os.kill(self.pid, signal.SIGKILL)  # it was not waited for
            await asyncio.to_thread(os.waitpid, self.pid, 0)

    def _hear(self) -> None:
        assert self._control is not None
        try:
            news = self._control.recv(_NEWS.size)
        except BlockingIOError:
            return
        except OSError:
            news = b""
        if not news:
            self._lose()
            self._is_lost.set()
            return
        number, pid, status = _NEWS.unpack(news)
        life = self._lives[number]
        if status == _RUNS:
            if not life.started.done():  # nobody waits any more
                life.started.set_result(pid)
            return
        del self._lives[number]
        if pid:
            if not life.ended.done():  # cancelled with whoever waited
                life.ended.set_result(status)
        elif not life.started.done():
            life.started.set_exception(OSError(status, os.strerror(status)))

    def _lose(self) -> None:
        """It forks no more; its children die with it."""
        control, self._control = self._control, None
        assert control is not None
        asyncio.get_running_loop().remove_reader(control)
        control.close()
        for life in self._lives.values():
            if not life.started.done():
                life.started.set_exception(OSError("the process that forks has ended"))
            if not life.ended.done():
                life.ended.set_result(signal.SIGKILL)
        self._lives.clear()


# ---- in the forker -----------------------------------------------------------------------------


class _Child(NamedTuple):
    number: int
    pid: int


def _serve(control: socket.socket, parent: int, kinds: list[Live]) -> NoReturn:
    """The process's whole life. It ends with its parent only, or when that closes."""
    try:
        detach(parent, control.fileno(), os.open(os.devnull, os.O_WRONLY))
        running: dict[int, _Child] = {}  # by descriptors that become readable when they end
        poll = select.poll()
        poll.register(control, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd != control.fileno():
                    child = running.pop(fd)
                    poll.unregister(fd)
                    os.close(fd)
                    control.send(_NEWS.pack(*child, os.waitpid(child.pid, 0)[1]))
                elif (forked := _obey(control, kinds, running)) is not None:
                    pidfd, child = forked
                    running[pidfd] = child
                    poll.register(pidfd, select.POLLIN)
                    control.send(_NEWS.pack(*child, _RUNS))
    finally:
        os._exit(1)


def _obey(
    control: socket.socket, kinds: list[Live], running: dict[int, _Child]
) -> tuple[int, _Child] | None:
    """Carry out an order; the child, with its descriptor, if one was forked."""
    data, fds, _, _ = socket.recv_fds(control, _ORDER.size, 1)
    if not data:
        os._exit(0)  # the parent has closed
    number, kind = _ORDER.unpack(data)
    if kind == _KILL:
        for child in running.values():
            if child.number == number:
                os.kill(child.pid, signal.SIGKILL)  # it was not waited for
        return None
    try:
        if not fds:
            raise OSError(errno.EMFILE, "")
        with socket.socket(fileno=fds[0]) as connection:
            forker = os.getpid()
            pid = os.fork()
            if pid == 0:
                kinds[kind](connection, forker)
        return _watched(pid), _Child(number, pid)
    except OSError as error:
        control.send(_NEWS.pack(number, 0, error.errno or errno.EIO))
        return None


def _watched(pid: int) -> int:
    """A descriptor that becomes readable when a child ends. Raises OSError, and there is no child
    any more."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
