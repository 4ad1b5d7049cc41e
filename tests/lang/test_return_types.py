"""Functions that say what they return, with a gen named `return`, on a fake back end."""

# mypy: disable-error-code="return"
# The gen `return` makes the result of functions that have no `return` of their own.
from __future__ import annotations

import asyncio
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

import lang as sgl
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from tests.lang.fakes import FakeBackend
from tests.lang.test_types import Mood, Verdict, writing


@sgl.function
def judge(s: Any, essay: str) -> Verdict:
    s += essay + sgl.gen("return", max_tokens=50)


@sgl.function
async def judge_async(s: Any, essay: str) -> Verdict:
    s += essay + sgl.gen("return")


@sgl.function
def outer(s: Any) -> Any:
    first, second = judge("a"), judge("b")
    s += first["return"].why
    return first.ret_value.grade + second.ret_value.grade


@sgl.function
def mood(s: Any) -> Mood:
    s += "q" + sgl.gen("return")


class Judge:
    @sgl.function
    def grade(self, s: Any) -> Annotated[int, Meta(ge=1, le=5)]:
        s += "q" + sgl.gen("return")

    @sgl.function
    @classmethod
    def kind(cls, s: Any) -> Literal["a", "b"]:
        s += "q" + sgl.gen("return")


VERDICT = '{"grade":2,"why":"so"}'


@pytest.mark.parametrize("function", [judge, judge_async, judge.bind(essay="e")])
def test_a_return_type_is_the_result(function: sgl.SglFunction) -> None:
    backend = writing(VERDICT)
    arguments = () if "essay" in function.bind_arguments else ("e",)
    state = function.run(*arguments, backend=backend)
    assert state.ret_value == Verdict(2, "so") == state["return"]
    assert backend.samplings[0].json_schema is not None


async def test_a_return_type_on_a_loop() -> None:
    backend = writing(VERDICT)
    states = await asyncio.gather(*(f.arun("e", backend=backend) for f in (judge, judge_async)))
    assert [state.ret_value for state in states] == [Verdict(2, "so")] * 2


def test_return_types_of_nested_runs_batches_and_streams() -> None:
    backend = writing(VERDICT)
    assert outer.run(backend=backend).ret_value == 4
    states = judge.run_batch([{"essay": "a"}, ("b",)], backend=backend)
    assert [state.ret_value for state in states] == [Verdict(2, "so")] * 2
    assert judge.run("a", backend=backend, stream=True).ret_value == Verdict(2, "so")


def test_return_types_of_methods() -> None:
    state = Judge().grade.run(backend=writing("3"))
    assert state.ret_value == 3
    assert Judge.kind.run(backend=FakeBackend()).ret_value in ("a", "b")


def test_a_return_type_may_be_a_select() -> None:
    backend = FakeBackend()
    assert mood.run(backend=backend).ret_value is Mood.BAD and backend.samplings == [Sampling()]


def test_only_annotated_functions_without_a_value_return_the_variable() -> None:
    @sgl.function
    def plain(s):  # type: ignore[no-untyped-def]
        s += "q" + sgl.gen("return")

    @sgl.function
    def nothing(s: Any) -> None:
        s += "q" + sgl.gen("return")

    @sgl.function
    def own(s: Any) -> int:
        s += "q" + sgl.gen("return", regex="[0-9]")

    @sgl.function
    def returned(s: Any) -> int:
        s += "q" + sgl.gen("return")
        return 1

    @sgl.function
    def unwritten(s: Any) -> int:
        s += "q"

    assert plain.run(backend=writing("7")).ret_value is None
    assert nothing.run(backend=writing("7")).ret_value is None
    assert own.run(backend=writing("7")).ret_value == "7"
    state = returned.run(backend=writing("7"))
    assert (state.ret_value, state["return"]) == (1, 7)
    assert unwritten.run(backend=writing("7")).ret_value is None


def test_a_wrong_result() -> None:
    state = judge.run("e", backend=writing("{}"))
    with pytest.raises(sgl.ProgramError, match="'return' was not written: AnswerError"):
        _ = state.ret_value
    again = ForkingPickler.loads(ForkingPickler.dumps(state))
    assert again.ret_value is None and isinstance(again.error(), sgl.AnswerError)


def test_a_pickled_result() -> None:
    state = judge.run("e", backend=writing(VERDICT))
    assert ForkingPickler.loads(ForkingPickler.dumps(state)).ret_value == Verdict(2, "so")


def test_return_types_that_are_not_found() -> None:
    class Local(msgspec.Struct):
        x: int

    @sgl.function
    def unknown(s: Any) -> Missing:  # type: ignore[name-defined]  # noqa: F821
        s += "q" + sgl.gen("return")

    @sgl.function
    def unused(s: Any) -> Missing:  # type: ignore[name-defined]  # noqa: F821
        s += "q" + sgl.gen("x")

    @sgl.function
    def enclosed(s: Any) -> Local:
        s += f"{Local.__name__}" + sgl.gen("return")

    @sgl.function
    def state_of(s: Any) -> sgl.ProgramState:
        s += "q" + sgl.gen("return")

    error = unknown.run(backend=FakeBackend()).error()
    assert isinstance(error, TypeError)
    assert "return type of unknown cannot be found: name 'Missing'" in str(error)
    assert unused.run(backend=FakeBackend()).error() is None
    assert enclosed.run(backend=writing('{"x":1}')).ret_value == Local(1)
    assert "type must be a pydantic" in str(state_of.run(backend=FakeBackend()).error())


def test_a_body_that_fails_has_no_result() -> None:
    @sgl.function
    def failing(s: Any) -> int:
        raise OSError("no")

    (state,) = failing.run_batch([{}], backend=FakeBackend())
    with pytest.raises(AttributeError, match="has not returned"):
        _ = state.ret_value


def test_the_result_is_not_waited_for_on_the_loop() -> None:
    def answer(prompt: Prompt, sampling: Sampling) -> str:
        return VERDICT

    @sgl.function
    async def late(s: Any) -> Verdict:
        inner = await judge.arun("a")
        return inner.ret_value  # type: ignore[no-any-return]

    assert late.run(backend=FakeBackend(answer)).ret_value == Verdict(2, "so")


def test_reasoning_around_a_typed_result_is_refused() -> None:
    @sgl.function
    def thinking(s: Any) -> int:
        s += "q" + sgl.separate_reasoning(sgl.gen("return"))

    assert "separate_reasoning cannot hold" in str(thinking.run(backend=FakeBackend()).error())
