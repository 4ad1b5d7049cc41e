"""The life of a forked child: it gets one job, does it within limits of time and memory, reports
the outcome, and ends.

Called by `children`, in the child. A child uses none of its parent's sockets, files or threads,
and dies with it.
"""

import contextlib
import errno
import math
import os
import resource
import socket
import time
import traceback
from typing import Literal, NamedTuple, NoReturn, Protocol

import msgspec
from msgspec import Struct

from scheduler_proc.grammar.artefact import MAX_BYTES
from scheduler_proc.grammar.base import GrammarError
from srt.ring.forked import detach, limit_memory

MAX_REPORT_BYTES = 16 * 1024  # below a socket's capacity: a child never waits for its reader
_MAX_REASON_CHARS = 2000
_STDERR_FD = 2
# Of the whole machine or this user, in time they may end.
SHORTAGES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
)
_CHUNK_BYTES = 2**18

Status = Literal["ok", "cached", "invalid", "time", "starved", "memory", "full", "crash"]


class Limits(NamedTuple):
    """Of one child: seconds of CPU time, bytes of memory above what it inherits, and seconds by
    the clock: a busy machine may give a child little of it."""

    seconds: float
    num_bytes: int
    wall_s: float


class Outcome(Struct, frozen=True, array_like=True):
    """How a child ended. `reason` is for the user if it is "invalid", else for the log.

    ok, cached: it did its work, or found it done. invalid: it raised GrammarError, or nested too
    deeply. time (of CPU), memory: it was over that limit. starved: it did not end within its limit
    by the clock. full: the disk is full, or no process, file or memory of the machine is left.
    crash: anything else.
    """

    status: Status
    reason: str = ""
    at: str = ""  # the path of what is "invalid", in a constraint that is JSON


class Work(Protocol):
    """What children do. All methods are called in a child."""

    def rehearse(self) -> None:
        """Touch what a job will need: called in a child that was forked ahead of its job."""

    def do(self, job: bytes) -> Outcome:
        """Raises what becomes its outcome: GrammarError, MemoryError, RecursionError."""

    def finish(self, job: bytes) -> None:
        """What is left to do when the outcome "ok" has been sent. Raises OSError if the machine
        does not allow it: its text goes to the log."""


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
        detach(inherited.parent, inherited.socket.fileno(), inherited.stderr)
        if ahead:
            work.rehearse()
        ceiling = _limit(limits)
        job = _received(inherited.socket)
        outcome = _outcome(work, job)
        resource.setrlimit(resource.RLIMIT_AS, ceiling)
        inherited.socket.sendall(msgspec.msgpack.encode(outcome))
        inherited.socket.shutdown(socket.SHUT_WR)
        try:
            if outcome.status == "ok":
                work.finish(job)
            status = 0
        except OSError as error:
            os.write(_STDERR_FD, str(error).encode())
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
        reason, at = error.message.strip(), error.at
        return Outcome("invalid", reason[:_MAX_REASON_CHARS], at[:_MAX_REASON_CHARS])
    except RecursionError:
        return Outcome("invalid", "it is nested too deeply")
    except MemoryError:
        return Outcome("memory")
    except OSError as error:
        if error.errno in SHORTAGES:
            return Outcome("full", os.strerror(error.errno))
        raise


def _limit(limits: Limits) -> tuple[int, int]:
    """Set the limits, and return those on memory that held before."""
    # In case the parent cannot kill it.
    seconds = math.ceil(time.process_time() + limits.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))
    return limit_memory(limits.num_bytes)
