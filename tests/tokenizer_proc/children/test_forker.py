"""The process that forks children: they have none of what its parent holds, and it holds nobody
up."""

import asyncio
import faulthandler
import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from srt.ring.socket import Blob
from tests.tokenizer_proc.forking import kill
from tokenizer_proc import children
from tokenizer_proc.children.child import Child, ChildDied, _exchange, _framed
from tokenizer_proc.children.forker import Forker, Standstill

HELD_BYTES = 200 * 2**20
WORDS = [b"one", b"", b"three"]


def _deed(frames: list[memoryview]) -> list[Blob]:
    """How many pages of memory the child has, unless it is to crash."""
    if bytes(frames[0]) == b"crash":
        os.abort()
    return [Path("/proc/self/statm").read_bytes().split()[0]]


def _backwards(frames: list[memoryview]) -> list[Blob]:
    return [bytes(frame) for frame in reversed(frames)]


async def _ask(child: Child, frame: bytes = b"") -> int:
    (answer,) = await child.ask([frame], 60.0, 60.0)
    return int(bytes(answer)) * os.sysconf("SC_PAGESIZE")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _forbidden(*_: object) -> NoReturn:
    raise AssertionError("the process that holds files forks or waits")


async def test_children_that_are_forked_under_load(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that replaces another has none of what is held by then; the process that holds it
    neither forks it nor waits for the end of the other."""
    child = Child(forker, _deed, "child")
    before = await _ask(child)
    held = np.ones(HELD_BYTES, np.uint8)
    with monkeypatch.context() as patch:
        for call in ("fork", "waitpid", "waitid"):
            patch.setattr(os, call, _forbidden)
        for _ in range(2):
            first = child.pid
            with pytest.raises(ChildDied) as died:
                await _ask(child, b"crash")
            assert died.value.how == "crash"
            assert await _ask(child) < before + HELD_BYTES // 4
            assert child.pid != first
    assert held.all()
    child.close()


async def test_an_end_of_the_forker_is_seen(forker: Forker) -> None:
    child, other = Child(forker, _deed, "child"), Child(forker, _deed, "other")
    await _ask(child)
    watching = asyncio.ensure_future(forker.watch())
    kill(forker.pid)
    with pytest.raises(RuntimeError, match="forks the tokenizer's children ended with status 9"):
        await watching
    for each, ways in ((child, ("crash", "none")), (other, ("none",))):
        with pytest.raises(ChildDied) as died:
            await _ask(each)
        assert died.value.how in ways  # the first may not have ended yet when it is asked


async def test_a_child_that_nobody_waits_for_any_more(forker: Forker) -> None:
    child, other = Child(forker, _deed, "child"), Child(forker, _deed, "other")
    await _ask(other)
    os.kill(forker.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(_ask(child))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    os.kill(forker.pid, signal.SIGCONT)
    other.close()
    await _ask(other)
    while len(_children(forker.pid)) > 1:
        await asyncio.sleep(0.01)
    assert _children(forker.pid) == [str(other.pid)]
    other.close()


async def _watched(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> tuple[Child, asyncio.Task[None]]:
    """A child that has answered, and the watch of a forker that has little patience."""
    monkeypatch.setattr(children.forker, "LOOK_S", 0.01)
    monkeypatch.setattr(children.forker, "STOPPED_S", 0.05)
    child = Child(forker, _deed, "child")
    await _ask(child)
    return child, asyncio.ensure_future(forker.watch())


async def test_a_forker_that_is_stopped_is_told(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it answers, it is watched for good."""
    child, watching = await _watched(forker, monkeypatch)
    done, _ = await asyncio.wait([watching], timeout=0.5)
    assert not done
    os.kill(forker.pid, signal.SIGSTOP)
    with pytest.raises(Standstill, match=f"process {forker.pid}.*has not answered.*it is stopped"):
        await watching
    await forker.abort()
    child.close()


async def test_a_forker_that_hangs_is_told_and_writes_its_stack(
    forker: Forker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(children.forker, "LOOK_S", 0.01)
    monkeypatch.setattr(children.forker, "SILENT_S", 0.2)
    child = Child(forker, _deed, "child")
    with monkeypatch.context() as patch:
        patch.setattr(children.forker, "_obey", lambda *_: time.sleep(600))
        faulthandler.enable(2)  # as in every part
        forker.start()
    watching = asyncio.ensure_future(forker.watch())
    with pytest.raises(Standstill, match="has not answered for"):
        await watching
    await forker.abort()
    with pytest.raises(ChildDied):
        await _ask(child)
    assert "_serve" in capfd.readouterr().err


async def test_a_child_that_is_stopped_is_replaced(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that waits; the work of one that is at work may be asked for again."""
    child, watching = await _watched(forker, monkeypatch)
    os.kill(first := child.pid, signal.SIGSTOP)
    with pytest.raises(ChildDied) as died:
        await _ask(child)
    assert died.value.how == "starved"
    await _ask(child)
    os.kill(second := child.pid, signal.SIGSTOP)
    while str(second) in _children(forker.pid):
        await asyncio.sleep(0.01)
    await _ask(child)
    assert len({first, second, child.pid}) == 3
    watching.cancel()
    child.close()


async def test_its_end_is_that_of_its_parent(forker: Forker) -> None:
    """Not SIGTERM, which a whole service may get while requests end; children end with it."""
    child = Child(forker, _deed, "child")
    await _ask(child)
    os.kill(forker.pid, signal.SIGTERM)
    child.close()
    await _ask(child)
    pidfds = [os.pidfd_open(pid) for pid in (forker.pid, child.pid)]
    child.close()
    await forker.close()
    for pidfd in pidfds:
        with pytest.raises(ProcessLookupError):
            while True:
                signal.pidfd_send_signal(pidfd, 0)
                await asyncio.sleep(0.01)
        os.close(pidfd)


async def test_frames_of_any_size_arrive_whole(forker: Forker) -> None:
    """Of two children that are asked at the same time."""
    asked = [Child(forker, _backwards, "child") for _ in range(2)]
    for sizes in ((), (0,), (1, 0, 2**14 - 1), (2**14, 1), (2**21 + 1, 3, 0)):
        frames = [os.urandom(size) for size in sizes]
        answers = await asyncio.gather(*(child.ask(frames, 60.0, 60.0) for child in asked))
        assert [[*map(bytes, answer)] for answer in answers] == [frames[::-1]] * 2
    for child in asked:
        child.close()


@pytest.mark.parametrize("step", [1, 5, 100])
@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_answer_in_parts(step: int, is_whole: bool) -> None:
    assert await _told(step, slice(None if is_whole else -1)) == (WORDS if is_whole else None)


async def test_an_answer_that_is_too_long_is_none() -> None:
    assert await _told(100, slice(None), b"x") is None


async def _told(step: int, part: slice, more: bytes = b"") -> list[bytes] | None:
    """What is understood of a part of an answer that comes in pieces of `step` bytes."""
    ours, theirs = socket.socketpair()
    loop, answer = asyncio.get_running_loop(), b"".join(_framed(WORDS, 0.0))[part] + more
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)

        async def child() -> None:
            await loop.sock_recv(theirs, 1024)
            for start in range(0, len(answer), step):
                await loop.sock_sendall(theirs, answer[start : start + step])
                await asyncio.sleep(0)
            theirs.shutdown(socket.SHUT_WR)

        answering = asyncio.ensure_future(child())
        try:
            return [*map(bytes, await _exchange(ours, [b"?"], 1.0))]
        except EOFError:
            return None
        finally:
            await answering
