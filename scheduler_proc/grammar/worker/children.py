"""Runs each job in a forked child of its own, which has limits and can be killed.

The compile worker runs each compilation like this. A child is forked before there is a job for it,
and rehearses: that takes several times longer than most compilations, because a child copies each
page of its parent's memory that it is the first to touch. Its outcome is read as soon as it is
sent; whatever a hostile job does to the child, the worker lives on.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from math import inf
from typing import NamedTuple

import msgspec

from scheduler_proc.grammar.worker.job import (
    MAX_REPORT_BYTES,
    Inherited,
    Limits,
    Outcome,
    Work,
    live,
)
from srt.tasks import TaskSet

log = logging.getLogger(__name__)

# How long a child may go on once its outcome is known, and how many children may do so: if there
# are more, the next job waits for one of them.
FINISH_S = 10.0
MAX_FINISHING = 4
TELL_AGAIN_S = 600.0  # a reason not to finish, if it is the same for each child
# What allocators write before they abort: of Rust, of C++.
_OUT_OF_MEMORY = (b"memory allocation of", b"bad_alloc")
_CPU_CLOCK = 2  # in the kernel's number of a process's clock: of all its threads, running or not
_CPU_CHECK_S = 0.01
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class _Child(NamedTuple):
    """A child that is alive or was not waited for: its pid, a descriptor that becomes readable when
    it ends, our end of the socket to it, and the file for its errors."""

    pid: int
    pidfd: int
    socket: socket.socket
    stderr: int


class _End(NamedTuple):
    """How a child ended: its wait status, and the end of its errors."""

    status: int
    errors: bytes


class Children:
    """At most one child waits for a job; any number run, as the caller says."""

    def __init__(
        self, work: Work, limits: Limits, clean_up: Callable[[int], None] = lambda pid: None
    ) -> None:
        """`limits` hold for each job. `clean_up` is called with the pid of each child that has
        ended badly, or was killed."""
        self._work, self._limits, self._clean_up = work, limits, clean_up
        self._spare: _Child | None = None
        self._finishing = TaskSet(lambda error: log.error("nobody saw a child end: %s", error))
        self._closed = False
        self._told, self._told_at = "", -inf  # the last reason not to finish in the log, and when

    def prepare(self) -> None:
        """Fork the child of the next job, if there is none. Called in the loop."""
        if self._spare is None and not self._closed:
            try:
                self._spare = self._fork(ahead=True)
            except OSError as error:  # no process or file left: the next job will say so
                log.warning("no child was forked ahead: %s", error)

    async def run(self, job: bytes) -> Outcome:
        """The outcome of a job (which is not empty): its child's report, or how the child failed.

        Cancelling kills the child. Raises OSError if none can be forked.
        """
        while len(self._finishing) >= MAX_FINISHING:
            await self._finishing.one_ends()
        child = self._take() or self._fork(ahead=False)
        report, overrun, has_ended = b"", None, False
        limits = self._limits
        try:
            async with asyncio.timeout(limits.wall_s) as timeout:
                with _CpuLimit(child.pid, limits.seconds, timeout) as cpu:
                    report = await _exchange(child, job)
            has_ended = not report
        except TimeoutError:
            overrun = Outcome("time" if cpu.is_over else "starved")
        finally:
            if not has_ended:
                self._see_off(child, kill=not report)
            if not self._closed:
                asyncio.get_running_loop().call_soon(self.prepare)
        if has_ended:
            return _judge(*self._end(child))
        return _decoded(report) if overrun is None else overrun

    async def close(self) -> None:
        """Kill those that wait or finish. What runs is ended by cancelling it."""
        self._closed = True
        if self._spare is not None:
            self._end(self._spare)
            self._spare = None
        await self._finishing.close()

    def _take(self) -> _Child | None:
        """The child that waits, if it lives."""
        child, self._spare = self._spare, None
        if child is not None and os.waitid(os.P_PID, child.pid, _HAS_ENDED) is not None:
            end = self._end(child)
            log.warning("a child ended while it waited: %s", _judge(*end).reason)
            return None
        return child

    def _fork(self, ahead: bool) -> _Child:
        with ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                stderr = os.memfd_create("stderr")
                undo.callback(os.close, stderr)
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    live(self._work, self._limits, Inherited(parent, theirs, stderr), ahead)
            undo.callback(_kill, pid)
            child = _Child(pid, os.pidfd_open(pid), ours, stderr)
            undo.pop_all()
        ours.setblocking(False)
        return child

    def _see_off(self, child: _Child, *, kill: bool) -> None:
        """Let a child finish, or kill it, and wait for its end in a task: on a busy machine a child
        of low priority takes long to give back its memory."""
        if kill:
            os.kill(child.pid, signal.SIGKILL)
        task = self._finishing.start(_ended(child, FINISH_S))
        task.add_done_callback(lambda task: self._finished(task, child, kill))

    def _finished(self, task: "asyncio.Task[None]", child: _Child, killed: bool) -> None:
        """Log why a child did not finish, unless that was the last reason in the log, a short time
        ago: many may meet the same full disk."""
        status, errors = self._end(child)
        if killed or task.cancelled():
            return
        why, now = _judge(status, errors).reason if status else "", time.monotonic()
        if why and (why != self._told or now - self._told_at >= TELL_AGAIN_S):
            log.warning("a child did not finish: %s", why)
            self._told, self._told_at = why, now

    def _end(self, child: _Child) -> _End:
        """Make sure that a child has ended, and release what is left of it."""
        status = _kill(child.pid)
        if status:
            self._clean_up(child.pid)
        os.lseek(child.stderr, max(0, os.fstat(child.stderr).st_size - MAX_REPORT_BYTES), 0)
        errors = os.read(child.stderr, MAX_REPORT_BYTES)
        os.close(child.stderr)
        os.close(child.pidfd)
        child.socket.close()
        return _End(status, errors)


class _CpuLimit:
    """Within it, `timeout` ends early when a child has used this many seconds of CPU time."""

    def __init__(self, pid: int, seconds: float, timeout: asyncio.Timeout) -> None:
        self._clock, self._timeout = (~pid << 3) | _CPU_CLOCK, timeout
        self._end = time.clock_gettime(self._clock) + seconds
        self._loop = asyncio.get_running_loop()
        self.is_over = False

    def __enter__(self) -> "_CpuLimit":
        self._timer = self._loop.call_later(0, self._check)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        """Look now, and again when it may be over: CPU time hardly runs faster than the clock."""
        left = self._end - time.clock_gettime(self._clock)
        if left <= 0:
            self.is_over = True
            self._timeout.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(max(left, _CPU_CHECK_S), self._check)


def _kill(pid: int) -> int:
    """Make sure that a child has ended; its wait status."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # this does nothing to a child that has ended
    return os.waitpid(pid, 0)[1]


async def _exchange(child: _Child, job: bytes) -> bytes:
    """Give a child its job; its report, or nothing if it ended without one."""
    loop, report = asyncio.get_running_loop(), b""
    try:
        await loop.sock_sendall(child.socket, job)
        child.socket.shutdown(socket.SHUT_WR)
        while len(report) <= MAX_REPORT_BYTES:
            part = await loop.sock_recv(child.socket, MAX_REPORT_BYTES)
            if not part:
                break
            report += part
    except ConnectionError:
        return b""
    return report


async def _ended(child: _Child, seconds: float) -> None:
    """Wait until a child has ended or the time is over."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(child.pidfd, ended.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
    finally:
        loop.remove_reader(child.pidfd)


def _decoded(report: bytes) -> Outcome:
    try:
        return msgspec.msgpack.decode(report, type=Outcome)
    except msgspec.MsgspecError as error:
        return Outcome("crash", f"its report does not decode: {error}")


def _judge(status: int, errors: bytes) -> Outcome:
    """The outcome of a child that sent none."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return Outcome("time")
    if number == signal.SIGKILL or any(words in errors for words in _OUT_OF_MEMORY):
        return Outcome("memory")  # SIGKILL is the kernel's, out of memory
    end = (
        signal.Signals(number).name
        if number
        else f"exit status {os.waitstatus_to_exitcode(status)}"
    )
    return Outcome("crash", f"{end}: {errors.decode(errors='replace').strip()}")
