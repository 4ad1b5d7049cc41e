"""What a state shows of itself: variables, usage, its pickle, its view in a notebook."""

import multiprocessing
import threading
from typing import Any

import pytest

import lang as sgl
from lang.errors import ProgramError, UnsupportedError
from tests.lang.fakes import BOOM, HANG, FakeBackend
from tests.lang.test_faults import within


@sgl.function
def chat(s: Any, q: str) -> int:
    s += sgl.user(q)
    s += sgl.assistant("Well, " + sgl.gen("a", regex="(?P<x><[0-9]+>)"))
    s["given"] = {"k": 7}
    forks = s.fork(2)
    forks += sgl.gen("b")
    forks.join()
    s += sgl.gen() + sgl.select("c", ["k l", "m"])
    return 5


def test_all_variables() -> None:
    state = chat.run("hey", backend=FakeBackend())
    values = within(state.vars)
    assert values == {name: state[name] for name in ("a", "given", "b", "c")}
    failed = sgl.function(lambda s: s.__iadd__("x" + sgl.gen("a") + BOOM + sgl.gen("b")))
    assert within(failed.run(backend=FakeBackend()).vars) == {"a": "<1>"}


def test_usage_is_of_all_calls() -> None:
    state = chat.run("hey", backend=FakeBackend())
    usage, calls = within(state.usage), list(state.trace())
    assert usage.calls == len(calls) == 5
    assert usage.prompt_tokens == sum(call.prompt_tokens for call in calls) > 0
    assert usage.completion_tokens == sum(call.completion_tokens for call in calls) > 0


def sent(state: sgl.ProgramState) -> Any:
    """What another process would receive."""
    ours, theirs = multiprocessing.Pipe()
    ours.send(state)
    return theirs.recv()


def test_a_state_can_be_pickled() -> None:
    state = chat.run("hey", backend=FakeBackend(), seed=1)
    again = sent(state)
    assert (again.text(), again.messages()) == (state.text(), state.messages())
    assert again.vars() == state.vars() and again["a"].x == state["a"].x
    assert again.get_meta_info("a") == state.get_meta_info("a")
    assert again.trace().to_list() == state.trace().to_list() and again.ret_value == 5
    assert again.error() is None and list(again.text_iter()) == [state.text()]
    again += "more" + sgl.gen("d")
    with pytest.raises(ProgramError, match="no back end"):
        _ = again["d"]
    sgl.set_default_backend(FakeBackend())
    try:
        other = sent(state)
        other += "more" + sgl.gen("d")
        assert other["d"] == f"<{len(state.text()) + 4}>"
    finally:
        sgl.set_default_backend(None)


class Odd(Exception):
    """It cannot be unpickled: its `args` are not those of its constructor."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


@pytest.mark.parametrize("error", [UnsupportedError("a", "b: c"), ValueError("x"), Odd(1, 2)])
def test_a_failed_state_can_be_pickled(error: Exception) -> None:
    backend = FakeBackend()
    backend.error = error
    state = sgl.function(lambda s: s.__iadd__(BOOM + sgl.gen("a"))).run(backend=backend)
    again = sent(state)
    assert str(error) in str(again.error()) and again.text("keep") == BOOM
    if not isinstance(error, Odd):
        assert type(again.error()) is type(error)
    assert again.ret_value is again  # what `__iadd__` returns
    with pytest.raises(ProgramError):
        _ = again["a"]


def test_a_failed_state_is_not_lost_with_its_error() -> None:
    class Local(Exception):
        pass

    locked = ValueError("it holds a lock")
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    for error in (Local("it is local"), locked):

        def body(s: Any, error: Exception = error) -> None:
            s += "a" + sgl.gen("x")
            s.sync()
            raise error

        state = sgl.function(body).run(backend=FakeBackend(), stream=True)
        with pytest.raises(ProgramError):  # the function has raised by then
            list(state.text_iter())
        again = sent(state)
        assert (again.text("keep"), again["x"]) == ("a<1>", "<1>")
        assert f"{type(error).__name__}: {error}" in str(again.error())
        backend = FakeBackend()
        backend.error = error
        failed = sgl.function(lambda s: s.__iadd__(BOOM + sgl.gen("a"))).run(backend=backend)
        assert str(error) in str(sent(failed).error())


def test_pickling_leaves_the_seeds_as_they_are() -> None:
    def seeds(copies: int) -> list[int | None]:
        def body(s: Any) -> None:
            s += "a" + sgl.gen("x")
            s.sync()
            for _ in range(copies):
                sent(s)
            s += "b" + sgl.gen("y")

        backend = FakeBackend()
        sgl.function(body).run(backend=backend, seed=5).sync()
        return [sampling.seed for sampling in backend.samplings]

    assert seeds(0) == seeds(2)


def test_a_notebook_shows_a_whole_state() -> None:
    """Even if the program is still running when it is shown."""
    go = threading.Event()

    def body(s: Any) -> None:
        s += "<" + sgl.gen("a")
        go.wait()
        s += "&" + sgl.gen("b")

    state = sgl.function(body).run(backend=FakeBackend(), stream=True)
    assert "at work" in repr(state)
    threading.Timer(0.05, go.set).start()
    assert within(state._repr_html_) == "<pre>&lt;<b>&lt;1&gt;</b>&amp;<b>&lt;5&gt;</b></pre>"
    assert repr(state) == "ProgramState('<<1>&<5>')"
    failed = sgl.function(lambda s: s.__iadd__(BOOM + sgl.gen("a"))).run(backend=FakeBackend())
    assert "ValueError: the model exploded" in within(failed._repr_html_)
    hanging = sgl.function(lambda s: s.__iadd__(HANG + sgl.gen("a", timeout_s=0.05)))
    assert "TimeoutError" in within(hanging.run(backend=FakeBackend())._repr_html_)
