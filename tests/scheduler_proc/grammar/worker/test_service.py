"""The service around compilations: each is done once, few at a time, failures are remembered."""

import asyncio
import errno
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from scheduler_proc.grammar.artefact import Artefact, write_artefact
from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.worker import room as room_module
from scheduler_proc.grammar.worker import service as module
from scheduler_proc.grammar.worker.job import Outcome
from scheduler_proc.grammar.worker.service import CompileService, Rules
from srt.tasks import TaskSet
from srt.wire.constraint import Constraint
from srt.wire.errors import BAD_REQUEST, INTERNAL, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.ring_messages import CompileCancel, CompileReply, CompileReq
from tests.running.profiles import seeds
from tests.waiting import SOON_S

OK = Outcome("ok")


class Bench:
    """A service whose compilations end when and how the test says."""

    def __init__(
        self,
        directory: Path,
        workers: int = 2,
        max_wait_s: float = 100.0,
        folder_bytes: int = 100_000,
        quantum_s: float = 100.0,
    ) -> None:
        self.folder = ArtefactFolder(directory, folder_bytes)
        self.replies: list[CompileReply] = []
        self.running: dict[str, asyncio.Future[Outcome]] = {}
        self.runs: list[str] = []
        rules = Rules(workers, 10.0, 100.0, 64, max_wait_s, quantum_s)
        self.failures: list[BaseException] = []
        self.tasks = TaskSet(self.failures.append)
        self.service = CompileService(
            self.folder,
            lambda c: f"key-{c.source}",
            self._run,
            self.replies.append,
            rules,
            self.tasks,
        )

    async def _run(self, key: str, constraint: Constraint) -> Outcome:
        self.runs.append(constraint.source)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.running[constraint.source] = future
        outcome = await future
        if outcome.status == "ok":
            temporary = self.folder.temporary()
            write_artefact(temporary, Artefact("x", {}, {"a": np.zeros(3000, np.uint8)}))
            self.folder.add(key, temporary)
        return outcome

    async def ask(self, request_id: int, source: str, epoch: int = 1, asker: bytes = b"") -> None:
        self.service.ask(CompileReq(request_id, epoch, Constraint("regex", source), asker))
        await settle()

    async def cancel(self, request_id: int, epoch: int = 1) -> None:
        self.service.cancel(CompileCancel(request_id, epoch))
        await settle()

    @property
    def present(self) -> list[str]:
        """Those that are being compiled."""
        return [source for source, future in self.running.items() if not future.done()]

    async def end(self, source: str, outcome: Outcome = OK) -> None:
        self.running.pop(source).set_result(outcome)
        await settle()

    def take(self) -> list[CompileReply]:
        taken = self.replies[:]
        self.replies.clear()
        return taken


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_each_constraint_is_compiled_once(bench: Bench) -> None:
    for request_id in (1, 2):
        await bench.ask(request_id, "a")
    assert bench.runs == ["a"] and bench.take() == []
    await bench.end("a")
    assert bench.take() == [CompileReply(1, 1, "key-a"), CompileReply(2, 1, "key-a")]
    await bench.ask(3, "a")
    assert bench.take() == [CompileReply(3, 1, "key-a")] and bench.runs == ["a"]
    assert bench.service.counters.compiled == bench.service.counters.reused == 1


async def test_a_vanished_artefact_is_compiled_again(bench: Bench) -> None:
    await bench.ask(1, "a")
    await bench.end("a")
    bench.folder.discard("key-a")
    await bench.ask(2, "a")
    assert bench.runs == ["a", "a"]


async def test_few_at_once_in_order(bench: Bench) -> None:
    for i, source in enumerate("abcd"):
        await bench.ask(i, source)
    assert bench.runs == ["a", "b"] and bench.service.num_queued == 2
    await bench.end("b", Outcome("time"))
    assert bench.runs == ["a", "b", "c"]
    await bench.end("a", Outcome("crash", "a defect"))
    await bench.end("c")
    await bench.end("d")
    assert [reply.id for reply in bench.take()] == [1, 0, 2, 3]
    assert bench.service.num_running == 0


async def test_a_full_queue_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "MAX_QUEUE", 1)
    bench = Bench(tmp_path)
    for i, source in enumerate("abcd"):
        await bench.ask(i, source)
    (refused,) = bench.take()
    assert refused.id == 3 and refused.error is not None
    assert (refused.error.code, refused.error.retryable) == (OVERLOADED, True)
    await bench.ask(4, "c")  # queued already
    assert bench.take() == []
    await bench.end("a")
    await bench.ask(5, "d")  # its refusal is not remembered as a failure, and there is room again
    await bench.end("b")
    await bench.end("c")
    await bench.end("d")
    assert [(reply.id, reply.key) for reply in bench.take()] == [
        (0, "key-a"),
        (1, "key-b"),
        (2, "key-c"),
        (4, "key-c"),
        (5, "key-d"),
    ]


async def test_the_queue_is_bounded_in_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "MAX_QUEUE_CHARS", 10)
    bench = Bench(tmp_path)
    for i, source in enumerate(("a", "b", "c" * 8, "d" * 3)):
        await bench.ask(i, source)
    assert [reply.id for reply in bench.take()] == [3]


async def test_one_asker_has_a_part_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "MAX_ASKER_QUEUE", 3)
    monkeypatch.setattr(room_module, "MAX_ASKER_CHARS", 8)
    bench = Bench(tmp_path)
    for i in range(6):
        await bench.ask(i, f"a{i}", asker=b"a")
    (refused,) = bench.take()
    assert refused.id == 5 and refused.error is not None
    assert (refused.error.code, refused.error.retryable) == (OVERLOADED, True)
    assert "3 of them this client's" in refused.error.message
    await bench.ask(10, "b" * 9, asker=b"b")
    assert [reply.id for reply in bench.take()] == [10]
    await bench.ask(11, "b" * 8, asker=b"b")
    assert bench.take() == []


async def full_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One whose queue is full of one asker's jobs."""
    monkeypatch.setattr(room_module, "MAX_QUEUE", 4)
    bench = Bench(tmp_path)
    for i in range(6):
        await bench.ask(i, f"a{i}", asker=b"a")
    return bench


async def test_in_a_full_queue_who_has_least_gets_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asker with most jobs loses its newest, which is refused."""
    bench = await full_bench(tmp_path, monkeypatch)
    for i in (10, 11, 12):
        await bench.ask(i, f"b{i}", asker=b"b")
    # One of b's jobs runs instead of one of a's; two of each wait.
    assert bench.service.num_queued == 4 and bench.service.num_running == 2
    refused = bench.take()
    assert [reply.id for reply in refused] == [5, 4, 3]
    assert all(reply.error is not None and reply.error.code == OVERLOADED for reply in refused)
    await bench.ask(13, "b13", asker=b"b")
    assert [reply.id for reply in bench.take()] == [13]
    assert bench.service.counters.refused == 4


async def test_a_job_of_several_askers_is_that_of_who_has_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not give way for what the others have."""
    bench = await full_bench(tmp_path, monkeypatch)
    await bench.ask(20, "a5", asker=b"b")
    await bench.ask(30, "c", asker=b"c")
    await bench.ask(31, "d", asker=b"c")
    assert {5, 20} & {reply.id for reply in bench.take()} == set()


@pytest.mark.parametrize("seed", seeds(60))
async def test_nobody_is_shut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two to four askers fill the queue, with many grammars or with large ones, which they share or
    not; another one's small one is compiled all the same."""
    rng = random.Random(seed)
    monkeypatch.setattr(room_module, "MAX_QUEUE", 24)
    monkeypatch.setattr(room_module, "MAX_ASKER_QUEUE", 6)
    monkeypatch.setattr(room_module, "MAX_QUEUE_CHARS", 400)
    monkeypatch.setattr(room_module, "MAX_ASKER_CHARS", 100)
    bench = Bench(tmp_path)
    askers = [b"a", b"b", b"c", b"d"][: rng.randint(2, 4)]
    for i in range(rng.choice((20, 100))):
        source = f"{rng.randrange(40)}" * rng.choice((1, 1, 10, 45))
        await bench.ask(i, source, asker=rng.choice(askers))
        if rng.random() < 0.1:
            await bench.end(rng.choice(bench.present))
    bench.take()
    for number in (1000, 1001):
        await bench.ask(number, f"mine{number}", asker=b"mine")
    assert not {1000, 1001} & {reply.id for reply in bench.take()}
    for _ in range(200):
        if {"mine1000", "mine1001"} <= set(bench.runs):
            break
        await bench.end(bench.present[0])
    assert {"mine1000", "mine1001"} <= set(bench.runs)
    room = bench.service._queue.room
    waiting = bench.service._queue.lanes.waiting
    assert room._jobs.total == len(waiting) <= 24
    assert room._chars.total == sum(pending.num_chars for pending in waiting)


@pytest.mark.parametrize("seed", seeds(30))
async def test_what_counts_is_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever is stopped for others, and begun again: what runs takes no room of what waits."""
    rng = random.Random(seed)
    monkeypatch.setattr(room_module, "MAX_QUEUE", 12)
    monkeypatch.setattr(room_module, "MAX_ASKER_QUEUE", 6)
    bench = Bench(tmp_path, workers=rng.choice((1, 2, 3)), folder_bytes=10**7, quantum_s=0.0)
    room, lanes = bench.service._queue.room, bench.service._queue.lanes
    asked: list[int] = []
    for number in range(100):
        match rng.randrange(4):
            case 0 if bench.present and (running := lanes._runs):
                await bench.end(rng.choice(list(running)).constraint.source)
            case 1 if asked:
                await bench.cancel(asked.pop(rng.randrange(len(asked))))
            case _:
                asked.append(number)
                source, asker = f"s{rng.randrange(60)}", rng.choice((b"a", b"a", b"b", b"c"))
                await bench.ask(number, source, asker=asker)
        waiting = set(lanes.waiting)
        assert set(room._askers) == set(room._jobs._holders) == set(room._chars._holders) == waiting
    assert not bench.failures
    bench.service.close()
    await bench.tasks.close()


async def test_a_flood_does_not_delay_another_asker(bench: Bench) -> None:
    for i in range(120):
        await bench.ask(i, f"a{i}", asker=b"a")
    await bench.ask(500, "trivial", asker=b"b")
    assert bench.runs[-1] == "trivial"
    await bench.ask(7, "a100", asker=b"b")  # a job of the flood that b asks for too
    await bench.end("trivial")
    assert bench.runs[-1] == "a100"
    await bench.end("a100")
    assert [reply.id for reply in bench.take()] == [500, 100, 7]


async def test_a_compilation_that_got_no_time_may_be_tried_again(bench: Bench) -> None:
    await bench.ask(1, "a")
    await bench.end("a", Outcome("starved"))
    (reply,) = bench.take()
    assert reply.error is not None and reply.error.code == OVERLOADED and reply.error.retryable
    await bench.ask(2, "a")
    await bench.end("a")
    assert bench.take() == [CompileReply(2, 1, "key-a")]


async def test_patience_ends_without_anything_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workers=1, max_wait_s=0.05)
    for i, source in enumerate("ab"):
        await bench.ask(i, source)
    async with asyncio.timeout(SOON_S):
        while not bench.replies:
            await asyncio.sleep(0.001)
    assert [reply.id for reply in bench.take()] == [1]


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Outcome("invalid", "bad at 3"), BAD_REQUEST, "bad at 3"),
        (Outcome("time"), BAD_REQUEST, "compiling it took longer than 10 s of CPU time"),
        (Outcome("memory"), BAD_REQUEST, "compiling it needed more than 64 MiB"),
        (Outcome("crash", "secret"), INTERNAL, "compiling it failed (the server's log says why)"),
    ],
)
async def test_failures_are_worded_and_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: str, words: str
) -> None:
    await bench.ask(1, "a")
    await bench.end("a", outcome)
    await bench.ask(2, "a")
    assert bench.take() == [CompileReply(i, 1, error=ErrorInfo(code, words)) for i in (1, 2)]
    assert bench.runs == ["a"]
    later = time.monotonic() + module.FORGET_AFTER_S + 1
    monkeypatch.setattr("scheduler_proc.grammar.worker.service.monotonic", lambda: later)
    await bench.ask(3, "a")  # what may succeed another time is tried again
    assert len(bench.runs) == (1 if outcome.status in ("invalid", "memory") else 2)


async def test_few_failures_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FAILURES", 2)
    bench = Bench(tmp_path)
    for i, source in enumerate("abc"):
        await bench.ask(i, source)
        await bench.end(source, Outcome("invalid", source))
    for i, source in enumerate("bca"):
        await bench.ask(i, source)
    assert bench.runs == ["a", "b", "c", "a"]


async def test_a_defect_of_the_runner_fails_its_own_requests_only(bench: Bench) -> None:
    await bench.ask(1, "a")
    bench.running["a"].set_exception(ValueError("a defect"))
    await settle()
    (reply,) = bench.take()
    assert reply.error is not None and reply.error.code == INTERNAL
    await bench.ask(2, "b")
    await bench.end("b")
    assert bench.take() == [CompileReply(2, 1, "key-b")]


async def test_a_shortage_on_the_machine_is_not_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(self: ArtefactFolder, keep_s: float) -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    numbers = (errno.EAGAIN, errno.ENOMEM)
    for number in numbers:
        await bench.ask(1, "a")
        bench.running["a"].set_exception(OSError(number, "no child"))
        await settle()
    await bench.ask(2, "a")
    await bench.end("a", Outcome("full", "No space left on device"))
    whys = (*map(os.strerror, numbers), "No space left on device")
    for reply, why in zip(bench.take(), whys, strict=True):
        assert reply.error is not None and reply.error.code == UNAVAILABLE
        assert reply.error.retryable and reply.error.message.endswith(f"({why})")
    monkeypatch.setattr(ArtefactFolder, "trim", no_file)
    await bench.ask(3, "a")
    await bench.end("a")
    assert bench.take() == [CompileReply(3, 1, "key-a")] and bench.failures == []


async def test_another_error_of_the_system_is_a_defect(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.ask(1, "a")
    bench.running["a"].set_exception(OSError(errno.EBADF, "Bad file descriptor"))
    await settle()
    (reply,) = bench.take()
    assert reply.error is not None and reply.error.code == INTERNAL
    assert any(record.exc_info for record in caplog.records)


async def test_a_defect_of_the_service_is_not_swallowed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the service")

    monkeypatch.setattr(bench.service, "_settle", broken)
    await bench.ask(1, "a")
    await bench.end("a")
    assert [type(failure) for failure in bench.failures] == [ZeroDivisionError]


async def test_who_waited_too_long_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workers=1, max_wait_s=0.0)
    await bench.ask(1, "a")
    assert bench.runs == []  # refused at once: nothing may wait
    (reply,) = bench.take()
    assert reply.error is not None and reply.error.retryable


async def test_many_artefacts_do_not_shut_others_out(tmp_path: Path) -> None:
    """The folder holds three. All were used lately; the least recently used one goes."""
    bench = Bench(tmp_path, folder_bytes=10_000)
    for i, source in enumerate("abcd"):
        await bench.ask(i, source)
        await bench.end(source)
        then = time.time() - 10 + i
        os.utime(bench.folder.path(f"key-{source}"), (then, then))
    assert [reply.error for reply in bench.take()] == [None] * 4
    assert [bench.folder.touch(f"key-{source}") for source in "abcd"] == [False, True, True, True]


async def test_artefacts_in_use_are_not_pushed_out(tmp_path: Path) -> None:
    """The folder holds three; all were used a moment ago, so a fourth finds no room."""
    bench = Bench(tmp_path, folder_bytes=10_000)
    for i, source in enumerate("abcd"):
        await bench.ask(i, source)
        await bench.end(source)
    replies = bench.take()
    assert [reply.error is None for reply in replies] == [True, True, True, False]
    assert replies[3].error is not None and replies[3].error.code == OVERLOADED
    for source in "abc":
        assert bench.folder.touch(f"key-{source}")
    assert not bench.folder.touch("key-d")


async def test_a_new_epoch_forgets_what_was_queued_before(bench: Bench) -> None:
    for i, source in enumerate("abc"):
        await bench.ask(i, source, epoch=1)
    await bench.ask(10, "d", epoch=2)  # the front learned of the epoch first
    bench.service.reset(2)
    await bench.ask(11, "a", epoch=2)  # still being compiled
    await bench.end("a")
    await bench.end("b")
    await bench.end("d")
    replies = [reply for reply in bench.take() if reply.epoch == 2]
    assert replies == [CompileReply(11, 2, "key-a"), CompileReply(10, 2, "key-d")]
    assert bench.runs == ["a", "b", "d"]


# ---- nobody waits any more, and somebody else does -----------------------------------------------


async def test_what_nobody_waits_for_is_not_compiled(bench: Bench) -> None:
    for i, source in enumerate("abc"):
        await bench.ask(i, source)
    await bench.ask(3, "a")
    await bench.cancel(0)
    assert not bench.running["a"].done()  # another asker wants it
    await bench.cancel(2)
    assert bench.service.num_queued == 0
    await bench.cancel(3)
    assert bench.running["a"].cancelled() and bench.service.num_running == 1
    await bench.ask(4, "a")
    assert bench.runs == ["a", "b", "a"]
    await bench.end("a")
    await bench.end("b")
    assert bench.take() == [CompileReply(4, 1, "key-a"), CompileReply(1, 1, "key-b")]
    assert bench.service.counters.cancelled == 3


async def test_a_cancelled_one_lets_the_next_begin(bench: Bench) -> None:
    for i, source in enumerate("abc"):
        await bench.ask(i, source)
    await bench.cancel(0)
    assert bench.runs == ["a", "b", "c"]


async def test_a_cancelled_one_may_fail_on_its_way_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when the child's file cannot be removed: nobody waits, and the service goes on."""
    whole = bench._run

    async def failing(key: str, constraint: Constraint) -> Outcome:
        try:
            return await whole(key, constraint)
        except asyncio.CancelledError:
            raise OSError("no such file") from None

    monkeypatch.setattr(bench.service, "_run", failing)
    await bench.ask(1, "a")
    await bench.cancel(1)
    assert bench.take() == [] and bench.service.num_running == 0
    await bench.ask(2, "a")
    await bench.end("a")
    assert bench.take() == [CompileReply(2, 1, "key-a")]
    assert bench.failures == []


async def test_what_is_asked_twice_is_answered_and_cancelled_once(bench: Bench) -> None:
    for source in "ab":
        for _ in range(2):
            await bench.ask(ord(source), source)
    await bench.cancel(ord("a"))
    assert bench.service.num_running == 1
    await bench.end("b")
    assert bench.take() == [CompileReply(ord("b"), 1, "key-b")]


async def test_strange_cancels_are_ignored(bench: Bench) -> None:
    await bench.ask(1, "a")
    await bench.cancel(2)
    await bench.cancel(1, epoch=2)
    await bench.end("a")
    await bench.cancel(1)
    assert bench.take() == [CompileReply(1, 1, "key-a")]
    assert bench.service.counters.cancelled == 0


async def test_long_ones_make_way_for_new_ones(tmp_path: Path) -> None:
    """This needs no other event. They begin again, and are answered like all others."""
    bench = Bench(tmp_path, workers=1, quantum_s=0.01)
    for i, source in enumerate(("long", "longer", "longest", "quick")):
        await bench.ask(i, source)
    async with asyncio.timeout(SOON_S):
        while bench.runs[-1] != "quick":
            await asyncio.sleep(0.001)
    assert bench.runs == ["long", "longer", "longest", "quick"]
    assert bench.service.num_running == 2 and bench.service.num_queued == 2
    for source in ("quick", "long", "longer", "longest"):
        await bench.end(source)
    assert bench.runs[4:] == ["longer", "longest"]
    assert [reply.id for reply in bench.take()] == [3, 0, 1, 2]
    assert bench.service.num_running == 0


async def test_closing_cancels(bench: Bench) -> None:
    await bench.ask(1, "a")
    await bench.tasks.close()
    bench.service.close()
    assert bench.running["a"].cancelled() and bench.take() == []
