"""Children that misbehave are ended in time, with the right outcome, and harm no others."""

import asyncio
import ctypes
import errno
import hashlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.worker import children as module
from scheduler_proc.grammar.worker.children import Children
from scheduler_proc.grammar.worker.job import Limits, Outcome, Status
from srt.ring.child import STOP_SIGNAL
from tests.waiting import SOON_S

WALL_S = 60.0
ROOMY = Limits(20.0, 512 * 2**20, WALL_S)
JOB = b"a job"


class Calls:
    """A `Work` made of functions."""

    def __init__(
        self,
        do: Callable[[], Outcome],
        finish: Callable[[], None] = lambda: None,
        rehearse: Callable[[], None] = lambda: None,
    ) -> None:
        self._do, self._finish, self._rehearse = do, finish, rehearse

    def rehearse(self) -> None:
        self._rehearse()

    def do(self, job: bytes) -> Outcome:
        assert job == JOB
        return self._do()

    def finish(self, job: bytes) -> None:
        assert job == JOB
        self._finish()


async def run(
    work: Callable[[], Outcome],
    limits: Limits = ROOMY,
    clean_up: Callable[[int], None] = lambda pid: None,
) -> Outcome:
    """Do the work in a child that is forked for it."""
    children = Children(Calls(work), limits, clean_up)
    try:
        async with asyncio.timeout(SOON_S):
            return await children.run(JOB)
    finally:
        await children.close()


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


async def test_a_full_disk_is_no_crash() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/a/path")
    assert await run(fails(full)) == Outcome("full", "No space left on device")
    defect = await run(fails(FileNotFoundError("a defect")))
    assert defect.status == "crash" and "Traceback" in defect.reason


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


@pytest.mark.parametrize(
    ("work", "limits", "status"),
    [(sleeps, Limits(0.2, 2**29, 0.5), "starved"), (loops, Limits(0.2, 2**29, WALL_S), "time")],
)
async def test_a_child_that_does_not_end_is_killed(
    work: Callable[[], Outcome], limits: Limits, status: Status
) -> None:
    pids: list[int] = []
    started = time.monotonic()
    others = [asyncio.ensure_future(run(lambda: Outcome("ok"))) for _ in range(3)]
    outcome = await run(work, limits, pids.append)
    assert outcome == Outcome(status)
    assert time.monotonic() - started >= 0.2
    assert await asyncio.gather(*others) == [Outcome("ok")] * 3
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def from_the_system(num_bytes: int) -> mmap.mmap:
    """Memory from the system: a child's limit does not cover what its parent had freed."""
    try:
        return mmap.mmap(-1, num_bytes)
    except OSError as error:
        raise MemoryError from error


async def test_memory_is_limited() -> None:
    def allocates() -> Outcome:
        held = [from_the_system(60 * 2**20) for _ in range(10)]
        return Outcome("ok", str(len(held)))

    assert await run(allocates, Limits(20.0, 64 * 2**20, WALL_S)) == Outcome("memory")
    assert await run(allocates, Limits(20.0, 2**30, WALL_S)) == Outcome("ok", "10")


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
    task = asyncio.ensure_future(run(sleeps, ROOMY, pids.append))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_a_child_has_none_of_its_parents_files_and_handlers() -> None:
    ours, theirs = socket.socketpair()

    def work() -> Outcome:
        kept = [fd for fd in range(3, 4096) if _is_open(fd)]
        alike = signal.getsignal(STOP_SIGNAL) == signal.SIG_DFL
        return Outcome("ok", f"{len(kept)} {alike}")

    with ours, theirs:
        assert await run(work) == Outcome("ok", "1 True")  # 1: its end of the socket
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
    """After kill -9 of a parent its child, which sleeps, ends too."""
    code = (
        "import asyncio, time\n"
        "from scheduler_proc.grammar.worker.children import Children\n"
        "from scheduler_proc.grammar.worker.job import Limits\n"
        "class Work:\n"
        "    def do(self, job):\n"
        "        import os; os.write(1, f'{os.getpid()}\\n'.encode())\n"
        "        time.sleep(60)\n"
        "asyncio.run(Children(Work(), Limits(60.0, 2**28, 60.0)).run(b'job'))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.kill(child, 0) == 0
    parent.kill()
    parent.wait(10)
    assert parent.stdout.read() == b""  # ends when the child, which has it too, has ended
    parent.stdout.close()


def busy(cpu: int) -> subprocess.Popen[bytes]:
    """A process that keeps a CPU busy, and has begun to."""
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); os.write(1, b'.')\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read(1) == b"."
    return process


@pytest.mark.full
async def test_the_time_limit_is_of_cpu_time() -> None:
    """Beside a busy process, a child of low priority takes longer than its limit by the clock, and
    still succeeds."""
    cpu = min(os.sched_getaffinity(0))

    def work() -> Outcome:
        os.sched_setaffinity(0, [cpu])
        os.nice(10)
        began = time.monotonic()
        while time.process_time() < 0.3:
            pass
        return Outcome("ok", str(time.monotonic() - began))

    other = busy(cpu)
    try:
        outcome = await run(work, Limits(0.6, 2**29, WALL_S))
    finally:
        other.kill()
        other.communicate()
    assert outcome.status == "ok" and float(outcome.reason) > 0.6


# ---- forked ahead, and finishing after -------------------------------------------------------


def tells_pid() -> Outcome:
    return Outcome("ok", str(os.getpid()))


def children_of_this_process() -> set[int]:
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return set(map(int, file.read().split()))


async def test_a_child_is_forked_ahead_of_each_job_and_does_one() -> None:
    """Before it gets its job it rehearses, without its limits."""
    before, marked = children_of_this_process(), bytearray(1)

    def rehearse() -> None:
        marked[0] += 1
        _ = bytearray(100 * 2**20)

    def work() -> Outcome:
        return Outcome("ok", f"{os.getpid()} {marked[0]}")

    children = Children(Calls(work, rehearse=rehearse), Limits(20.0, 64 * 2**20, WALL_S))
    seen = set()
    try:
        for _ in range(3):
            children.prepare()
            children.prepare()  # there is one already
            (waiting,) = children_of_this_process() - before
            assert await children.run(JOB) == Outcome("ok", f"{waiting} 1")
            seen.add(waiting)
            while len(children._finishing):
                await children._finishing.one_ends()
        assert len(seen) == 3 and children_of_this_process() - before
    finally:
        await children.close()
    assert children_of_this_process() == before


async def test_a_child_that_died_while_it_waited_costs_nobody_anything() -> None:
    before = children_of_this_process()
    children = Children(Calls(tells_pid), ROOMY)
    try:
        children.prepare()
        (waiting,) = children_of_this_process() - before
        os.kill(waiting, signal.SIGKILL)
        os.waitid(os.P_PID, waiting, os.WEXITED | os.WNOWAIT)
        outcome = await children.run(JOB)
        assert outcome.status == "ok" and outcome.reason != str(waiting)
    finally:
        await children.close()


@pytest.mark.parametrize("missing", ["socket.socketpair", "os.memfd_create", "os.pidfd_open"])
async def test_what_cannot_be_had_for_a_child_leaves_nothing_behind(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many files")

    before, files = children_of_this_process(), len(os.listdir("/proc/self/fd"))
    children = Children(Calls(tells_pid), ROOMY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(missing, fails)
            children.prepare()
            with pytest.raises(OSError, match="too many files"):
                await children.run(JOB)
        assert children_of_this_process() == before
        assert len(os.listdir("/proc/self/fd")) == files
    finally:
        await children.close()


async def test_a_rehearsal_that_fails_costs_nobody_anything() -> None:
    def rehearse() -> None:
        raise ValueError

    before = children_of_this_process()
    children = Children(Calls(tells_pid, rehearse=rehearse), ROOMY)
    try:
        children.prepare()
        (waiting,) = children_of_this_process() - before
        os.waitid(os.P_PID, waiting, os.WEXITED | os.WNOWAIT)
        assert (await children.run(JOB)).status == "ok"
    finally:
        await children.close()


async def test_the_limits_hold_in_a_child_that_was_forked_ahead() -> None:
    for work, outcome in ((sleeps, Outcome("starved")), (allocates_much, Outcome("memory"))):
        children = Children(Calls(work), Limits(1.0, 64 * 2**20, 1.0))
        try:
            children.prepare()
            await asyncio.sleep(1.2)  # waiting does not count as its time
            assert await children.run(JOB) == outcome
        finally:
            await children.close()


def allocates_much() -> Outcome:
    return Outcome("ok", str(len(from_the_system(200 * 2**20))))


async def test_a_long_job_is_given_whole() -> None:
    job = os.urandom(2**23)

    class Reads(Calls):
        def do(self, job: bytes) -> Outcome:
            return Outcome("ok", hashlib.sha256(job).hexdigest())

    children = Children(Reads(tells_pid), ROOMY)
    try:
        assert await children.run(job) == Outcome("ok", hashlib.sha256(job).hexdigest())
    finally:
        await children.close()


async def test_an_outcome_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child does afterwards is bounded in time, and so is the number of such children."""
    monkeypatch.setattr(module, "FINISH_S", 0.5)
    before, cleaned = children_of_this_process(), list[Any]()
    children = Children(Calls(tells_pid, finish=sleeps), ROOMY, cleaned.append)
    try:
        for _ in range(module.MAX_FINISHING + 2):
            assert (await children.run(JOB)).status == "ok"
            assert len(children._finishing) <= module.MAX_FINISHING
        assert len(cleaned) >= 2  # killed
        while len(children._finishing):
            await children._finishing.one_ends()
        assert len(cleaned) == module.MAX_FINISHING + 2
    finally:
        await children.close()
    assert children_of_this_process() == before


async def test_what_no_child_can_finish_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child between that finishes, or is invalid, changes nothing."""
    reasons = iter(["full", "full", "", "invalid", "full", "other", "other"])

    class Finishes(Calls):
        def job(self) -> bytes:
            return next(reasons).encode() or b"."

        def do(self, job: bytes) -> Outcome:
            return Outcome("invalid" if job == b"invalid" else "ok")

        def finish(self, job: bytes) -> None:
            if job != b".":
                raise OSError(f"not kept: {job.decode()}")

    children = Children(work := Finishes(tells_pid), ROOMY)
    try:
        for number in range(7):
            if number == 6:
                monkeypatch.setattr(module, "TELL_AGAIN_S", 0.0)  # it has passed
            await children.run(work.job())
            while len(children._finishing):
                await children._finishing.one_ends()
    finally:
        await children.close()
    told = [message.rpartition(": ")[2] for message in caplog.messages]
    assert told == ["full", "other", "other"]


async def test_closing_kills_those_that_wait_and_finish() -> None:
    before = children_of_this_process()
    children = Children(Calls(tells_pid, finish=sleeps), ROOMY)
    children.prepare()
    await children.run(JOB)
    await asyncio.sleep(0)
    assert len(children_of_this_process() - before) == 2
    await children.close()
    assert children_of_this_process() == before
    children.prepare()
    assert children_of_this_process() == before


async def test_a_report_that_is_none_is_a_crash() -> None:
    class Lies(Calls):
        def do(self, job: bytes) -> Outcome:
            return "nonsense"  # type: ignore[return-value]

    children = Children(Lies(tells_pid), ROOMY)
    try:
        outcome = await children.run(JOB)
        assert outcome.status == "crash"
    finally:
        await children.close()
