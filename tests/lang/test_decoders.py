"""Decoders over programs: beam search, best of, votes, and searches of a program's own."""

import heapq
import random
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lang as sgl
from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling
from lang.errors import ProgramError
from tests.lang.fakes import BOOM, FakeBackend
from tests.running.profiles import examples


class Digits(FakeBackend):
    """Samples are digits, and a digit's log-probability is minus the digit: deterministic."""

    def __init__(self) -> None:
        super().__init__(self._digit)

    @staticmethod
    def _digit(prompt: Prompt, sampling: Sampling) -> str:
        seed = f"{prompt.text}|{sampling.seed}" if sampling.seed is not None else None
        drawn = random.Random(seed).randrange(10)
        return str(drawn) if sampling.temperature != 0 else "g"

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        made = await super().generate(prompt, sampling)
        if not sampling.return_logprob:
            return made
        value = -float(made.text) if made.text.isdigit() else 0.0
        meta = {"output_token_logprobs": [[value, 0, made.text]]}
        return Completion(made.text, "stop", completion_tokens=1, meta=meta)


@sgl.function
def three(s: Any, start: str, world: Any = None) -> Any:
    s += start
    if world is not None:
        s.effect(world.append, "begun")
    for i in range(3):
        s += sgl.gen(f"d{i}")
        if s[f"d{i}"] == "0":
            s += "zero"
            break
        s += ","
        if world is not None:
            s.effect(world.append, s[f"d{i}"])
    s += sgl.gen("end", temperature=0)
    return "done"


def _reference(start: str, width: int, expand: int, seed: int) -> list[tuple[float, str]]:
    """Beam search by hand, over all prompts, with the same seeds."""
    search = sgl.Search(three, expand)
    root = search.root(start, seed=seed, backend=Digits())
    beam = [root]
    while not all(node.is_over for node in beam):
        pool = []
        for node in beam:
            pool += node.expand() or [node]
        beam = sorted(pool, key=lambda node: -node.mean_logprob)[:width]
    return [(node.mean_logprob, node.state.text()) for node in beam if node.state is not None]


@settings(max_examples=examples(5))
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_beam_search(width: int, expand: int, seed: int) -> None:
    states = sgl.beam(three, width, expand)("go:", seed=seed, backend=Digits())
    expected = _reference("go:", width, expand, seed)
    assert [state.text() for state in states] == [text for _, text in expected]
    assert len(states) <= width and all(state.ret_value == "done" for state in states)
    assert all(state["end"] == "g" for state in states)
    means = [mean for mean, _ in expected]
    assert means == sorted(means, reverse=True)


def test_a_wide_beam_finds_the_best() -> None:
    """With all digits to choose from, each step's best is the least digit that was drawn."""
    backend = Digits()
    states = sgl.beam(three, width=1, expand=8, score="logprob")("x", seed=1, backend=backend)
    (state,) = states
    assert len(states) == 1
    drawn = [
        [Digits._digit(prompt, sampling) for prompt, sampling in zip(*pair, strict=True)]
        for pair in [(backend.prompts[:8], backend.samplings[:8])]
    ]
    assert state["d0"] == min(drawn[0])
    assert len({sampling.seed for sampling in backend.samplings[:8]}) == 8


def test_a_beam_repeats_no_effect_and_no_call() -> None:
    world: list[str] = []
    backend = Digits()
    states = sgl.beam(three, width=2, expand=2)("go:", world, seed=3, backend=backend)
    prompts = Counter(
        (prompt.text, sampling.seed)
        for prompt, sampling in zip(backend.prompts, backend.samplings, strict=True)
    )
    assert max(prompts.values()) == 1
    assert world.count("begun") == 1 and len(states) == 2


def test_gens_of_forks_and_of_other_names_have_one_answer() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "a" + sgl.gen("plain")
        forks = s.fork(2)
        forks += "f" + sgl.gen("x")
        forks.join("concate_and_append")
        s += sgl.gen("many", n=2) + sgl.gen("step")

    backend = Digits()
    states = sgl.beam(body, 3, 4, names=["step"])(seed=5, backend=backend)
    assert len(states) == len({state["step"] for state in states})
    assert len({state["plain"] for state in states}) == 1
    counts = Counter(prompt.text for prompt in backend.prompts)
    assert sorted(counts.values()) == [1, 2, 2, 4]


def test_forks_that_are_at_work_when_a_gen_branches_are_asked_once() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "a"
        fork = s.fork(1)
        fork += "side" + sgl.gen("x") + sgl.gen("y")
        s += sgl.gen("step")
        fork.join()

    backend = Digits()
    states = sgl.beam(body, 2, 3)(seed=5, backend=backend)
    assert sum("side" in prompt.text for prompt in backend.prompts) == 2
    assert len({str(state["x"]) for state in states}) == 1


def test_failed_runs_leave_the_beam() -> None:
    @sgl.function
    def body(s: Any, least: int) -> None:
        s += "a" + sgl.gen("d")
        if int(s["d"]) < least:
            raise ValueError("too small")
        s += "b" + sgl.gen("e")

    states = sgl.beam(body, 3, 8)(2, seed=2, backend=Digits())
    assert states and all(int(state["d"]) >= 2 for state in states)
    with pytest.raises(ProgramError, match="all runs have failed: too small"):
        sgl.beam(body, 3, 8)(10, seed=2, backend=Digits())
    with pytest.raises(ProgramError, match="exploded"):
        sgl.beam(sgl.function(lambda s: s.__iadd__(BOOM + sgl.gen("x"))))(backend=Digits())


def test_a_search_of_ones_own() -> None:
    """Best first: the node with the highest sum goes on, until one is over."""
    root = sgl.Search(three, 4).root("go:", seed=4, backend=Digits())
    heap, number = [(0.0, 0, root)], 0
    while True:
        node = heapq.heappop(heap)[2]
        children = node.expand()
        if node.state is not None:
            break
        for child in children:
            assert child.parent is node and child.depth == node.depth + 1
            assert child.logprob == node.logprob - float(child.text)
            number += 1
            heapq.heappush(heap, (-child.logprob, number, child))
    assert node.state["end"] == "g" and node.expand() == []
    best = min(_all_sums(root))
    assert -node.logprob == best
    addresses = [entry.at for entry in node.log]
    assert addresses[0] == "0/0" and all("branch" in each for each in addresses[1:])


def _all_sums(node: sgl.Node) -> list[float]:
    children = node.expand()
    if node.is_over:
        return [-node.logprob]
    return [each for child in children for each in _all_sums(child)]


def test_decoders_inside_a_run_are_in_its_log() -> None:
    @sgl.function
    def outer(s: Any) -> None:
        best = sgl.beam(three, 2, 2)("go:")
        s += "|".join(state.text() for state in best)
        s += str(sgl.vote(three, "d0", 3)("v").value)
        s += sgl.gen("last")

    log, backend = sgl.Log(), Digits()
    first = outer.run(backend=backend, log=log).text()  # without a seed
    num_asked = len(backend.prompts)
    assert outer.run(backend=backend, log=log).text() == first
    assert len(backend.prompts) == num_asked
    assert [entry.kind for entry in log][:1] == ["search"]


async def test_decoders_of_async_programs() -> None:
    @sgl.function
    async def body(s: Any) -> str:
        s += "a" + sgl.gen("d")
        value: str = await s.get("d")
        s += value + sgl.gen("e")
        return value

    states = await sgl.beam(body, 2, 3).arun(seed=1, backend=Digits())
    assert [state.ret_value for state in states] == [state["d"] for state in states]
    best = await sgl.best_of(body, 4, score=lambda s: -int(s["d"])).arun(seed=1, backend=Digits())
    vote = await sgl.vote(body, "d", 4).arun(seed=1, backend=Digits())
    assert best["d"] == min(vote.counts)


# ---- best of and votes ---------------------------------------------------------------------------


@sgl.function
def one(s: Any, fails: int = 0) -> None:
    s += "q" + sgl.gen("answer")
    if int(s["answer"]) < fails:
        raise ValueError("too small")


def test_best_of() -> None:
    backend = Digits()
    best = sgl.best_of(one, 6, score=lambda s: sum(s.score([s["answer"]]).values()))
    state = best(seed=3, backend=backend)
    rows = [s["answer"] for s in one.run_batch([{}] * 6, seed=3, backend=Digits())]
    assert state["answer"] == rows[0]  # all score the same: the first one
    low = sgl.best_of(one, 6, score=lambda s: -int(s["answer"]))(seed=3, backend=backend)
    assert low["answer"] == min(rows)
    with pytest.raises(ProgramError, match="too small"):
        sgl.best_of(one, 2, score=lambda s: 0)(10, seed=3, backend=backend)


@given(st.integers(0, 9999), st.integers(1, 12), st.integers(1, 3), st.none() | st.integers(1, 4))
def test_a_vote_that_stops_early_is_the_full_vote(
    seed: int, n: int, modulus: int, at_once: int | None
) -> None:
    def key(answer: str) -> int:
        return int(answer) % modulus

    full = sgl.vote(one, "answer", n, key)(seed=seed, backend=Digits())
    early = sgl.vote(one, "answer", n, key, sgl.decided, at_once)(seed=seed, backend=Digits())
    rows = [key(s["answer"]) for s in one.run_batch([{}] * n, seed=seed, backend=Digits())]
    most = max(Counter(rows).values())
    assert full.value == next(row for row in rows if Counter(rows)[row] == most)
    assert full.counts == Counter(rows) and None not in full.states
    assert early.value == full.value and sum(early.counts.values()) <= n
    if modulus == 1 and at_once == 1:
        assert sum(early.counts.values()) == n // 2 + 1
    assert len(early.states) == n


def test_ended_votes_are_aborted() -> None:
    backend = FakeBackend(lambda prompt, sampling: "1")
    held = threading.Event()

    @sgl.function
    def body(s: Any, rows: Any) -> None:
        row = next(rows)
        s += ("HANG" if row == 2 else "go") + sgl.gen("x")

    vote = sgl.vote(body, "x", 3, stop_when=sgl.decided)(iter(range(3)), backend=backend)
    held.set()
    assert vote.value == "1" and vote.counts == {"1": 2} and vote.states.count(None) == 1
    assert backend.aborted == 1 and backend.live == 0


def test_wrong_arguments() -> None:
    for wrong, message in (
        (lambda: sgl.vote(one, "x", 0), "n must be"),
        (lambda: sgl.best_of(one, 0, score=lambda s: 0), "n must be"),
        (lambda: sgl.beam(one, 0), "width must be"),
        (lambda: sgl.beam(one, 2, 0), "width must be"),
        (lambda: sgl.beam(one, score="best"), "score must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(KeyError):
        sgl.vote(one, "nothing", 2)(backend=Digits())
