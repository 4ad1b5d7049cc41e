"""A forked child that works for its parent: it closes the parent's resources, and dies with it.

For running what others wrote, such as a user's grammar or a model's template: only a separate
process can be stopped for certain.
"""

import ctypes
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from srt.ring.child import STOP_SIGNAL

# Time by the clock of a child for which only CPU time is given: it may get little of it.
WALL_S, WALL_FACTOR = 20.0, 5.0
_READ_BYTES = 2**16
_STDERR_FD = 2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a child must not wait for the loader's lock


def detach(parent: int, kept_fd: int, stderr_fd: int) -> None:
    """Called first in the child of process `parent`: releases signal handlers, standard streams,
    files and sockets, except `kept_fd`. Errors go to `stderr_fd`.

    A lock of another thread may stay held for ever here, so nothing that needs one is called.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before that
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (STOP_SIGNAL, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are the launcher's, which drains
        signal.signal(number, signal.SIG_IGN)
    os.dup2(stderr_fd, _STDERR_FD)
    os.closerange(_STDERR_FD + 1, kept_fd)
    os.closerange(kept_fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def limit_memory(num_bytes: int) -> tuple[int, int]:
    """Limit this process to this much memory above what it inherited, and to no core files.
    Returns the limits on memory (RLIMIT_AS) that held before."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return _allow(num_bytes)


@contextmanager
def memory_limited(num_bytes: int) -> Iterator[None]:
    """Limit this process to this much memory above what it has, for a while."""
    before = _allow(num_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _allow(num_bytes: int) -> tuple[int, int]:
    """Set the limit on memory, as far as a lower one does not hold; those that held before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        present = int(statm.read().split()[0]) * resource.getpagesize()
    ceiling, hard = present + num_bytes, before[1]
    resource.setrlimit(resource.RLIMIT_AS, (ceiling if hard < 0 else min(ceiling, hard), hard))
    return before


def ends_in_time(work: Callable[[], object], cpu_s: float, num_bytes: int) -> bool:
    """Whether `work`, tried in a child, returns or raises an Exception within these limits."""

    def tried() -> bytes:
        with suppress(Exception):
            work()
        return b""

    return result_in_time(tried, cpu_s, num_bytes) is not None


def result_in_time(work: Callable[[], bytes], cpu_s: float, num_bytes: int) -> bytes | None:
    """What `work` returns in a child; None if it raises, or does not end within these limits. By
    the clock it has several times as long, in case it waits for something."""
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            detach(parent, writer, os.open(os.devnull, os.O_WRONLY))
            limit_memory(num_bytes)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            with open(writer, "wb") as pipe:
                pipe.write(work())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    deadline, result = time.monotonic() + WALL_S + WALL_FACTOR * cpu_s, b""
    ready = select.poll()  # descriptors may have any number
    ready.register(reader, select.POLLIN)
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        data = os.read(reader, _READ_BYTES)
        if not data:
            break
        result += data
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    return result if os.waitpid(pid, 0)[1] == 0 else None
