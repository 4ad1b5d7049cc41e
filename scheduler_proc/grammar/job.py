"""Runs one function in a forked child, within limits of time and memory, and can kill it.

The compile worker runs each compilation so: a child starts in milliseconds with everything the
worker has loaded, and whatever a hostile constraint does to it, the worker lives on. The child
uses none of its parent's sockets, files or threads, and dies with it.
"""

import asyncio
import contextlib
import ctypes
import math
import os
import resource
import signal
import traceback
from collections.abc import Callable
from typing import Literal, NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from scheduler_proc.grammar.artefact import MAX_BYTES
from scheduler_proc.grammar.base import GrammarError

MAX_REPORT_BYTES = 16 * 1024  # below a pipe's capacity: a child never waits for its reader
_MAX_REASON_CHARS = 2000
_STDERR_FD = 2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a child must not wait for the loader's lock
# What allocators write before they abort: of Rust, of C++.
_OUT_OF_MEMORY = (b"memory allocation of", b"bad_alloc")

Status = Literal["ok", "cached", "invalid", "time", "memory", "crash"]


class Limits(NamedTuple):
    """Of one child: seconds of wall-clock time, bytes of memory above what it inherits."""

    seconds: float
    num_bytes: int


class Outcome(Struct, frozen=True, array_like=True):
    """How a child ended. `reason` is for the user if it is "invalid", else for the log.

    ok, cached: it did its work, or found it done. invalid: it raised GrammarError, or nested too
    deeply. time, memory: it was over that limit. crash: anything else.
    """

    status: Status
    reason: str = ""


class _Inherited(NamedTuple):
    """What a child has of its parent: its pid, and the files for its outcome and its errors."""

    parent: int
    report: int
    stderr: int


async def run_in_child(
    work: Callable[[], Outcome], limits: Limits, on_end: Callable[[int], None] | None = None
) -> Outcome:
    """Call `work` in a child and return what it returned, or how it failed otherwise.

    `on_end` is called with the child's pid when it has ended. Cancelling kills the child.
    """
    report_end, child_end = os.pipe()
    stderr = os.memfd_create("stderr")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(work, limits, _Inherited(parent, child_end, stderr))
    os.close(child_end)
    timed_out, status = False, 0
    try:
        async with asyncio.timeout(limits.seconds):
            await _wait(pid)
    except TimeoutError:
        timed_out = True
    finally:
        status = _reap(pid)
        report, errors = _read(report_end), _read(stderr, seek=True)
        if on_end is not None:
            on_end(pid)
    return _judge(report, errors, status, timed_out)


async def _wait(pid: int) -> None:
    """Until the child has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _reap(pid: int) -> int:
    """Make sure that the child has ended; its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it does nothing to one that has ended
    return os.waitpid(pid, 0)[1]


def _read(fd: int, seek: bool = False) -> bytes:
    """What a child left in a pipe or memory file, which is closed."""
    if seek:
        os.lseek(fd, max(0, os.fstat(fd).st_size - MAX_REPORT_BYTES), os.SEEK_SET)
    try:
        return os.read(fd, MAX_REPORT_BYTES)
    finally:
        os.close(fd)


def _judge(report: bytes, errors: bytes, status: int, timed_out: bool) -> Outcome:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 and report:
        return msgspec.msgpack.decode(report, type=Outcome)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if timed_out or number == signal.SIGXCPU:
        return Outcome("time")
    if number == signal.SIGKILL or any(words in errors for words in _OUT_OF_MEMORY):
        return Outcome("memory")  # SIGKILL is the kernel's, out of memory
    end = (
        signal.Signals(number).name
        if number
        else f"exit status {os.waitstatus_to_exitcode(status)}"
    )
    return Outcome("crash", f"{end}: {errors.decode(errors='replace').strip()}")


# ---- in the child ----------------------------------------------------------------------------


def _live(work: Callable[[], Outcome], limits: Limits, inherited: _Inherited) -> NoReturn:
    """The child's whole life. Nothing may be raised out of it, into its parent's code."""
    status = 1
    try:
        _detach(inherited)
        ceiling = _limit(limits)
        try:
            outcome = work()
        except GrammarError as error:
            outcome = Outcome("invalid", str(error).strip()[:_MAX_REASON_CHARS])
        except RecursionError:
            outcome = Outcome("invalid", "it is nested too deeply")
        except MemoryError:
            outcome = Outcome("memory")
        resource.setrlimit(resource.RLIMIT_AS, ceiling)
        os.write(inherited.report, msgspec.msgpack.encode(outcome))
        status = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(_STDERR_FD, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _detach(inherited: _Inherited) -> None:
    """Let go of what is the parent's: signal handlers, standard streams, files, sockets. Another
    thread's lock may be held for ever here, so nothing that needs one is called."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != inherited.parent:  # it died before that
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(inherited.stderr, _STDERR_FD)
    os.closerange(_STDERR_FD + 1, inherited.report)
    os.closerange(inherited.report + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _limit(limits: Limits) -> tuple[int, int]:
    """Set the limits, and return those on memory that held before."""
    seconds = math.ceil(limits.seconds) + 1  # for the case that the parent cannot kill
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        inherited = int(statm.read().split()[0]) * resource.getpagesize()
    ceiling = inherited + limits.num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (ceiling if hard < 0 else min(ceiling, hard), hard))
    return soft, hard
