"""The life of a forked child: it gets one job, does it within limits of time and memory, tells the
outcome, and ends.

Called by `children`, in the child. A child uses none of its parent's sockets, files or threads,
and dies with it.
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import socket
import traceback
from typing import Literal, NamedTuple, NoReturn, Protocol

import msgspec
from msgspec import Struct

from scheduler_proc.grammar.artefact import MAX_BYTES
from scheduler_proc.grammar.base import GrammarError

MAX_REPORT_BYTES = 16 * 1024  # below a socket's capacity: a child never waits for its reader
_MAX_REASON_CHARS = 2000
_STDERR_FD = 2
_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 2**18
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a child must not wait for the loader's lock

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


class Work(Protocol):
    """What children do. All of it is called in a child."""

    def rehearse(self) -> None:
        """Touch what a job will need: called in a child that was forked ahead of its job."""

    def do(self, job: bytes) -> Outcome:
        """Raises what its outcome is told by: GrammarError, MemoryError, RecursionError."""

    def finish(self, job: bytes) -> None:
        """What is left to do when the outcome "ok" has been told."""


class Inherited(NamedTuple):
    """What a child has of its parent: its pid, its end of the socket between them, and the file
    for its errors."""

    parent: int
    socket: socket.socket
    stderr: int


def live(work: Work, limits: Limits, inherited: Inherited, ahead: bool) -> NoReturn:
    """The child's whole life. Nothing may be raised out of it, into its parent's code."""
    status = 1
    try:
        _detach(inherited)
        if ahead:
            work.rehearse()
        ceiling = _limit(limits)
        job = _received(inherited.socket)
        outcome = _outcome(work, job)
        resource.setrlimit(resource.RLIMIT_AS, ceiling)
        inherited.socket.sendall(msgspec.msgpack.encode(outcome))
        inherited.socket.shutdown(socket.SHUT_WR)
        if outcome.status == "ok":
            work.finish(job)
        status = 0
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(_STDERR_FD, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _received(connection: socket.socket) -> bytes:
    """Everything up to the end of what the parent sends."""
    parts = []
    while part := connection.recv(_CHUNK_BYTES):
        parts.append(part)
    return b"".join(parts)


def _outcome(work: Work, job: bytes) -> Outcome:
    try:
        return work.do(job)
    except GrammarError as error:
        return Outcome("invalid", str(error).strip()[:_MAX_REASON_CHARS])
    except RecursionError:
        return Outcome("invalid", "it is nested too deeply")
    except MemoryError:
        return Outcome("memory")


def _detach(inherited: Inherited) -> None:
    """Let go of what is the parent's: signal handlers, standard streams, files, sockets. Another
    thread's lock may be held for ever here, so nothing that needs one is called."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != inherited.parent:  # it died before that
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(inherited.stderr, _STDERR_FD)
    kept = inherited.socket.fileno()
    os.closerange(_STDERR_FD + 1, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


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
