"""Addresses, logs and what is made of them: replay, resuming, effects, certificates."""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lang as sgl
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from lang.errors import LangError, ProgramError
from lang.logs.address import Address, Step, address_of
from lang.logs.entries import request_of
from tests.lang.fakes import BOOM, FakeBackend
from tests.lang.programs import World, program, programs

ANY_HEALTH = settings(suppress_health_check=list(HealthCheck))


def told(prompt: Prompt, sampling: Sampling) -> str:
    """An answer that depends on all that was asked."""
    seed = sampling.seed if sampling.temperature != 0 else None
    asked = f"{prompt.text}|{seed}|{sampling.temperature}|{sampling.max_tokens}"
    made = hashlib.blake2b(asked.encode(), digest_size=3).hexdigest()
    if sampling.json_schema is None:
        return made
    if "anyOf" in sampling.json_schema and made[0] > "4":  # a round of an agent, with a call
        return json.dumps({"tool": "act", "arguments": {"text": made}})
    return json.dumps({"answer": made})


def asking() -> FakeBackend:
    return FakeBackend(told)


def summary(state: sgl.ProgramState) -> Any:
    """All that a run made."""
    calls = [(call.address, call.kind, call.name, call.text) for call in state.trace()]
    return state.text(), state.vars(), calls, state.messages()


steps = st.builds(Step, st.just("fork"), st.integers(0, 99), st.integers(0, 9)) | st.builds(
    Step, st.sampled_from(["run", "row"]), st.integers(0, 99)
)
addresses = st.builds(
    Address, st.integers(0, 9), st.lists(steps, max_size=4).map(tuple), st.integers(0, 99)
)


@given(addresses)
def test_an_address_is_read_back(address: Address) -> None:
    assert address_of(str(address)) == address


@pytest.mark.parametrize("text", ["", "0", "0/x1/2", "0/fork/2", "0/fork1.0", "-1/0", "0/1/2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        address_of(text)


def test_addresses_follow_the_source() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += "i" + sgl.gen("y")

    @sgl.function
    def body(s: Any) -> None:
        s += "t" + sgl.gen("a")
        forks = s.fork(2)
        forks += "f" + sgl.gen("b")
        forks.join()
        s.effect(len, "abc")
        inner().sync()
        s += sgl.select("c", ["k", "l"])

    states = body.run_batch([{}, {}], backend=asking())
    places = [[call.address for call in state.trace()] for state in states]
    expected = ["0", "fork1.0/0", "fork1.1/0", "3", "5"]
    assert places == [[f"{row}/{place}" for place in expected] for row in (0, 1)]
    assert all(call.source.startswith(__file__) for call in states[0].trace())
    assert all(call.began_s > 1e9 for call in states[0].trace())


@ANY_HEALTH
@given(programs, st.none() | st.integers(0, 3))
def test_a_replay_asks_nothing_and_is_the_same(steps: Any, seed: int | None) -> None:
    log, world = sgl.Log(), World()
    first = program.run(steps, world, backend=asking(), seed=seed, temperature=0.5, log=log)
    expected = summary(first)
    certificate = first.certificate()
    backend, calls = asking(), list(world.calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = program.run(steps, world, backend=backend, seed=seed, temperature=0.5, log=log)
        assert summary(again) == expected
    assert not backend.prompts and world.calls == calls
    assert all(call.from_log for call in again.trace())
    assert again.certificate() == certificate and certificate.is_whole
    without = program.run(steps, World(), backend=asking(), seed=seed, temperature=0.5)
    assert summary(without) == expected and without.certificate() == certificate


@ANY_HEALTH
@given(programs, st.floats(0, 1))
def test_a_run_that_was_ended_anywhere_goes_on(
    tmp_path_factory: Any, steps: Any, part: float
) -> None:
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    world = World()
    whole = program.run(steps, world, backend=asking(), seed=1, log=sgl.Log(path))
    expected = summary(whole)
    written = path.read_bytes() if path.exists() else b""
    cut = round(part * len(written))
    path.write_bytes(written[:cut])
    kept = written[:cut].count(b"\n")
    backend, before = asking(), len(world.calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = program.run(steps, world, backend=backend, seed=1, log=sgl.Log(path))
        assert summary(resumed) == expected
    made = sum(not call.from_log for call in resumed.trace())
    nested = len(sgl.Log(path)) - len(list(resumed.trace()))  # their trace is their own
    asked_now = len(sgl.Log(path)) - kept
    assert made <= asked_now <= made + nested
    assert len(world.calls) - before == sum(
        entry.kind == "effect" for entry in list(sgl.Log(path))[kept:]
    )


@pytest.mark.full
def test_a_killed_process_resumes_from_its_file(tmp_path: Path) -> None:
    """A child ends itself at its n-th call; the next one finishes what it began."""
    path, effects = tmp_path / "run.jsonl", tmp_path / "effects"
    for at in (1, 2, 3, 2, 99):
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), str(effects), str(at)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.returncode == (0 if at == 99 else 9), child.stderr
    assert effects.read_text() == "done\n"
    backend = asking()
    assert child.stdout == _two.run(effects, backend=backend, seed=3).text()


@sgl.function
def _two(s: Any, effects: Path) -> None:
    s += "Hi" + sgl.gen("a")
    forks = s.fork(3)
    forks += "f" + sgl.gen("b") + "g" + sgl.gen("c")
    forks.join()
    s += str(s.effect(_note, effects, s["a"]))
    s += sgl.gen("d") + str(s["c"])


def _note(effects: Path, text: str) -> int:
    with effects.open("a") as file:
        file.write("done\n")
    return len(text)


_CHILD = """
import os, sys
from pathlib import Path
from tests.lang import test_logs
answer, count = test_logs.told, 0
def told(prompt, sampling):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os._exit(9)
    return answer(prompt, sampling)
backend = test_logs.FakeBackend(told)
state = test_logs._two.run(Path(sys.argv[2]), backend=backend, seed=3, log=sys.argv[1])
print(state.text(), end="")
"""


# ---- programs that change ------------------------------------------------------------------------


def test_a_changed_prompt_is_asked_anew_and_so_is_what_follows() -> None:
    world = World()

    @sgl.function
    def body(s: Any, word: str) -> None:
        s += "same" + sgl.gen("a")
        forks = s.fork(2)
        forks += [f"left {word}" + sgl.gen("b") + sgl.gen("b2"), "right" + sgl.gen("c")]
        first = s.effect(world.act, "before")
        forks.join()
        s += str(s.effect(world.act, "after")) + str(first) + sgl.gen("d")

    log, backend = sgl.Log(), asking()
    body.run("one", backend=backend, log=log, seed=1).sync()
    num_calls, backend.prompts = len(log), []
    with pytest.warns(sgl.LogWarning, match=r"test_logs\.py:[0-9]+: the gen 'b' .*another prompt"):
        changed = body.run("two", backend=backend, log=log, seed=1)
        changed.sync()
    asked = [prompt.text for prompt in backend.prompts]
    assert len(asked) == 3 and not any(text.endswith("right") for text in asked)
    assert world.calls.count("after") == 2 and world.calls.count("before") <= 2
    assert len(log) == num_calls
    backend.prompts = []
    assert summary(body.run("two", backend=backend, log=log, seed=1)) == summary(changed)
    assert not backend.prompts and world.calls.count("after") == 2


def test_what_changed_is_named() -> None:
    @sgl.function
    def body(s: Any, tokens: int, word: str) -> None:
        s += "x" + sgl.gen("a", max_tokens=tokens)
        s.effect(str.upper, word)

    class Other(FakeBackend):
        async def fingerprint(self) -> str:
            return "other"

    log = sgl.Log()
    body.run(3, "w", backend=asking(), log=log).sync()
    with pytest.warns(sgl.LogWarning, match="another parameters"):
        body.run(4, "w", backend=asking(), replay=log).sync()
    with pytest.warns(sgl.LogWarning, match="another model"):
        body.run(3, "w", backend=Other(told), replay=log).sync()
    with pytest.warns(sgl.LogWarning, match="effect 'str.upper' .*another arguments"):
        body.run(3, "v", backend=asking(), replay=log).sync()


def test_a_run_inside_that_changes_is_felt_outside() -> None:
    world = World()

    @sgl.function
    def inner(s: Any, word: str) -> None:
        s += word + sgl.gen("x")

    @sgl.function
    def outer(s: Any, word: str) -> None:
        s.effect(world.act, "first")
        inner(word).sync()
        s.effect(world.act, "last")

    log = sgl.Log()
    outer.run("a", backend=asking(), log=log).sync()
    with pytest.warns(sgl.LogWarning):
        outer.run("b", backend=asking(), log=log).sync()
    assert world.calls == ["first", "last", "last"]


def test_dropped_entries_stay_dropped_in_the_file(tmp_path: Path) -> None:
    """A crash after a change must not bring back effects of the run before it."""
    world, path = World(), tmp_path / "run.jsonl"

    @sgl.function
    def body(s: Any, word: str, stop: bool) -> None:
        s += word + sgl.gen("a")
        s.sync()
        if stop:
            raise RuntimeError("a crash")
        s.effect(world.act, "act")

    body.run("one", False, backend=asking(), log=sgl.Log(path)).sync()
    with pytest.warns(sgl.LogWarning), pytest.raises(RuntimeError):
        body.run("two", True, backend=asking(), log=sgl.Log(path))
    body.run("two", False, backend=asking(), log=sgl.Log(path)).sync()
    assert world.calls == ["act", "act"]


def test_until_goes_back_in_time() -> None:
    counter = iter(range(100))
    backend = FakeBackend(lambda prompt, sampling: f"<{next(counter)}>")

    @sgl.function
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a") + sgl.gen("b") + sgl.gen("c")

    log = sgl.Log()
    body.run(backend=backend, log=log).sync()
    assert [entry.at for entry in log] == ["0/0", "0/1", "0/2"]
    state = body.run(backend=backend, replay=log, until="0/1")
    assert state.vars() == {"a": "<0>", "b": "<3>", "c": "<4>"}
    assert [entry.completions[0].text for entry in log] == ["<0>", "<1>", "<2>"]
    body.run(backend=backend, log=log, until=address_of("0/2")).sync()
    assert [entry.completions[0].text for entry in log] == ["<0>", "<1>", "<5>"]
    with pytest.raises(ValueError, match="no call at 0/7"):
        body.run(backend=backend, replay=log, until="0/7")
    with pytest.raises(ValueError, match="until needs"):
        body.run(backend=backend, until="0/1")
    copied = sgl.Log()
    body.run(backend=backend, replay=log, log=copied).sync()
    assert list(copied) == list(log) and len(log.copy("0/1")) == 1


# ---- errors and files ----------------------------------------------------------------------------


def test_errors_are_asked_again() -> None:
    @sgl.function
    def body(s: Any, fail: list[bool]) -> None:
        s += "x" + sgl.gen("a")
        s.effect(_fail, fail)
        s += BOOM + sgl.gen("b")

    def _fail(fail: list[bool]) -> int:
        if fail.pop():
            raise OSError("the disk is full")
        return 5

    log, backend = sgl.Log(), asking()
    with pytest.raises(OSError, match="disk is full"):
        body.run([True], backend=backend, log=log)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sgl.LogWarning)  # the list is another
        state = body.run([False], backend=backend, log=log)
    assert "exploded" in str(state.error())
    assert [entry.kind for entry in log] == ["gen", "effect"]
    with pytest.raises(ProgramError, match="_note was not called"):
        state.effect(_note, Path("nowhere"), "x")


def test_runs_inside_effects_take_no_numbers() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += "i" + sgl.gen("x")

    @sgl.function
    def body(s: Any) -> None:
        s.effect(lambda: inner().text())
        s += "o" + sgl.gen("y")
        inner().sync()

    log = sgl.Log()
    body.run(backend=asking(), log=log, seed=1).sync()
    places = [entry.at for entry in log]
    assert places == ["0/run0/run0/0", "0/0", "0/1", "0/run2/0"]
    backend = asking()
    body.run(backend=backend, log=log, seed=1).sync()
    assert not backend.prompts and len(log) == 4


def test_results_of_effects() -> None:
    def typed(text: str) -> tuple[int, str]:
        return len(text), text

    @sgl.function
    def body(s: Any) -> Any:
        return s.effect(lambda: (1, {"a": {2}})), s.effect(typed, "ab")

    log = sgl.Log()
    expected = ([1, {"a": [2]}], (2, "ab"))
    assert body.run(backend=asking()).ret_value == expected
    assert body.run(backend=asking(), log=log).ret_value == expected
    assert body.run(backend=asking(), log=log).ret_value == expected
    with pytest.raises(TypeError, match="cannot be recorded"):
        sgl.function(lambda s: s.effect(object)).run(backend=asking())


async def test_effects_of_async_programs() -> None:
    calls = []

    async def fetch(x: int) -> int:
        calls.append(x)
        return x + 1

    @sgl.function
    async def body(s: Any) -> Any:
        s += "x" + sgl.gen("a")
        return await s.aeffect(fetch, 1), await s.aeffect(len, "abc")

    log = sgl.Log()
    for _ in range(2):
        state = await body.arun(backend=asking(), log=log)
        assert state.ret_value == (2, 3)
    assert calls == [1] and len(log) == 3


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @sgl.function
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        with pytest.raises(LangError, match="being written by another run"):
            body.run(backend=asking(), log=sgl.Log(path))
        with pytest.raises(LangError, match="another run is writing it"):
            body.run(backend=asking(), log=log)

    log = sgl.Log(path)
    body.run(backend=asking(), log=log).sync()
    assert len(sgl.Log(path)) == 1
    again = tmp_path / "again.jsonl"
    simple = sgl.function(lambda s: s.__iadd__("x" + sgl.gen("a")))
    for _ in range(2):
        assert simple.run(backend=asking(), log=again).usage().calls == 1
    assert again.read_bytes().count(b"\n") == 1


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n")
    with pytest.raises(LangError, match="line 1: not a line of a log"):
        sgl.Log(path)
    with pytest.raises(TypeError, match="log must be"):
        program.run([], World(), backend=asking(), log=5)


def test_a_batch_has_one_log() -> None:
    @sgl.function
    def body(s: Any, word: str) -> None:
        s += word + sgl.gen("a")

    log, rows = sgl.Log(), [{"word": str(i)} for i in range(5)]
    first = [s.text() for s in body.run_batch(rows, backend=asking(), log=log, seed=2)]
    assert sorted(entry.at for entry in log) == [f"{i}/0" for i in range(5)]
    backend = asking()
    assert [s.text() for s in body.run_batch(rows, backend=backend, log=log, seed=2)] == first
    assert not backend.prompts


def test_a_batch_inside_a_run_has_its_rows() -> None:
    @sgl.function
    def body(s: Any, word: str) -> None:
        s += word + sgl.gen("a")

    @sgl.function
    def outer(s: Any) -> None:
        for state in body.run_batch([{"word": "k"}, {"word": "l"}], backend=s.program.backend):
            s += state["a"]

    log = sgl.Log()
    outer.run(backend=asking(), log=log).sync()
    assert sorted(entry.at for entry in log) == ["0/run0/row0/0", "0/run0/row1/0"]


# ---- hashes --------------------------------------------------------------------------------------


@pytest.mark.full
def test_hashes_are_the_same_in_every_process() -> None:
    code = (
        "from lang.logs.entries import arguments_of, request_of, request_of_effect\n"
        "from lang.backends.base import Prompt\n"
        "a = {'y': {'k', 'l', 'm'}, 'x': 1}\n"
        "print(request_of('m', Prompt('p'), a))\n"
        "print(request_of_effect('f', arguments_of((a, object()), {'k': {1, 'b'}})))"
    )
    made = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        made.add(
            subprocess.run(
                [sys.executable, "-c", code], env=env, check=True, capture_output=True
            ).stdout
        )
    assert len(made) == 1
    one, two = {"x": 1, "y": [2]}, {"y": [2], "x": 1}
    assert request_of("m", Prompt("p"), one) == request_of("m", Prompt("p"), two)
    assert request_of("m", Prompt("p"), one) != request_of("m", Prompt("q"), one)


def test_a_certificate_has_every_word() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += sgl.user("Hi")
        s += sgl.assistant(sgl.gen("a", max_tokens=3) + "and" + sgl.select("b", ["k", "l"]))
        forks = s.fork(2)
        forks += "fork" + sgl.gen("c")
        s.score(["m"])

    backend = asking()
    state = body.run(backend=backend)
    made = state.certificate()
    assert {call.prompt for call in made.calls} == {prompt.text for prompt in backend.prompts}
    assert made.calls[0].parameters == {"max_tokens": 3, "stop": ["<|im_end|>"]}
    assert made == type(made).from_json(made.to_json())
    changed = json.loads(made.to_json())
    changed["calls"][0]["answer"] = "no"
    assert not type(made).from_json(json.dumps(changed)).is_whole
