"""Replays of what is not one call after the other: late answers, effects of anything, decoders."""

import asyncio
import copy
import errno
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import lang as sgl
from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling
from tests.lang.fakes import FakeBackend
from tests.lang.test_decoders import Digits, one, three
from tests.lang.test_faults import until, within
from tests.lang.test_logs import asking

SLOW = "slow"  # a prompt that ends like this is answered when the test says so


class Held(Digits):
    """Prompts that end in `SLOW` wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        if prompt.text.endswith(SLOW):
            await asyncio.to_thread(self.go.wait, 60)
        return await super().generate(prompt, sampling)


# ---- effects -------------------------------------------------------------------------------------


class Thing:
    pass


ODD: list[Any] = [{(1, 2): 3}, {1: 2}, {1, "a"}, {Thing(), Thing()}, 2**80, "\ud800", Thing()]
ODD += [threading.Lock(), float("inf"), b"\xff", Path("x")]


@pytest.mark.parametrize("argument", ODD, ids=lambda each: type(each).__name__)
def test_arguments_of_effects_may_be_anything(argument: Any) -> None:
    calls: list[Any] = []

    def act(thing: Any) -> int:
        calls.append(thing)
        return 1

    body = sgl.function(lambda s: s.effect(act, argument))
    log = sgl.Log()
    states = [body.run(backend=asking(), log=log) for _ in range(2)]
    assert len(calls) == 1
    one, other = (state.certificate() for state in states)
    assert one.hash == other.hash and one.is_whole
    assert sgl.Certificate.from_json(one.to_json()) == one
    assert copy.deepcopy(states[0]).ret_value == 1  # as pickling does it


def test_a_certificate_has_the_arguments_as_they_were() -> None:
    @sgl.function
    def body(s: Any) -> None:
        words = ["a"]
        s.effect(len, words)
        words.append("b")

    (call,) = body.run(backend=asking()).certificate().calls
    assert call.parameters == {"args": [["a"]], "kwargs": {}}


# ---- files ---------------------------------------------------------------------------------------


@sgl.function
def inner(s: Any) -> None:
    s += SLOW + sgl.gen("y")


def test_a_run_inside_that_ends_last_leaves_the_file_to_others(tmp_path: Path) -> None:
    held: list[sgl.ProgramState] = []

    @sgl.function
    def outer(s: Any) -> None:
        s += "a" + sgl.gen("x")
        held.append(inner())

    path, backend = tmp_path / "run.jsonl", Held()
    first = outer.run(backend=backend, log=path)  # and stays alive
    within(first.sync)
    backend.go.set()
    within(held[0].sync)
    until(lambda: len(sgl.Log(path)) == 2)
    again = outer.run(backend=backend, log=path)
    assert within(again.text) == first.text() and within(held[1].text) == held[0].text()
    assert len(backend.prompts) == 2


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write, is_full = tmp_path / "run.jsonl", os.write, [False]

    def failing(fd: int, data: bytes) -> int:
        if data.startswith(b'{"at":') and is_full[0]:
            if len(data) > 20:
                return write(fd, data[:20])
        elif is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    @sgl.function
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        s.sync()
        is_full[0] = True
        fork = s.fork(1)
        fork += "f" + sgl.gen("b")
        s["error"] = str(fork[0].error())
        is_full[0] = False
        s += sgl.gen("c")

    monkeypatch.setattr(os, "write", failing)
    state = body.run(backend=asking(), log=path)
    state.sync()
    assert "No space left" in state["error"]
    assert [entry.name for entry in sgl.Log(path)] == ["a", "c"]


# ---- decoders ------------------------------------------------------------------------------------


def test_a_vote_that_ended_early_is_replayed_with_the_same_rows() -> None:
    backend = Held()

    @sgl.function
    def row(s: Any) -> None:
        number = s.program.place.path[-1].index
        s += ("go" if number % 3 else SLOW) + sgl.gen("answer")

    @sgl.function
    def outer(s: Any) -> None:
        vote = sgl.vote(row, "answer", 9, key=bool, stop_when=sgl.decided)()
        s += f"{vote.value} {vote.counts} {[state is None for state in vote.states]}"
        s += sgl.gen("last")

    log = sgl.Log()
    first = within(lambda: outer.run(backend=backend, log=log).text())
    assert first.startswith("True {True: ") and "[True, False, False, True" in first
    backend.go.set()
    backend.prompts = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = outer.run(backend=backend, log=log)
        assert within(again.text) == first
    assert not backend.prompts


def test_ended_votes_have_no_request_left() -> None:
    backend = FakeBackend(lambda prompt, sampling: "1")
    rows = iter(range(3))

    @sgl.function
    def body(s: Any) -> None:
        s += ("HANG" if next(rows) == 2 else "go") + sgl.gen("x")

    for _ in range(20):
        rows = iter(range(3))
        vote = sgl.vote(body, "x", 3, stop_when=sgl.decided)(backend=backend)
        assert vote.counts == {"1": 2} and backend.live == 0


class Dashed(Digits):
    async def fingerprint(self) -> str:
        return "http://host/v1 gpt-4o-mini"


def test_a_models_name_may_have_dashes() -> None:
    @sgl.function
    def outer(s: Any) -> None:
        s += sgl.beam(three, 2, 2)("go:")[0].text()

    log, backend = sgl.Log(), Dashed()
    first = outer.run(backend=backend, log=log).text()
    num_asked = len(backend.prompts)
    assert outer.run(backend=backend, log=log).text() == first
    assert len(backend.prompts) == num_asked


def test_a_fork_at_work_is_asked_once_when_the_program_reads_what_branches() -> None:
    """Also a run inside the program, which is not waited for."""

    @sgl.function
    def body(s: Any) -> None:
        s += "a"
        fork = s.fork(1)
        fork += SLOW
        fork += sgl.gen("x")
        beside = inner()
        s += sgl.gen("step")
        started.set()
        s["step"]
        fork.join()
        s += str(s["x"]) + beside["y"]

    backend, started = Held(), threading.Event()
    results: list[list[sgl.ProgramState]] = []
    thread = threading.Thread(
        target=lambda: results.append(sgl.beam(body, 2, 3)(seed=5, backend=backend))
    )
    thread.start()
    assert started.wait(60)
    until(lambda: len(backend.prompts) == 3)  # the samples of the step
    backend.go.set()
    thread.join(60)
    (states,) = results
    assert len(states) == 2 and all(state.error() is None for state in states)
    assert sum(prompt.text.endswith(SLOW) for prompt in backend.prompts) == 2


@pytest.mark.parametrize("changed", ["prompt", "call"])
def test_a_searched_function_that_changed_is_searched_anew(changed: str) -> None:
    now = [""]

    @sgl.function
    def body(s: Any) -> None:
        s += ("two" if now == ["prompt"] else "one") + sgl.gen("d")
        s.sync()
        if now == ["call"]:
            s += ":" + sgl.gen("e")

    @sgl.function
    def outer(s: Any) -> None:
        s += "|".join(state.text() for state in sgl.beam(body, 2, 3)())

    log = sgl.Log()
    outer.run(backend=Digits(), log=log, seed=1).sync()
    now[0] = changed
    expected = outer.run(backend=Digits(), seed=1).text()
    with pytest.warns(sgl.LogWarning, match="searched anew"):
        assert outer.run(backend=Digits(), log=log, seed=1).text() == expected
    backend = Digits()
    assert outer.run(backend=backend, log=log, seed=1).text() == expected
    assert not backend.prompts


def test_a_models_fingerprint_is_asked_for_once() -> None:
    class Counting(Digits):
        asked = 0

        async def fingerprint(self) -> str:
            self.asked += 1
            return "model"

    @sgl.function
    def outer(s: Any) -> None:
        for state in one.run_batch([{}] * 5):
            s += state["answer"]

    backend = Counting()
    outer.run(backend=backend, log=sgl.Log(), seed=1).sync()
    assert backend.asked <= 5  # the rows began at once
    backend.asked = 0
    sgl.beam(three, 3, 3)("go:", seed=1, backend=backend)
    assert backend.asked == 1
