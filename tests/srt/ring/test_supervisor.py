"""How often the supervisor restarts what dies."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.args import ServerArgs
from srt.gateway.ops.health import is_ready
from srt.ring.actor import EXIT_CONFIG
from srt.ring.child import Child
from srt.ring.supervisor import MAX_BACKOFF_S, MAX_RESTARTS, Supervisor
from srt.wire.messages import encode
from srt.wire.ring_state import (
    CompilerFacts,
    Heartbeat,
    PlaceNews,
    SchedulerFacts,
    TokenizerFacts,
    next_incarnation,
    replica_of,
)
from tests.waiting import SOON_S


class Bench:
    """A supervisor that starts nothing; `slept` has the back-offs."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, dp: int = 1) -> None:
        self.started: list[str] = []
        self.slept: list[float] = []
        self.supervisor = Supervisor(ServerArgs(no_http=True, ring_dir=str(directory), dp=dp))
        monkeypatch.setattr(self.supervisor, "_start", lambda c: self.started.append(c.part))
        # Only in the supervisor's module: other threads of this process sleep too.
        patched = SimpleNamespace(**vars(asyncio) | {"sleep": self._sleep})
        monkeypatch.setattr("srt.ring.supervisor.asyncio", patched)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def die(self, part: str, times: int, has_served: bool) -> Child:
        child = Child(part, has_served=has_served)
        for _ in range(times):
            child.started_at = time.monotonic()
            asyncio.run(self.supervisor._restart(child))
        return child


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path / "ring", monkeypatch)
    yield bench
    bench.supervisor._context.destroy()
    shutil.rmtree(tmp_path / "ring")


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """With two replicas, which are ready, and with asyncio's own clock."""
    bench = Bench(tmp_path / "ring", monkeypatch, dp=2)
    monkeypatch.setattr("srt.ring.supervisor.asyncio", asyncio)
    for part, child in bench.supervisor._children.items():
        child.state, child.has_served, child.beat = "ready", True, Heartbeat(part, 1, 1)
    bench.supervisor._has_scheduler.set()
    yield bench
    bench.supervisor._context.destroy()
    shutil.rmtree(tmp_path / "ring")


def test_a_compiler_that_served_is_restarted_for_ever(bench: Bench) -> None:
    """Its users' constraints cause its deaths."""
    bench.die("compiler", 2000, has_served=True)
    assert bench.supervisor._failure is None and len(bench.started) == 2000
    assert bench.slept[:3] == [0.1, 0.2, 0.4] and bench.slept[-1] == MAX_BACKOFF_S


@pytest.mark.parametrize(("part", "has_served"), [("compiler", False), ("scheduler", True)])
def test_others_are_given_up(bench: Bench, part: str, has_served: bool) -> None:
    bench.die(part, MAX_RESTARTS, has_served)
    assert bench.supervisor._failure is None and len(bench.started) == MAX_RESTARTS
    bench.die(part, MAX_RESTARTS + 1, has_served)
    assert bench.supervisor._failure == f"{part} died {MAX_RESTARTS + 1} times in a row: giving up"


def test_readiness(bench: Bench) -> None:
    """The ring's readiness does not depend on the compiler; the launcher's does."""
    supervisor = bench.supervisor
    for part, child in supervisor._children.items():
        child.state = "starting" if part == "compiler" else "ready"
        child.beat = Heartbeat(part, 1, supervisor._epoch)
    event = supervisor._event()
    assert event.ready and event.parts["compiler"] == "starting"
    assert not supervisor.all_ready
    supervisor._children["compiler"].state = "ready"
    assert supervisor.all_ready


def test_a_part_that_is_behind_the_epoch_is_not_ready(bench: Bench) -> None:
    """Also if requests may queue for the scheduler: what is sent to it now would be dropped."""
    supervisor = bench.supervisor
    supervisor._args = msgspec.structs.replace(supervisor._args, queue_while_restarting=True)
    supervisor._epoch = 2
    scheduler = supervisor._children["scheduler"]
    scheduler.state, scheduler.beat = "ready", Heartbeat("scheduler", 1, 1)
    assert supervisor._event().parts["scheduler"] == "starting"
    scheduler.beat = Heartbeat("scheduler", 1, 2)
    assert supervisor._event().parts["scheduler"] == "ready"


def test_the_smallest_pool_is_published(two: Bench) -> None:
    first, second = two.supervisor._schedulers
    assert two.supervisor._event().pool_tokens == 0
    first.facts = SchedulerFacts("native", "float16", 1, 500, 1)
    assert two.supervisor._event().pool_tokens == 500
    second.facts = SchedulerFacts("native", "float16", 1, 400, 1)
    assert two.supervisor._event().pool_tokens == 400


def test_what_the_model_takes_is_published(bench: Bench) -> None:
    assert bench.supervisor._event().media_kinds is None
    assert bench.supervisor._event().media_placeholders == {}
    placeholders = {"image": "<image>"}
    told = TokenizerFacts(10, placeholders, "hermes")
    bench.supervisor._children["tokenizer"].facts = told
    assert bench.supervisor._event().media_kinds == ["image"]
    assert bench.supervisor._event().media_placeholders == placeholders


async def test_only_news_are_published(bench: Bench) -> None:
    """Most beats bring no news: they must not wake every process of the ring."""
    supervisor = bench.supervisor
    beats: asyncio.Queue[Heartbeat] = asyncio.Queue()

    class Ctl:
        async def receive(self) -> list[bytes]:
            return [encode(await beats.get())]

    listening = asyncio.ensure_future(supervisor._listen(Ctl()))  # type: ignore[arg-type]
    child = supervisor._children["scheduler"]
    child.process = SimpleNamespace(pid=7)  # type: ignore[assignment]

    async def published(beat: Heartbeat) -> bool:
        supervisor._changed.clear()
        beats.put_nowait(beat)
        async with asyncio.timeout(SOON_S):
            while child.beat != beat:
                await asyncio.wait([listening], timeout=0.001)
        return supervisor._changed.is_set()

    assert await published(Heartbeat("scheduler", 7, 1))  # it is ready
    assert not await published(Heartbeat("scheduler", 7, 1, in_flight=1))
    child.state = "starting"
    assert await published(Heartbeat("scheduler", 7, 1))
    listening.cancel()


@pytest.mark.parametrize("part", ["scheduler", "tokenizer"])
async def test_what_a_part_says_of_itself_is_typed(bench: Bench, part: str) -> None:
    """A beat with a fact of another type is dropped, and facts of another part say nothing."""
    supervisor, child = bench.supervisor, bench.supervisor._children[part]
    child.process = SimpleNamespace(pid=7)  # type: ignore[assignment]
    good = SchedulerFacts("native", "float16", 1, 500, 1)
    bad: Any = msgspec.structs.replace(good, max_total_tokens="x")
    told = [bad, CompilerFacts(is_warm=True)]
    frames = [encode(Heartbeat(part, 7, number, facts=facts)) for number, facts in enumerate(told)]

    class Ctl:
        async def receive(self) -> list[bytes]:
            if not frames:
                await asyncio.Event().wait()
            return [frames.pop(0)]

    listening = asyncio.ensure_future(supervisor._listen(Ctl()))  # type: ignore[arg-type]
    async with asyncio.timeout(SOON_S):
        while child.beat is None:
            await asyncio.wait([listening], timeout=0.001)
    event = supervisor._event()
    assert child.beat.epoch == 1 and event.dropped == 1
    assert (event.pool_tokens, event.media_kinds, event.call_format) == (0, None, "hermes")
    listening.cancel()


class Dead:
    """A process that has ended."""

    def __init__(self, status: int) -> None:
        self._status = status

    def wait(self) -> int:
        return self._status


async def dies(bench: Bench, part: str, status: int = -9) -> tuple[int, int]:
    """A part dies; the epoch and the incarnation after that."""
    supervisor = bench.supervisor
    child = supervisor._children[part]
    child.state = "ready"
    supervisor._on_exit(child, Dead(status), os.pidfd_open(os.getpid()))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    event = supervisor._event()
    assert event.parts[part] == "dead"
    return event.epoch, event.incarnation


@pytest.mark.parametrize("has_served", [False, True])
async def test_one_that_has_served_may_find_a_full_disk(bench: Bench, has_served: bool) -> None:
    """It is tried again; with one that has not, the arguments are wrong."""
    bench.supervisor._children["scheduler"].has_served = has_served
    await dies(bench, "scheduler", EXIT_CONFIG)
    assert bench.started == (["scheduler"] if has_served else [])
    failure = bench.supervisor._failure
    told = "scheduler cannot run with these arguments (see above)"
    assert failure == (None if has_served else told)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> Bench:
    """With a scheduler that was ready, and with asyncio's own clock."""
    monkeypatch.setattr("srt.ring.supervisor.asyncio", asyncio)
    bench.supervisor._has_scheduler.set()
    return bench


async def test_only_the_schedulers_death_leaves_the_epoch(alone: Bench) -> None:
    assert await dies(alone, "scheduler") == (1, 2)
    assert await dies(alone, "tokenizer") == (2, 3)
    assert await dies(alone, "detokenizer") == (3, 4)
    assert await dies(alone, "compiler") == (3, 4)
    assert await dies(alone, "scheduler") == (3, 5)
    await alone.supervisor._tasks.close()


async def test_requests_do_not_wait_for_ever(alone: Bench) -> None:
    """Several deaths in a row do not make it longer; what comes after it waits as long."""
    supervisor = alone.supervisor
    supervisor._args = msgspec.structs.replace(supervisor._args, resume_timeout=0.5)
    for number in range(3):
        assert await dies(alone, "scheduler") == (1, 2 + number)
    async with asyncio.timeout(SOON_S):
        while supervisor._epoch == 1:
            await asyncio.sleep(0.001)
    assert supervisor._incarnations == [5] and "no other was ready" in supervisor._reason
    async with asyncio.timeout(SOON_S):
        while supervisor._epoch == 2:
            await asyncio.sleep(0.001)
    assert supervisor._reason.count("no other was ready") == 1
    supervisor._has_scheduler.set()
    epoch = supervisor._epoch
    await asyncio.sleep(0.7)
    assert supervisor._epoch == epoch
    await supervisor._tasks.close()


async def test_a_scheduler_in_time_keeps_the_epoch(alone: Bench) -> None:
    supervisor = alone.supervisor
    supervisor._has_scheduler.clear()
    waiting = asyncio.ensure_future(supervisor._give_up())
    await asyncio.sleep(0)
    supervisor._has_scheduler.set()
    await waiting
    assert supervisor._epoch == 1


def test_deaths_after_progress_do_not_count(bench: Bench) -> None:
    child = Child("scheduler", has_served=True)
    for _ in range(3 * MAX_RESTARTS):
        child.made_progress, child.started_at = True, time.monotonic()
        asyncio.run(bench.supervisor._restart(child))
    assert bench.supervisor._failure is None and set(bench.slept) == {0.1}


def test_a_draining_ring_restarts_only_its_scheduler(bench: Bench) -> None:
    bench.supervisor._stop.set()
    for child in (Child("scheduler", 0), Child("tokenizer")):
        asyncio.run(bench.supervisor._restart(child))
    assert bench.started == ["scheduler"]


def test_a_drain_ends_when_the_front_that_refuses_has_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a count from before it refused, and in no fixed time."""
    monkeypatch.setattr("srt.ring.supervisor.HEARTBEAT_INTERVAL_S", SOON_S)
    front = bench.supervisor._children["tokenizer"]
    beats = [
        Heartbeat("tokenizer", 1, 1, in_flight=0),
        Heartbeat("tokenizer", 1, 1, in_flight=1, is_draining=True),
        Heartbeat("tokenizer", 1, 1, in_flight=0, is_draining=True),
    ]

    async def next_beat(_: float) -> None:
        front.beat = beats.pop(0)

    monkeypatch.setattr("srt.ring.supervisor.asyncio.sleep", next_beat)
    asyncio.run(bench.supervisor._drain())
    assert beats == []


def test_requests_may_queue_while_the_scheduler_restarts(bench: Bench) -> None:
    supervisor = bench.supervisor
    for part, child in supervisor._children.items():
        child.state, child.beat = "ready", Heartbeat(part, 1, supervisor._epoch)
    scheduler = supervisor._children["scheduler"]
    scheduler.state, scheduler.beat, scheduler.has_served = "dead", None, True
    assert not supervisor.ready and supervisor._event().only_lacks_scheduler
    supervisor._args = msgspec.structs.replace(supervisor._args, queue_while_restarting=True)
    assert supervisor.ready
    scheduler.has_served = False
    assert not supervisor.ready


def test_the_silent_are_published(bench: Bench) -> None:
    supervisor = bench.supervisor
    supervisor._watch.silent = ["tokenizer"]
    assert supervisor._event().silent == ["tokenizer"]


async def test_losses_are_counted_by_kind(alone: Bench) -> None:
    supervisor = alone.supervisor
    await dies(alone, "scheduler")
    await dies(alone, "tokenizer")
    supervisor._children["tokenizer"].is_silent = True
    await dies(alone, "tokenizer")
    await dies(alone, "tokenizer")
    event = supervisor._event()
    expected = [("scheduler", "signal", 1), ("tokenizer", "hang", 2), ("tokenizer", "signal", 1)]
    assert event.losses == expected and event.pause_s == 0.0
    supervisor._losses.go_on()
    assert (pause_s := supervisor._event().pause_s) > 0.0
    supervisor._losses.go_on()
    assert supervisor._event().pause_s == pause_s
    await supervisor._tasks.close()


# ---- several replicas --------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 5))
def test_incarnations_grow_and_tell_their_replica(lost: list[int], replicas: int) -> None:
    incarnations = [replicas + replica for replica in range(replicas)]
    for replica in (number % replicas for number in lost):
        latest = max(incarnations)
        incarnations[replica] = next_incarnation(incarnations, replica)
        assert latest < incarnations[replica] <= latest + replicas
        assert [replica_of(number, replicas) for number in incarnations] == [*range(replicas)]


async def test_a_ring_is_ready_as_long_as_one_replica_is(two: Bench) -> None:
    supervisor = two.supervisor
    assert supervisor.ready and supervisor._event().ready_schedulers == [0, 1]
    await dies(two, "scheduler.0")
    event = supervisor._event()
    assert event.ready and event.incarnations == [4, 3] and event.epoch == 1
    assert event.ready_schedulers == [1] and supervisor._has_scheduler.is_set()
    assert event.pause_s == 0.0
    await dies(two, "scheduler.1")
    event = supervisor._event()
    assert not event.ready and event.incarnations == [4, 5] and event.only_lacks_scheduler
    assert not supervisor._has_scheduler.is_set()
    await dies(two, "tokenizer")
    assert supervisor._event().incarnations == [6, 7] and supervisor._epoch == 2
    await supervisor._tasks.close()


def test_at_the_start_a_ring_waits_for_all_replicas(two: Bench) -> None:
    """One would get all first requests; but not for one that has died."""
    supervisor = two.supervisor
    second = supervisor._children["scheduler.1"]
    second.state, second.has_served, second.beat = "starting", False, None
    assert not supervisor.ready
    second.restarts = 1
    assert supervisor.ready


def test_a_replica_that_dies_for_ever_does_not_end_the_others(two: Bench) -> None:
    child = two.supervisor._children["scheduler.0"]
    child.state, child.restarts = "dead", MAX_RESTARTS
    assert two.supervisor._can_do_without(child)
    two.supervisor._children["scheduler.1"].state = "dead"
    assert not two.supervisor._can_do_without(child)


def test_places_of_other_machines(tmp_path: Path) -> None:
    """The hub reports who is there; each loss renews an incarnation once."""
    args = ServerArgs(
        no_http=True, ring_dir=str(tmp_path / "r"), remote_replicas=2, cluster_insecure=True
    )
    supervisor = Supervisor(args)
    try:
        near, far, empty = supervisor._schedulers
        for part in ("tokenizer", "detokenizer"):
            child = supervisor._children[part]
            child.state, child.beat = "ready", Heartbeat(part, 1, 1)
        near.state, near.beat = "ready", Heartbeat("scheduler.0", 1, 1)
        assert supervisor.ready  # nobody waits for other machines

        def states() -> tuple[str, str]:
            parts = supervisor._event().parts
            return parts["scheduler.1"], parts["scheduler.2"]

        assert states() == ("absent", "absent")
        supervisor._on_place(far, PlaceNews("scheduler.1", 9, True))
        assert states() == ("starting", "absent") and supervisor.ready
        far.state, far.beat = "ready", Heartbeat("scheduler.1", 9, 1)
        assert supervisor._event().ready_schedulers == [0, 1]
        assert supervisor._event().pids["scheduler.1"] == 0  # of another machine
        first = supervisor._incarnations[1]
        supervisor._on_place(far, PlaceNews("scheduler.1", 9, True, first, -9, reason="gone"))
        second = supervisor._incarnations[1]
        assert second > first and states() == ("starting", "absent")
        supervisor._end_epoch()
        third = supervisor._incarnations[1]
        supervisor._on_place(far, PlaceNews("scheduler.1", 9, False, second, -9, reason="gone"))
        assert supervisor._incarnations[1] == third and states() == ("absent", "absent")
        assert ("scheduler.1", "signal", 2) in supervisor._event().losses
        # What has left bounds no request.
        far.facts = SchedulerFacts("native", "float32", 1, 64, 1)
        supervisor._on_place(far, PlaceNews("scheduler.1", 9, True))
        assert supervisor._event().pool_tokens == 64
        supervisor._on_place(far, PlaceNews("scheduler.1", 9, False))
        assert supervisor._event().pool_tokens == 0
        assert empty.state == "absent"
    finally:
        supervisor._context.destroy()
        shutil.rmtree(supervisor.ring.directory)


def test_a_head_without_weights_takes_requests_before_there_is_a_machine(tmp_path: Path) -> None:
    """They wait; but it does not say that it is ready."""
    args = ServerArgs(
        no_http=True, ring_dir=str(tmp_path / "r"), dp=0, remote_replicas=1, cluster_insecure=True
    )
    supervisor = Supervisor(args)
    try:
        assert not supervisor.ready
        for part in ("tokenizer", "detokenizer"):
            child = supervisor._children[part]
            child.state, child.beat = "ready", Heartbeat(part, 1, 1)
        event = supervisor._event()
        assert event.ready and event.is_empty and not is_ready(event)
        far = supervisor._schedulers[0]
        supervisor._on_place(far, PlaceNews("scheduler", 9, True))
        assert is_ready(supervisor._event())
    finally:
        supervisor._context.destroy()
        shutil.rmtree(supervisor.ring.directory)
