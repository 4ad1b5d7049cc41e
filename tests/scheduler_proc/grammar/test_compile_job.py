"""Children that misbehave are ended in time, told apart, and hurt nobody else."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.job import Limits, Outcome, run_in_child

ROOMY = Limits(20.0, 512 * 2**20)


async def run(work: Callable[[], Outcome], limits: Limits = ROOMY) -> Outcome:
    async with asyncio.timeout(30):
        return await run_in_child(work, limits)


def fails(error: BaseException) -> Callable[[], Outcome]:
    def work() -> Outcome:
        raise error

    return work


async def test_an_outcome_comes_back() -> None:
    assert await run(lambda: Outcome("ok", "done")) == Outcome("ok", "done")


async def test_a_grammar_error_is_for_the_user() -> None:
    error = GrammarError("unbalanced ) at position 3")
    assert await run(fails(error)) == Outcome("invalid", "unbalanced ) at position 3")
    long = await run(fails(GrammarError("é" * 100_000)))
    assert long.status == "invalid" and len(long.reason) == 2000


async def test_nesting_too_deep_is_invalid() -> None:
    def work() -> Outcome:
        return work()

    assert await run(work) == Outcome("invalid", "it is nested too deeply")


async def test_a_defect_is_reported_with_its_traceback() -> None:
    outcome = await run(fails(KeyError("what")))
    assert outcome.status == "crash"
    assert "KeyError: 'what'" in outcome.reason and "exit status 1" in outcome.reason


async def test_a_crash_is_reported() -> None:
    def work() -> NoReturn:
        os.write(2, b"assertion failed")
        os.abort()

    outcome = await run(work)
    assert outcome.status == "crash"
    assert "SIGABRT" in outcome.reason and "assertion failed" in outcome.reason


def sleeps() -> NoReturn:
    while True:
        time.sleep(1)


def loops() -> NoReturn:
    while True:
        pass


@pytest.mark.parametrize("work", [sleeps, loops])
async def test_a_child_that_does_not_end_is_killed(work: Callable[[], Outcome]) -> None:
    pids: list[int] = []
    started = time.monotonic()
    others = [asyncio.ensure_future(run(lambda: Outcome("ok"))) for _ in range(3)]
    outcome = await run_in_child(work, Limits(0.5, 2**29), pids.append)
    assert outcome == Outcome("time")
    assert time.monotonic() - started >= 0.5
    assert await asyncio.gather(*others) == [Outcome("ok")] * 3
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_memory_is_limited() -> None:
    def allocates() -> Outcome:
        # So large that each is mapped by itself: what this process has freed is of no use.
        held = [bytearray(60 * 2**20) for _ in range(10)]
        return Outcome("ok", str(len(held)))

    assert await run(allocates, Limits(20.0, 64 * 2**20)) == Outcome("memory")
    assert await run(allocates, Limits(20.0, 2**30)) == Outcome("ok", "10")


@pytest.mark.parametrize("words", ["memory allocation of 8 bytes failed", "std::bad_alloc"])
async def test_native_code_that_aborts_without_memory(words: str) -> None:
    def work() -> NoReturn:
        os.write(2, words.encode())
        os.abort()

    assert await run(work) == Outcome("memory")


async def test_killed_by_the_kernel_counts_as_memory() -> None:
    def work() -> Outcome:
        os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("ok")

    assert await run(work) == Outcome("memory")


async def test_cancelling_kills() -> None:
    pids: list[int] = []
    task = asyncio.ensure_future(run_in_child(sleeps, ROOMY, pids.append))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_a_child_has_none_of_its_parents_files_and_handlers() -> None:
    ours, theirs = socket.socketpair()

    def work() -> Outcome:
        kept = [fd for fd in range(3, 64) if _is_open(fd)]
        alike = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        return Outcome("ok", f"{len(kept)} {alike}")

    with ours, theirs:
        assert await run(work) == Outcome("ok", "1 True")  # the pipe of its outcome
        fds = len(os.listdir("/proc/self/fd"))
        await run(work)
        assert len(os.listdir("/proc/self/fd")) == fds  # and its parent keeps none of its


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_child_dies_with_its_parent() -> None:
    """kill -9 of a parent: the child, which sleeps for ever, goes too."""
    code = (
        "import asyncio, time\n"
        "from scheduler_proc.grammar.job import Limits, run_in_child\n"
        "def work():\n"
        "    import os; os.write(1, f'{os.getpid()}\\n'.encode())\n"
        "    time.sleep(60)\n"
        "asyncio.run(run_in_child(work, Limits(60.0, 2**28)))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.kill(child, 0) == 0
    parent.kill()
    parent.wait(10)
    assert parent.stdout.read() == b""  # which ends when the child, who has it too, has ended
    parent.stdout.close()
