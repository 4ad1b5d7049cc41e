"""Programs whose server dies under them: they end with the cause, and the next ones run."""

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest

import lang as sgl
from srt.wire.errors import RingError
from tests.e2e.server import Server, gone, running_server
from tests.lang.test_faults import within
from tests.waiting import SOON_S

# At random: what repeats itself is guessed, and soon at its end.
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "temperature": 1.0}


pytestmark = pytest.mark.full


@sgl.function
def tree(s: Any) -> None:
    """Three branches in flight, the first with branches of its own; then a gen."""
    s += "Once upon a time"
    forks = s.fork(3)
    forks += lambda i: f" there were {i} kings" + sgl.gen("story", **LONG)
    inner = forks[0].fork(2)
    inner += " and" + sgl.gen("more", max_tokens=4)
    forks.join()
    s += " The end." + sgl.gen("after", max_tokens=4)


@sgl.function
def short(s: Any) -> None:
    s += "The capital of France is" + sgl.gen("answer", max_tokens=4, temperature=0.0)


def until_running(backend: sgl.RuntimeEndpoint, count: int) -> None:
    deadline = time.monotonic() + SOON_S
    while backend.get_server_info()["num_running_reqs"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("way", ["ring", "http"])
def test_a_killed_detokenizer_ends_programs_with_the_cause(sacrificial: Server, way: str) -> None:
    """Every wait in a tree of forks returns with the cause, and later programs run."""
    url = sacrificial.ring if way == "ring" else sacrificial.url
    with sgl.RuntimeEndpoint(url) as backend:
        before = within(lambda: short.run(backend=backend))
        assert before.error() is None
        with sgl.RuntimeEndpoint(sacrificial.ring) as watcher:
            states = [tree.run(backend=backend, stream=True) for _ in range(2)]
            until_running(watcher, 6)
            os.kill(sacrificial.pids()["detokenizer"], signal.SIGKILL)
        for state in states:
            error = within(state.error)
            assert isinstance(cause(error), RingError), error
            with pytest.raises(sgl.ProgramError):
                within(partial(state.__getitem__, "after"))
        sacrificial.wait_ready()
        sacrificial.wait_idle()
        after = within(lambda: short.run(backend=backend))
        assert after.error() is None and after["answer"] == before["answer"]
    sacrificial.wait_idle()


def cause(error: Any) -> Any:
    """The original cause of a program's error."""
    while getattr(error, "__cause__", None) is not None:
        error = error.__cause__
    return error


def test_a_killed_server_ends_a_batch(tmp_path: Any) -> None:
    """All processes at once, the supervisor too: each program of a batch returns with its error."""
    with running_server(tmp_path) as server, sgl.RuntimeEndpoint(server.ring) as backend:

        def run() -> Any:
            return tree.run_batch([{}] * 3, backend=backend, num_threads=3)

        with sgl.RuntimeEndpoint(server.ring) as watcher:
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(run()), daemon=True)
            thread.start()
            until_running(watcher, 6)
        pids = [*server.pids().values(), server.process.pid]
        os.killpg(server.process.pid, signal.SIGKILL)
        assert gone(pids[:-1], SOON_S)
        thread.join(SOON_S)
        assert results and len(results[0]) == 3
        for state in results[0]:
            assert isinstance(cause(within(state.error)), RingError)
