"""Errors, time-outs and cancellation: everything that waits returns, and every call ends."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lang as sgl
from lang import loop
from lang.errors import CancelledError, ProgramError
from tests.lang.fakes import BOOM, HANG, FakeBackend
from tests.waiting import SOON_S


def within(function: Callable[[], Any]) -> Any:
    """What `function` returns. It runs in a thread, so that a hang fails the test."""
    result: list[Any] = []

    def work() -> None:
        try:
            result.append((function(), None))
        except Exception as error:
            result.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert result, "it hangs"
    value, error = result[0]
    if error is not None:
        raise error
    return value


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does soon."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@sgl.function
def failing(s: Any) -> None:
    s += "a" + sgl.gen("one")
    s += BOOM + sgl.gen("two")
    s += "b" + sgl.gen("three")
    with s.user():
        s += sgl.select("four", ["x"])


def test_an_error_is_kept_and_the_rest_is_skipped() -> None:
    backend = FakeBackend()
    state = within(lambda: failing.run(backend=backend))
    assert within(state.error) is backend.error
    assert state["one"] == "<1>" and within(lambda: state.text("keep")) == "a<1>BOOM"
    for name in ("two", "three", "four"):
        with pytest.raises(ProgramError, match="exploded") as caught:
            within(partial(state.__getitem__, name))
        assert caught.value.__cause__ is backend.error
    for wait in (state.sync, state.text, state.messages):
        with pytest.raises(ProgramError) as caught:
            within(wait)
        assert caught.value.__cause__ is backend.error
    with pytest.raises(ValueError, match="errors must be"):
        state.text("ignore")
    with pytest.raises(ProgramError):
        within(lambda: state.get_meta_info("three"))
    with pytest.raises(ProgramError, match="never written"):
        within(lambda: state["five"])
    assert state.messages("keep") == [] and len(backend.prompts) == 2
    assert [call.error for call in state.trace()] == [None, "ValueError: the model exploded"]


def test_more_after_the_error_does_not_hang() -> None:
    state = within(lambda: failing.run(backend=FakeBackend()))
    state += "later" + sgl.gen("six")
    with pytest.raises(ProgramError):
        within(lambda: state["six"])
    forks = state.fork(2)
    forks += sgl.gen("seven")
    forks.join()
    for read in (lambda: forks[1]["seven"], lambda: state["seven"]):
        with pytest.raises(ProgramError):
            within(read)
    assert within(forks[0].error) is state.error()


def test_an_error_in_a_fork_fails_the_join_only() -> None:
    backend = FakeBackend()

    def body(s: Any) -> Any:
        s += "x"
        forks = s.fork(3)
        forks += ["a", BOOM, "c"]
        forks += sgl.gen("v")
        assert forks[0]["v"] == "<2>" and forks[2]["v"] == "<2>"
        assert s.error() is None
        forks.join()
        return forks

    state = within(lambda: sgl.function(body).run(backend=backend))
    assert within(state.error) is backend.error
    with pytest.raises(ProgramError):
        _ = state["v"]


def test_what_the_function_raises() -> None:
    backend = FakeBackend()

    def body(s: Any) -> None:
        s += HANG + sgl.gen("a")
        until(lambda: backend.live == 1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        within(lambda: sgl.function(body).run(backend=backend))
    until(lambda: backend.aborted == 1)


def test_a_failed_value_in_the_function_carries_its_cause() -> None:
    backend = FakeBackend()

    def body(s: Any) -> None:
        s += BOOM + sgl.gen("a")
        s += s["a"]

    with pytest.raises(ProgramError) as caught:
        within(lambda: sgl.function(body).run(backend=backend))
    assert caught.value.__cause__ is backend.error


def test_a_batch_returns_the_other_programs_results() -> None:
    def body(s: Any, i: int) -> None:
        if i == 2:
            raise LookupError("mine")
        s += (BOOM if i == 1 else f"{i}") + sgl.gen("a")
        if i == 3:
            _ = s["missing"]

    backend = FakeBackend()
    states = within(lambda: sgl.function(body).run_batch([(i,) for i in range(5)], backend=backend))
    assert states[0]["a"] == states[4]["a"] == "<1>"
    errors = [state.error() for state in states]
    assert errors[0] is None and errors[4] is None and errors[1] is backend.error
    assert isinstance(errors[2], LookupError) and isinstance(errors[3], KeyError)


def test_the_time_limit_of_a_run() -> None:
    backend = FakeBackend()

    def body(s: Any) -> None:
        s += HANG + sgl.gen("a")
        forks = s.fork(2)
        forks += sgl.gen("b")
        forks.join()

    state = within(lambda: sgl.function(body).run(backend=backend, timeout_s=0.01))
    assert isinstance(within(state.error), TimeoutError)
    with pytest.raises(ProgramError, match="timeout_s"):
        within(lambda: state["b"])
    until(lambda: backend.aborted == 1)


def test_the_time_limit_of_a_gen() -> None:
    backend = FakeBackend()
    body = sgl.function(lambda s: s.__iadd__(HANG + sgl.gen("a", timeout_s=0.01)))
    state = body.run(backend=backend)
    assert "timeout_s=0.01" in str(within(state.error)) and backend.aborted == 1
    one, other = within(
        lambda: sgl.function(lambda s, word: s.__iadd__(word + sgl.gen("a"))).run_batch(
            [(HANG,), ("x",)], backend=backend, timeout_s=1.0
        )
    )
    assert isinstance(one.error(), TimeoutError) and other["a"] == "<1>"


def test_a_limited_run_that_is_quick_is_not_disturbed_later() -> None:
    state = sgl.function(lambda s: s.__iadd__(sgl.gen("a"))).run(
        backend=FakeBackend(), timeout_s=0.5
    )
    assert state["a"] == "<0>"
    within(lambda: asyncio.run(asyncio.sleep(0.6)))
    assert state.error() is None


def test_cancelling_a_run_reaches_its_forks_and_the_runs_inside() -> None:
    backend = FakeBackend()
    inner = sgl.function(lambda s: s.__iadd__(HANG + sgl.gen("i")))

    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += HANG + sgl.gen("a")
        s["inner"] = inner()

    state = sgl.function(body).run(backend=backend)
    until(lambda: backend.live == 3)
    state.cancel()
    until(lambda: backend.aborted == 3)
    assert isinstance(within(state.error), CancelledError)
    with pytest.raises(ProgramError):
        within(lambda: state["inner"]["i"])


async def test_cancelling_arun_aborts() -> None:
    backend = FakeBackend()

    def plain(s: Any) -> None:
        s += HANG + sgl.gen("a")
        _ = s["a"]

    async def asynchronous(s: Any) -> None:
        s += HANG + sgl.gen("a")
        await s.get("a")

    for count, body in enumerate((plain, asynchronous), 1):
        task = asyncio.ensure_future(sgl.function(body).arun(backend=backend))
        while backend.live == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.aborted < count:
            await asyncio.sleep(0)


def test_an_interrupt_aborts() -> None:
    backend = FakeBackend()

    def body(s: Any) -> None:
        s += HANG + sgl.gen("a")
        until(lambda: backend.live == 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sgl.function(body).run(backend=backend)
    until(lambda: backend.aborted == 1)


def test_leaving_a_stream_or_a_batch_aborts() -> None:
    backend = FakeBackend(lambda p, s: "xyz" + HANG)
    f = sgl.function(lambda s: s.__iadd__(sgl.gen("a")))
    pieces = f.run(stream=True, backend=backend).text_iter()
    assert within(lambda: next(pieces)) != ""
    within(pieces.close)
    hanging = FakeBackend()
    g = sgl.function(lambda s, w: s.__iadd__(w + sgl.gen("a")))
    words = [("x",), (HANG,), (HANG,), (HANG,)]
    states = g.run_batch(words, backend=hanging, generator_style=True, num_threads=2)
    assert within(lambda: next(states))["a"] == "<1>"
    until(lambda: hanging.live == 2)
    within(states.close)
    assert hanging.aborted == 2 and len(hanging.prompts) <= 4


def slow_to_close() -> FakeBackend:
    backend = FakeBackend()
    backend.may_close = Future()
    return backend


@pytest.mark.parametrize("count", [1, 3])
def test_leaving_a_batch_of_async_programs_ends_its_requests(count: int) -> None:
    """A cancelled call must complete its close, which ends the request on the server."""
    backend = slow_to_close()

    async def body(s: Any, word: str) -> None:
        s += word + sgl.gen("a", n=count)
        await s.get("a")

    calls = [("x",), (HANG,), (HANG,)]
    states = sgl.function(body).run_batch(calls, backend=backend, generator_style=True)
    assert within(lambda: next(states)).error() is None
    until(lambda: backend.live == 2 * count)
    within(states.close)
    until(lambda: backend.closing == 2 * count)
    backend.may_close.set_result(None)
    until(lambda: backend.aborted == 2 * count)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_that_is_cancelled_while_a_gen_times_out_ends_its_requests(count: int) -> None:
    backend = slow_to_close()
    gen = sgl.gen("a", n=count, timeout_s=0.01)
    state = sgl.function(lambda s: s.__iadd__(HANG + gen)).run(backend=backend)
    until(lambda: backend.closing == count)
    for _ in range(3):
        state.cancel()
    loop.call(asyncio.sleep(0))
    backend.may_close.set_result(None)
    until(lambda: backend.aborted == count)
    assert isinstance(within(state.error), CancelledError)


@pytest.mark.parametrize("count", [1, 3])
def test_a_second_cancel_does_not_interrupt_the_first(count: int) -> None:
    backend = slow_to_close()
    gen = sgl.gen("a", n=count)
    state = sgl.function(lambda s: s.__iadd__(HANG + gen)).run(backend=backend)
    until(lambda: backend.live == count)
    for _ in range(3):
        state.cancel()
        loop.call(asyncio.sleep(0))
    until(lambda: backend.closing == count)
    backend.may_close.set_result(None)
    until(lambda: backend.aborted == count)
    assert isinstance(within(state.error), CancelledError)


def test_a_stream_that_fails_says_so() -> None:
    def body(s: Any) -> None:
        s += "ab" + sgl.gen("a")
        s += BOOM + sgl.gen("b")

    def raising(s: Any) -> None:
        s += "ab"
        raise LookupError("mine")

    backend = FakeBackend()
    for function, cause in ((body, ValueError), (raising, LookupError)):
        pieces: list[str] = []
        with pytest.raises(ProgramError) as caught:
            within(partial(pieces.extend, sgl.function(function).stream(backend=backend)))
        assert isinstance(caught.value.__cause__, cause) and "ab" in "".join(pieces)


def test_waiting_on_the_loop_is_refused() -> None:
    async def body(s: Any) -> None:
        s += HANG + sgl.gen("a")
        _ = s["a"]

    with pytest.raises(sgl.LangError, match="await"):
        within(lambda: sgl.function(body).run(backend=FakeBackend()))


# ---- random programs -----------------------------------------------------------------------------

STEP = st.sampled_from(["text", "gen", "boom", "fork", "join", "read", "select", "copy", "role"])


@given(st.lists(STEP, max_size=12), st.booleans())
def test_random_programs_end(steps: list[str], asynchronous: bool) -> None:
    """Whatever a program does, it returns, every variable is settled, and no call is left."""
    backend = FakeBackend()
    names: list[tuple[sgl.ProgramState, str]] = []

    def perform(s: Any) -> None:
        groups: list[sgl.ProgramStateGroup[Any]] = []
        for i, step in enumerate(steps):
            if step == "text":
                s += "word"
            elif step == "gen":
                s += sgl.gen(f"v{i}")
                names.append((s, f"v{i}"))
            elif step == "boom":
                s += BOOM
            elif step == "select":
                s += sgl.select(f"v{i}", ["a", "b"])
                names.append((s, f"v{i}"))
            elif step == "fork":
                groups.append(s.fork(2))
                groups[-1] += sgl.gen(f"f{i}")
                names.extend((state, f"f{i}") for state in groups[-1])
            elif step == "join" and groups:
                groups.pop().join()
            elif step == "copy":
                with s.copy() as t:
                    t += sgl.gen(f"c{i}")
            elif step == "role":
                s += sgl.user("u")
            elif step == "read" and not asynchronous:
                s.error()

    function = sgl.function(_as_program(perform, asynchronous))
    state = within(lambda: function.run(backend=backend))
    error = within(state.error)
    assert error in (None, backend.error)
    for owner, name in names:
        try:
            assert isinstance(within(partial(owner.__getitem__, name)), str)
        except ProgramError as failed:
            assert failed.__cause__ is backend.error
    until(lambda: backend.live == 0)
    assert state.program.is_over


def _as_program(perform: Callable[[Any], None], asynchronous: bool) -> Callable[..., Any]:
    async def coroutine(s: Any) -> None:
        perform(s)

    def plain(s: Any) -> None:
        perform(s)

    return coroutine if asynchronous else plain


def test_states_are_collected() -> None:
    """A finished program leaves nothing behind on the loop."""

    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks.join()

    state = sgl.function(body).run(backend=FakeBackend(), timeout_s=60)
    state.sync()
    program = weakref.ref(state.program)
    del state

    def gone() -> bool:
        gc.collect()
        return program() is None

    until(gone)


def test_a_finished_state_waits_for_no_garbage_collection() -> None:
    """Its text and images are freed with the last reference to it."""

    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks.join()

    gc.disable()
    try:
        state = sgl.function(body).run(backend=FakeBackend())
        state.sync()
        stream = weakref.ref(state._stream)
        del state
        until(lambda: stream() is None)
    finally:
        gc.enable()


def test_what_is_over_stays_as_it_is() -> None:
    state = sgl.function(lambda s: s.__iadd__(sgl.gen("a"))).run(backend=FakeBackend())
    assert state["a"] == "<0>"
    until(lambda: state.program.is_over)
    state.cancel()
    assert state.error() is None and state.text() == "<0>"
    state += sgl.gen("b")
    assert within(lambda: state["b"]) == "<3>"
