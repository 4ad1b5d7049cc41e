"""The process that the tokenizer's children are forked from, and its parent's side of it.

A forked process keeps the memory that its parent had, also what the parent frees later, and to fork
a large process takes long. So the tokenizer, which holds users' files, forks no children itself:
before any request comes it forks this process, which does nothing but fork them and wait for them.

A process that stands still does not end: so the forker is asked for a sign of life, and the states
of all of them are looked at.
"""

import asyncio
import errno
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from struct import Struct
from time import monotonic
from typing import NamedTuple, NoReturn

from srt.ring.forked import detach

log = logging.getLogger(__name__)

# To the forker: a child's number, and what to fork, with the child's socket; or to kill it; or, of
# no child, to answer.
_ORDER, _KILL, _ANSWER = Struct("<Ii"), -1, -2
# From it: a child's number, its pid, and its wait status; or the error if it could not be forked.
# The number 0, which no child has, is an answer.
_NEWS, _RUNS = Struct("<Iii"), -1

LOOK_S = 0.5  # from one look at the processes to the next
STOPPED_S = 2.0  # of a process that a signal or a debugger has stopped: then it is given up
SILENT_S = 10.0  # of the forker: on a machine without free memory a fork may take seconds
STACK_S = 1.0  # for the forker, to write its stack
_STDERR_FD = 2

# A child's whole life, called in it with its socket and its parent's pid.
Live = Callable[[socket.socket, int], NoReturn]


class Standstill(Exception):
    """The forker has not answered for too long."""


class Life:
    """A child, and our end of the socket to it. `ended` is its wait status; `is_given_up` says that
    it was killed because it had been stopped."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.socket = number, connection
        self.started: asyncio.Future[int] = loop.create_future()  # its pid
        self.ended: asyncio.Future[int] = loop.create_future()
        self.stopped_s = 0.0
        self.is_given_up = False

    @property
    def pid(self) -> int:
        """0 as long as it is not known."""
        is_known = self.started.done() and not self.started.cancelled()
        return self.started.result() if is_known else 0


class Forker:
    """Forks children of the kinds that were added before `start`."""

    def __init__(self) -> None:
        self._kinds: list[Live] = []
        self._lives: dict[int, Life] = {}
        self._number = 0
        self._control: socket.socket | None = None
        self._is_lost = asyncio.Event()
        self._is_asked = False  # for an answer that has not come
        self._silent_s = 0.0
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
        """Look at the processes as long as the forker lives; kill children that are stopped.

        Raises RuntimeError when the forker has ended, and Standstill when it does not answer:
        another one would have what this process holds by now.
        """
        passed_s = 0.0
        while not self._is_lost.is_set():
            self._look(passed_s)
            began = monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_lost.wait()
            # Time in which this process stood still tells nothing of the others.
            passed_s = min(LOOK_S, monotonic() - began)
        _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        raise RuntimeError(
            f"the process that forks the tokenizer's children ended with status {status}"
        )

    def _look(self, passed_s: float) -> None:
        """Look once, so long after the last time. Raises Standstill."""
        for life in self._lives.values():
            is_stopped = life.pid > 0 and _is_stopped(life.pid)
            life.stopped_s = life.stopped_s + passed_s if is_stopped else 0.0
            if life.stopped_s >= STOPPED_S and not life.is_given_up:
                log.warning(
                    "process %d, a child of the tokenizer, is stopped: killing it", life.pid
                )
                life.is_given_up = True
                self.kill(life)
        self._silent_s += passed_s
        is_stopped = _is_stopped(self.pid)
        if self._silent_s >= (STOPPED_S if is_stopped else SILENT_S):
            state = ", it is stopped" if is_stopped else ""
            raise Standstill(
                f"process {self.pid}, which forks the tokenizer's children, has not answered for "
                f"{self._silent_s:g} s{state}"
            )
        if not self._is_asked and self._control is not None:
            with suppress(OSError):  # it has not read what was sent before, or is lost
                self._control.send(_ORDER.pack(0, _ANSWER))
                self._is_asked = True

    async def abort(self) -> None:
        """Have a process that does not answer write its stack, if it can. It dies with this one,
        also if it is stopped."""
        if not _is_stopped(self.pid):
            os.kill(self.pid, signal.SIGABRT)
            await asyncio.sleep(STACK_S)

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
        self._silent_s = 0.0
        if number == 0:
            self._is_asked = False
            return
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


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger. See proc(5), stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:  # it has ended
        return False


# ---- in the forker -----------------------------------------------------------------------------


class _Child(NamedTuple):
    number: int
    pid: int


def _serve(control: socket.socket, parent: int, kinds: list[Live]) -> NoReturn:
    """The process's whole life. It ends with its parent only, or when that closes."""
    try:
        detach(parent, control.fileno(), _STDERR_FD)  # where it writes its stack
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
    if kind == _ANSWER:
        control.send(_NEWS.pack(0, 0, 0))
        return None
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
