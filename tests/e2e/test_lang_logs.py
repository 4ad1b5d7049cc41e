"""Logs, references and decoders on the real model: replays, resumed runs, killed processes."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lang as sgl
from lang import loop
from lang.backends.base import Completion, Prompt, Scores
from lang.backends.sampling import Sampling
from tests.e2e.server import Server
from tests.lang.programs import World, program
from tests.lang.programs import programs_without_agents as programs
from tests.running.profiles import examples

SHORT: dict[str, Any] = {"max_tokens": 4}
# Runs that can be told from others: the same answers to the same questions.
SAMPLED = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}]


class Counting(sgl.RuntimeEndpoint):
    """Counts what it is asked, and the tokens of that."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reset()

    def reset(self) -> None:
        self.asked = self.prompt_tokens = self.cached_tokens = self.new_tokens = 0

    def _count(self, made: Completion) -> Completion:
        self.prompt_tokens += made.prompt_tokens
        self.cached_tokens += made.cached_tokens
        self.new_tokens += made.completion_tokens
        return made

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.asked += 1
        return self._count(await super().generate(prompt, sampling))

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        self.asked += 1
        async for each in super().stream(prompt, sampling):
            yield each

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        self.asked += 1
        return await super().score(prompt, continuations, unconditional=unconditional)


@pytest.fixture(scope="module")
def backend(server: Server) -> Iterator[Counting]:
    yield from _counting(server.ring)


@pytest.fixture(scope="module")
def over_http(server: Server) -> Iterator[Counting]:
    yield from _counting(server.url)


def _counting(url: str) -> Iterator[Counting]:
    backend = Counting(url)
    with backend:
        yield backend


def summary(state: sgl.ProgramState) -> Any:
    """All that a run has made, apart from what only one run can have, such as request ids."""
    calls = [(call.address, call.kind, call.name, call.text) for call in state.trace()]
    return state.text(), state.vars(), calls, state.messages()


def metas(state: sgl.ProgramState) -> Any:
    return {name: state.get_meta_info(name) for name in state.vars()}


FEW = settings(max_examples=examples(4))


# ---- replays and resumed runs --------------------------------------------------------------------


@FEW
@given(programs, st.sampled_from([*SAMPLED, {"temperature": 1.0}]))
def test_a_replay_is_the_first_run(
    backend: Counting, tmp_path_factory: Any, steps: Any, sampling: dict[str, Any]
) -> None:
    """With and without a seed: what was drawn is in the log."""
    path, world = tmp_path_factory.mktemp("log") / "run.jsonl", World()
    first = program.run(steps, world, backend=backend, log=path, **SHORT, **sampling)
    expected = summary(first), metas(first), first.certificate()
    backend.reset()
    calls = list(world.calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = program.run(steps, world, backend=backend, log=path, **SHORT, **sampling)
        assert (summary(again), metas(again), again.certificate()) == expected
    assert backend.asked == 0 and world.calls == calls


@FEW
@given(programs, st.sampled_from(SAMPLED), st.floats(0, 1))
def test_a_run_that_was_cut_anywhere_goes_on(
    backend: Counting, tmp_path_factory: Any, steps: Any, sampling: dict[str, Any], part: float
) -> None:
    path, world = tmp_path_factory.mktemp("log") / "run.jsonl", World()
    first = program.run(steps, world, backend=backend, log=path, **SHORT, **sampling)
    expected, hash_of_all = summary(first), first.certificate().hash
    written = path.read_bytes() if path.exists() else b""
    path.write_bytes(written[: round(part * len(written))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = program.run(steps, world, backend=backend, log=path, **SHORT, **sampling)
        assert summary(resumed) == expected and resumed.certificate().hash == hash_of_all


def test_a_log_of_the_ring_replays_over_http(
    backend: Counting, over_http: Counting, tmp_path: Path
) -> None:
    prints = [loop.call(each.fingerprint()) for each in (backend, over_http)]
    assert prints[0] == prints[1] != ""
    steps: Any = [
        *(("text", "One two three "), ("gen", "a", 2, None), ("select", "b"), ("score",)),
        ("fork", [[("gen", "a", 1, None)], [("read", "b"), ("gen", "c", 1, 3)]], True),
        ("effect", "b"),
    ]
    for number, (one, other) in enumerate([(backend, over_http), (over_http, backend)]):
        path = tmp_path / f"{number}.jsonl"
        first = program.run(steps, World(), backend=one, log=path, **SHORT)
        expected = summary(first), metas(first)
        other.reset()
        again = program.run(steps, World(), backend=other, log=path, **SHORT)
        assert (summary(again), metas(again)) == expected and other.asked == 0


def test_a_streaming_run_and_a_whole_one_share_a_log(backend: Counting, tmp_path: Path) -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "Once upon a time" + sgl.gen("a", max_tokens=8) + ". Then" + sgl.gen("b", max_tokens=8)

    path = tmp_path / "run.jsonl"
    streamed = body.run(backend=backend, stream=True, log=path)
    text = "".join(streamed.text_iter())
    backend.reset()
    assert body.run(backend=backend, log=path).text() == text
    assert "".join(body.run(backend=backend, stream=True, log=path).text_iter()) == text
    assert backend.asked == 0


# ---- a process that is killed --------------------------------------------------------------------


@sgl.function
def story(s: Any, effects: Path) -> None:
    """Two seconds of work, with effects between the calls."""
    s += "Once upon a time there were" + sgl.gen("who", max_tokens=24)
    s.effect(_note, effects, "who", s["who"])
    forks = s.fork(3)
    forks += lambda i: f"\nChapter {i}:" + sgl.gen("first", max_tokens=32)
    forks += " And" + sgl.gen("then", max_tokens=32)
    forks.join()
    for i, text in enumerate(s["then"]):
        s += f"\n{i}: {text}" + sgl.gen(max_tokens=16)
        s.effect(_note, effects, f"chapter {i}", text)
    s += inner().text()
    s += sgl.select("mood", [" sad", " glad"])
    s.effect(_note, effects, "end", s["mood"])


@sgl.function
def inner(s: Any) -> None:
    s += "The moral is" + sgl.gen("moral", max_tokens=16) + sgl.gen("more", max_tokens=16)


def _note(effects: Path, what: str, text: str) -> str:
    with effects.open("a") as file:
        file.write(f"{what} {text!r}\n")
    return what


_CHILD = """
import sys
from pathlib import Path
import lang as sgl
from tests.e2e.test_lang_logs import story
url, path, effects = sys.argv[1:]
with sgl.RuntimeEndpoint(url) as backend:
    state = story.run(Path(effects), backend=backend, seed=3, log=path)
    state.sync()
    sys.stdout.write(state.certificate().hash + "\\n" + state.text())
"""


def _child(server: Server, directory: Path) -> subprocess.Popen[str]:
    paths = [str(directory / "run.jsonl"), str(directory / "effects")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, server.ring, *paths],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.full), pytest.param(30, marks=pytest.mark.slow)]
)
def test_a_process_that_is_killed_anywhere_goes_on(
    server: Server, tmp_path: Path, rounds: int
) -> None:
    """An effect is repeated only if the crash came between it and its record."""
    began, rng = time.monotonic(), random.Random(rounds)
    effects = tmp_path / "whole" / "effects"
    effects.parent.mkdir()
    expected = _child(server, effects.parent).communicate()[0]
    took_s, lines = time.monotonic() - began, effects.read_text()
    assert expected and len(lines.splitlines()) == 5
    for number in range(rounds):
        directory, kills = tmp_path / str(number), 0
        directory.mkdir()
        told = _with_kills(server, directory, rng, took_s)
        while told is None:
            kills += 1
            told = _with_kills(server, directory, rng, took_s * (1 + kills))
        assert told == _with_paths(expected, effects, directory / "effects")
        made = (directory / "effects").read_text().splitlines()
        assert list(dict.fromkeys(made)) == lines.splitlines()
        assert len(made) <= len(lines.splitlines()) + kills


def _with_paths(told: str, old: Path, new: Path) -> str:
    """The certificate's hash is of the arguments of effects too: only the texts are compared."""
    return told.partition("\n")[2].replace(str(old), str(new))


def _with_kills(server: Server, directory: Path, rng: random.Random, within_s: float) -> str | None:
    """What the child says, unless it is killed before."""
    child = _child(server, directory)
    try:
        told = child.communicate(timeout=rng.uniform(0, within_s))[0]
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        return None
    assert child.returncode == 0
    return told.partition("\n")[2]


# ---- seeds ---------------------------------------------------------------------------------------


@sgl.function
def drawn(s: Any) -> None:
    s += "A random word:" + sgl.gen("word", max_tokens=6)


@sgl.function
def draws(s: Any) -> None:
    s["runs"] = [drawn()["word"] for _ in range(3)]
    s += "A random word:"
    forks = s.fork(3)
    forks += sgl.gen("word", max_tokens=6)
    forks.join()
    s += sgl.gen("own", max_tokens=6)


def test_seeds_of_forks_rows_and_runs_differ_and_repeat(backend: Counting) -> None:
    def made() -> list[str]:
        rows = draws.run_batch([{}, {}], backend=backend, seed=7)
        return [text for s in rows for text in (*s["runs"], *s["word"], s["own"])]

    first = made()
    assert len(set(first)) >= 12 and made() == first
    assert draws.run(backend=backend, seed=8)["own"] not in first


def test_nodes_of_a_search_differ_and_repeat(backend: Counting) -> None:
    def made() -> list[str]:
        root = sgl.Search(drawn, 4).root(backend=backend, seed=7)
        return [node.text for node in root.expand()]

    first = made()
    assert len(set(first)) == len(first) >= 3 and made() == first


# ---- references ----------------------------------------------------------------------------------


@sgl.function
def crossed(s: Any) -> None:
    """Forks that use what others write."""
    s += "A list of animals: cat, dog, horse, cow.\n"
    forks = s.fork(2)
    forks[0] += "Another animal:" + sgl.gen("animal", max_tokens=4, temperature=0)
    animal = forks[0].var("animal")
    forks[1] += "The sound of the" + animal.split(",")[0] + " is" + sgl.gen("sound", max_tokens=4)
    s += sgl.concat(["Animal:", animal.strip(), " Sound:", forks[1].var("sound")])
    s += sgl.first([forks[0].var("animal"), forks[1].var("sound")])


def test_references_are_the_texts_that_are_waited_for(backend: Counting) -> None:
    state = crossed.run(backend=backend, seed=3)
    animal, sound = (call.text for call in state.trace())
    start = "A list of animals: cat, dog, horse, cow.\n"
    # The first is ready when both are: it is the first of the list.
    assert state.text() == f"{start}Animal:{animal.strip()} Sound:{sound}{animal}"


# ---- decoders ------------------------------------------------------------------------------------


@sgl.function
def three_steps(s: Any) -> None:
    s += "These are the notes of a gardener who looks after many plants. " * 12
    for step in ("First", "Next", "Last"):
        s += f"{step}, " + sgl.gen(step, max_tokens=12, stop=".") + ". "


@pytest.mark.full
def test_a_beam_computes_little_again(server: Server, backend: Counting) -> None:
    loop.call(backend.flush_cache())
    backend.reset()
    states = sgl.beam(three_steps, width=4, expand=4)(backend=backend, seed=1)
    assert len(states) == 4 and backend.asked == 4 + 16 + 16
    assert backend.cached_tokens >= 0.9 * backend.prompt_tokens
    again = sgl.beam(three_steps, width=4, expand=4)(backend=backend, seed=1)
    assert [state.text() for state in again] == [state.text() for state in states]
    sums = [_mean_logprob(state) for state in states]
    assert sums == sorted(sums, reverse=True)


def _mean_logprob(state: sgl.ProgramState) -> float:
    rows: list[float] = [
        row[0]
        for name in ("First", "Next", "Last")
        for row in (state.get_meta_info(name) or {})["output_token_logprobs"]
    ]
    return sum(rows) / len(rows)


def test_a_beam_in_a_log_is_replayed(backend: Counting, tmp_path: Path) -> None:
    @sgl.function
    def outer(s: Any) -> None:
        best = sgl.beam(three_steps, width=2, expand=3)()
        s += "|".join(state.text() for state in best) + sgl.gen("after", max_tokens=4)

    path = tmp_path / "run.jsonl"
    first = outer.run(backend=backend, log=path).text()  # without a seed
    backend.reset()
    assert outer.run(backend=backend, log=path).text() == first and backend.asked == 0


@sgl.function
def number(s: Any) -> None:
    s += "A number from 1 to 3:" + sgl.gen("number", max_tokens=2, regex=" [123]")
    s += ". Because" + sgl.gen("why", max_tokens=24, ignore_eos=True)


@pytest.mark.full
def test_a_vote_that_stops_is_the_full_vote(backend: Counting) -> None:
    def key(text: str) -> int:
        return int(text) // 3

    for seed in range(2):
        backend.reset()
        full = sgl.vote(number, "number", 8, key)(backend=backend, seed=seed)
        tokens = backend.new_tokens
        backend.reset()
        vote = sgl.vote(number, "number", 8, key, sgl.decided, at_once=2)
        early = vote(backend=backend, seed=seed)
        assert early.value == full.value and sum(full.counts.values()) == 8
        assert backend.new_tokens <= tokens
        rows = number.run_batch([{}] * 8, backend=backend, seed=seed)
        assert full.counts == Counter(key(s["number"]) for s in rows)
