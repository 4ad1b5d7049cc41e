"""Children that decode: whatever a file does to one, only its own request fails."""

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import tokenizer_proc.media.worker
from srt.ring.socket import Blob
from srt.wire.errors import BAD_REQUEST, INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaRef
from tests.srt.gateway.holds import watched_loop
from tests.tokenizer_proc.forking import fail_once, kill
from tests.tokenizer_proc.media.fake_processor import FakeProcessor, image, picture, video
from tokenizer_proc.children.child import Child, ChildDied
from tokenizer_proc.children.forker import Forker
from tokenizer_proc.media.desk import Made
from tokenizer_proc.media.worker import MediaWorker, made_of

SMALL, LARGE = picture(16, 8, 1), picture(2000, 2000, 2)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, forker: Forker) -> Iterator[MediaWorker]:
    monkeypatch.setattr(tokenizer_proc.media.worker, "CPU_S", 1.0)
    # At 19 a busy machine gives a child so little that it starves before it has used that.
    monkeypatch.setattr(tokenizer_proc.media.worker, "NICENESS", 0)
    worker = MediaWorker(forker, FakeProcessor())
    yield worker
    worker.close()


async def made(worker: MediaWorker, *files: Blob, ref: MediaRef | None = None) -> Made:
    result = await worker.process(ref or image(), files)
    assert not isinstance(result, ErrorInfo), result
    return result


async def error_of(worker: MediaWorker, file: bytes) -> ErrorInfo:
    result = await worker.process(image(), [file])
    assert isinstance(result, ErrorInfo)
    return result


async def test_the_same_as_in_this_process(worker: MediaWorker) -> None:
    for ref, files in ((image(), [SMALL]), (video(3), [SMALL, LARGE, SMALL])):
        expected = made_of(FakeProcessor(), ref, files)
        assert not isinstance(expected, ErrorInfo)
        found = await made(worker, *(memoryview(file) for file in files), ref=ref)
        assert [item for item, _ in found] == [item for item, _ in expected]
        assert [bytes(pixels) for _, pixels in found] == [bytes(p) for _, p in expected]


async def test_what_serves_comes_first(forker: Forker) -> None:
    worker = MediaWorker(forker, FakeProcessor())
    await made(worker, SMALL)
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == 19
    worker.close()


@pytest.mark.parametrize(
    ("file", "code", "retryable", "lives"),
    [
        (b"no image", BAD_REQUEST, False, True),
        (b"eat", BAD_REQUEST, False, True),
        (b"bug", INTERNAL, False, True),
        (b"loop", BAD_REQUEST, False, False),
        (b"crash", UNAVAILABLE, True, False),
        (picture(5000, 5000), BAD_REQUEST, False, True),  # 75 MB are no message
    ],
)
async def test_a_file_that_cannot_be_decoded(
    worker: MediaWorker, file: bytes, code: str, retryable: bool, lives: bool
) -> None:
    first = await made(worker, SMALL)
    pid = worker.pid
    error = await error_of(worker, file)
    assert (error.code, error.retryable) == (code, retryable)
    if code == BAD_REQUEST:
        assert error.follows_param  # the medium is named by who knows its number
    assert await made(worker, SMALL) == first
    assert (worker.pid == pid) is lives


async def test_a_child_that_was_killed_while_it_waited(worker: MediaWorker) -> None:
    first = await made(worker, SMALL)
    kill(worker.pid)
    assert await made(worker, SMALL) == first


async def test_a_machine_without_a_process_left(
    worker: MediaWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch)
    error = await error_of(worker, SMALL)
    assert (error.code, error.retryable) == (UNAVAILABLE, True)
    await made(worker, SMALL)


def _lie(answer: list[bytes], frames: list[memoryview]) -> list[bytes]:
    return answer


async def test_a_child_that_answers_nonsense(forker: Forker) -> None:
    """As one would that a file has taken over."""
    answers: list[list[bytes]] = [[b"\xff\xff"], [], [b"\x92\x90\xc0", b"frame"]]
    workers = [MediaWorker(forker, FakeProcessor()) for _ in answers]
    for worker, answer in zip(workers, answers, strict=True):
        Child.__init__(worker, forker, partial(_lie, answer), "liar")
    for worker in workers:
        error = await error_of(worker, SMALL)
        assert (error.code, error.retryable) == (UNAVAILABLE, True)
        worker.close()


async def test_the_loop_goes_on_while_large_files_come_and_go(worker: MediaWorker) -> None:
    """No callback takes 20 ms of CPU time: 20 MB go to the child, and 12 MB come back."""
    file = LARGE + b" " * (20_000_000 - len(LARGE))
    await made(worker, SMALL)  # the child is there
    async with watched_loop() as holds:
        for _ in range(3):
            await made(worker, file)
    assert 0 < holds.longest_s < 0.02, holds.what


async def test_how_a_child_died(forker: Forker) -> None:
    def crash(frames: list[memoryview]) -> list[Blob]:
        os.abort()

    def stop(frames: list[memoryview]) -> list[Blob]:
        os.kill(os.getpid(), signal.SIGSTOP)
        return []

    def spin(frames: list[memoryview]) -> list[Blob]:
        while True:
            pass

    cases: list[tuple[Any, float, float, str]] = [
        (crash, 60.0, 60.0, "crash"),
        (stop, 60.0, 0.5, "starved"),
        (spin, 0.1, 60.0, "time"),
    ]
    children = [Child(forker, work, "child") for work, *_ in cases]
    for child, (_, cpu_s, wall_s, how) in zip(children, cases, strict=True):
        with pytest.raises(ChildDied) as died:
            await child.ask([b"x"], cpu_s, wall_s)
        assert died.value.how == how and child.pid == 0


async def test_a_child_that_announces_more_than_there_is_memory(forker: Forker) -> None:
    def boast(frames: list[memoryview]) -> list[Blob]:
        for fd in range(3, 256):
            with suppress(OSError):
                os.write(fd, struct.pack("<IdQ", 1, 0.0, 2**45))
        signal.pause()
        return []

    child = Child(forker, boast, "child")
    with pytest.raises(ChildDied) as died:
        await child.ask([b"x"], 60.0, 60.0)
    assert died.value.how == "crash"


async def test_empty_and_many_frames(forker: Forker) -> None:
    child = Child(forker, lambda frames: frames, "echo")
    frames = [b"", *(bytes([i % 256]) * i for i in range(1000)), b""]
    assert [bytes(frame) for frame in await child.ask(frames, 10.0, 60.0)] == frames
    assert await child.ask([], 10.0, 60.0) == []
    child.close()
