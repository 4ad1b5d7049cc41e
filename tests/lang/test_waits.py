"""What each call is reported to have waited for."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lang as sgl
from lang.logs.reports import report
from lang.logs.reports.waits import MAX_AFTER, Waits
from tests.lang.fakes import FakeBackend
from tests.waiting import SOON_S

Afters = dict[str, list[str]]


class Told:
    """In the place of a sender: the last that was reported of each step."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, Any]] = {}

    def add(self, head: Any, step: dict[str, Any]) -> None:
        self.steps[step["id"]] = step

    def end(self, head: Any) -> None:
        pass

    def _is_whole(self) -> bool:
        """Whether all steps that others came after are here: a fork's come a little later."""
        return all(each in self.steps for step in self.steps.values() for each in step["after"])

    def afters(self) -> Afters:
        """By the names of the calls, which must not be used twice."""
        deadline = time.monotonic() + SOON_S
        while not self._is_whole() and time.monotonic() < deadline:
            time.sleep(0.001)
        names = {name: step["name"].rpartition(".")[2] for name, step in self.steps.items()}
        assert len(set(names.values())) == len(names)
        return {
            names[name]: sorted(names[each] for each in step["after"])
            for name, step in self.steps.items()
        }


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    made = Told()
    monkeypatch.setattr(report, "_is_on", True)
    monkeypatch.setattr(report, "_sender", made)
    yield made


def backend() -> FakeBackend:
    return FakeBackend(lambda prompt, sampling: "fine")


def afters_of(told: Told, function: Callable[..., Any], **kwargs: Any) -> Afters:
    state = sgl.function(function).run(backend=backend(), **kwargs)
    state.sync()
    assert state.error() is None
    return told.afters()


def look_up(word: str) -> str:
    return word


@sgl.function
def inner(s: sgl.ProgramState, name: str, text: Any = "") -> str:
    s += text + sgl.gen(name)
    return str(s[name])


def test_calls_of_a_state_come_one_after_the_other(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a") + sgl.select("b", ["fine", "bad"])
        s += sgl.gen("c", n=2)

    assert afters_of(told, program) == {"a": [], "b": ["a"], "c": ["b"]}


def test_forks_wait_for_what_is_before_and_joins_for_all(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        forks = s.fork(3)
        forks[0] += sgl.gen("b")
        forks[1] += sgl.gen("c") + sgl.gen("d")
        s += sgl.gen("beside")
        forks.join()
        s += sgl.gen("e")

    assert afters_of(told, program) == {
        "a": [],
        "b": ["a"],
        "c": ["a"],
        "d": ["c"],
        "beside": ["a"],
        "e": ["b", "beside", "d"],
    }


def test_what_the_function_reads_is_waited_for(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x"
        first, second, third = s.fork(3)
        first += sgl.gen("a")
        second += sgl.gen("b")
        third += sgl.gen("c")
        s += first["a"] + sgl.gen("d")
        third.sync()
        second += sgl.gen("e")
        s["kept"] = second["b"]
        s += sgl.gen("f")

    assert afters_of(told, program) == {
        "a": [],
        "b": [],
        "c": [],
        "d": ["a"],
        "e": ["a", "b", "c"],
        "f": ["b", "c", "d"],
    }


def test_what_was_read_later_stands_for_what_was_read_before(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x"
        for i in range(20):
            fork = s.fork(1)[0]
            fork += sgl.gen(f"a{i}")
            fork[f"a{i}"]

    afters = afters_of(told, program)
    assert afters == {"a0": []} | {f"a{i}": [f"a{i - 1}"] for i in range(1, 20)}


def test_references_are_waited_for_by_who_uses_them(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x"
        first, second = s.fork(2)
        first += sgl.gen("a")
        second += sgl.gen("b")
        word = first.var("a").strip()
        inner(name="c", text=sgl.concat([word, "and"])).sync()
        second += sgl.format("{word}", word=word) + sgl.gen("d")
        s += sgl.when(second.var("d").matches("fine"), sgl.gen("e"), "no")
        s += sgl.gen("f")

    assert afters_of(told, program) == {
        "a": [],
        "b": [],
        "c": ["a"],
        "d": ["b", "c"],
        "e": ["d"],
        "f": ["c", "e"],  # the function knew of c when it gave f
    }


def test_runs_inside_wait_for_what_the_function_knew(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        word = s["a"]
        first = inner.run(name="b", text=word)
        second = inner(name="c", text=word)
        s += first.ret_value + sgl.gen("d")
        s += second["c"] + sgl.gen("e")

    assert afters_of(told, program) == {
        "a": [],
        "b": ["a"],
        "c": ["a"],
        "d": ["b"],
        "e": ["c", "d"],
    }


def test_effects_wait_for_their_state_and_are_waited_for(told: Told) -> None:
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        fork = s.fork(1)[0]
        fork += sgl.gen("b")
        s += s.effect(look_up, fork["b"]) + sgl.gen("c")

    assert afters_of(told, program) == {"a": [], "b": ["a"], "look_up": ["b"], "c": ["look_up"]}


async def test_async_programs_wait_for_the_same(told: Told) -> None:
    async def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        fork = s.fork(1)[0]
        fork += sgl.gen("b")
        s += await s.aeffect(look_up, await fork.get("b")) + sgl.gen("c")
        other = s.fork(1)[0]
        other += sgl.gen("d")
        await other.wait()
        s += sgl.gen("e")

    state = await sgl.function(program).arun(backend=backend())
    await state.wait()
    assert told.afters() == {
        "a": [],
        "b": ["a"],
        "look_up": ["b"],
        "c": ["look_up"],
        "d": ["c"],
        "e": ["d"],
    }


def test_compiled_programs_wait_for_the_same(told: Told) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        forks = s.fork(2)
        forks += [sgl.gen("b"), sgl.gen("c")]
        forks.join()
        s += sgl.gen("d")

    program.compile().run(backend=backend()).sync()
    assert told.afters() == {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def test_of_very_many_the_last_to_end_are_reported() -> None:
    waits = Waits()
    for number in range(2 * MAX_AFTER):
        one = Waits()
        one.begin(str(number)).ended_s = float(number % MAX_AFTER)
        waits.also(one.calls)
    after = waits.begin("join").after
    assert len(after) == MAX_AFTER
    assert {int(name) % MAX_AFTER for name in after} == set(range(MAX_AFTER // 2, MAX_AFTER))


def test_nothing_is_kept_where_nothing_is_reported() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "x" + sgl.gen("a")
        forks = s.fork(2)
        forks += sgl.gen("b")
        forks.join()
        assert s["b"] == ["fine", "fine"]

    assert not report._is_on
    state = program.run(backend=backend())
    state.sync()
    assert state._stream.waits.calls == {} and state.program.waits.calls == {}
