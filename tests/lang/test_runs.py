"""Ways to run: plain and async functions, batches, streams, threads and the constant prefix."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import lang as sgl
from lang import bodies
from lang.tracer import constant_prefix
from tests.lang.fakes import FakeBackend
from tests.waiting import SOON_S


@sgl.function
def ask(s: Any, q: str) -> str:
    s += q + sgl.gen("a")
    return str(s["a"])


@sgl.function
async def ask_async(s: Any, q: str) -> str:
    s += q + sgl.gen("a")
    return str(await s.get("a"))


PREFIX = "A constant beginning that is long enough to be sent ahead: it has many words.\n"


@pytest.mark.parametrize("function", [ask, ask_async])
def test_run_from_plain_code(function: sgl.SglFunction) -> None:
    assert function.run("hey", backend=FakeBackend()).ret_value == "<3>"


@pytest.mark.parametrize("function", [ask, ask_async])
async def test_run_from_a_loop(function: sgl.SglFunction) -> None:
    backend = FakeBackend()
    states = await asyncio.gather(*(function.arun("x" * i, backend=backend) for i in range(20)))
    assert [state["a"] for state in states] == [f"<{i}>" for i in range(20)]
    if function is ask:  # a plain run blocks the caller's own loop, and works all the same
        assert function.run("hey", backend=backend).ret_value == "<3>"


async def test_an_async_function_runs_on_the_loop_of_its_caller() -> None:
    here = asyncio.get_running_loop()

    async def body(s: Any) -> None:
        assert asyncio.get_running_loop() is here
        s += sgl.gen("a")
        await s.wait()

    state = await sgl.function(body).arun(backend=FakeBackend())
    assert state["a"] == "<0>"


@pytest.mark.parametrize("function", [ask, ask_async])
@pytest.mark.parametrize("generator", [False, True])
def test_a_batch_is_in_order(function: sgl.SglFunction, generator: bool) -> None:
    backend = FakeBackend()
    elements: list[Any] = [{"q": "x" * i} if i % 2 else ("x" * i,) for i in range(50)]
    states = function.run_batch(
        elements, backend=backend, num_threads=4, generator_style=generator, temperature=0.1
    )
    assert isinstance(states, list) is not generator
    assert [state["a"] for state in states] == [f"<{i}>" for i in range(50)]
    assert backend.most_live <= 4 and backend.samplings[0].temperature == 0.1
    assert function.run_batch([], backend=backend) == []


def test_a_batch_uses_no_more_threads_than_it_was_given() -> None:
    most = 0

    def body(s: Any) -> None:
        nonlocal most
        s += sgl.gen("a")
        _ = s["a"]
        names = [t.name for t in threading.enumerate()]
        most = max(most, sum(name.startswith("lang-batch") for name in names))

    sgl.function(body).run_batch([()] * 40, backend=FakeBackend(), num_threads=3)
    assert 1 <= most <= 3
    assert not any(t.name.startswith("lang-batch") for t in threading.enumerate())


def test_wrong_arguments_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    backend = FakeBackend()
    for wrong, error in ((["a"], TypeError), ([("a", "b")], ValueError)):
        with pytest.raises(error, match=r"batch_kwargs\[0\]"):
            ask.run_batch(wrong, backend=backend)
    with pytest.raises(TypeError, match="colour"):
        ask.run_batch([("a",)], backend=backend, colour=1)
    with pytest.raises(ValueError, match="num_threads"):
        ask.run_batch([("a",)], backend=backend, num_threads=0)
    ask.run_batch([("a",)] * 2, backend=backend, progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def test_runs_inside_of_runs_never_wait_for_their_own_threads() -> None:
    """As many programs as the pool has threads, each waiting for programs inside."""
    backend = FakeBackend()

    def outer(s: Any) -> None:
        inner = ask_async("b")
        s += str(asyncio.run(_inner(backend)))
        s += "".join(ask("c").text() for _ in range(2)) + inner["a"]
        s += "".join(ask.stream("d", backend=backend))
        s += "".join(state["a"] for state in ask.run_batch([("e",)] * 2))

    async def every() -> list[sgl.ProgramState]:
        program = sgl.function(outer)
        runs = [program.arun(backend=backend) for _ in range(2 * bodies.MAX_BODIES)]
        async with asyncio.timeout(SOON_S):
            return list(await asyncio.gather(*runs))

    texts = {state.text() for state in asyncio.run(every())}
    assert texts == {"<1>c<1>c<1><1>d<1><1><1>"}


async def _inner(backend: FakeBackend) -> str:
    state = await ask.arun("a", backend=backend)
    return str(state["a"])


# ---- streams -------------------------------------------------------------------------------------


@sgl.function
def two_gens(s: Any) -> None:
    s += "q:" + sgl.gen("a") + "-" + sgl.gen("b")


def test_streams() -> None:
    backend = FakeBackend(lambda prompt, sampling: "hello world")
    state = two_gens.run(stream=True, backend=backend)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == "q:hello world-hello world"
    state = two_gens.run(stream=True, backend=backend)
    assert "".join(state.text_iter("b")) == "hello world"
    assert "".join(state.text_iter("a")) == "hello world"
    with pytest.raises(KeyError):
        list(state.text_iter("nothing"))
    still = two_gens.run(backend=backend)
    assert "".join(still.text_iter()) == "q:hello world-hello world"
    assert "".join(still.text_iter("a")) == "hello world"


async def test_streams_on_a_loop() -> None:
    backend = FakeBackend(lambda prompt, sampling: "hello world")
    state = two_gens.run(stream=True, backend=backend)
    pairs = [pair async for pair in state.text_async_iter("b", return_meta_data=True)]
    assert "".join(piece for piece, _ in pairs) == "hello world"
    assert pairs[-1][1]["finish_reason"]["type"] == "stop" and pairs[0][1]["id"] == "fake"
    pieces = [piece async for piece in two_gens.stream(backend=backend)]
    assert "".join(pieces) == "q:hello world-hello world"
    of_state = [piece async for piece in two_gens.run(stream=True, backend=backend)]
    assert "".join(of_state) == "q:hello world-hello world"


def test_a_function_may_read_its_own_stream() -> None:
    read: list[str] = []

    def body(s: Any) -> None:
        s += sgl.gen("a")
        read.extend(s.text_iter("a"))
        read.extend(s.text_iter())

    state = sgl.function(body).run(stream=True, backend=FakeBackend(lambda p, s: "abc"))
    assert state["a"] == "abc" and "".join(state.text_iter()) == "abc"
    assert "".join(read) == "abcabc"


def test_an_async_function_streams() -> None:
    stream = ask_async.stream("hey", backend=FakeBackend())
    assert "".join(stream) == "hey<3>" and stream.state.ret_value == "<3>"


# ---- the constant prefix -------------------------------------------------------------------------


@sgl.function
def with_prefix(s: Any, q: str) -> None:
    """A docstring."""
    s += sgl.system(PREFIX + "Be kind.")
    with s.user():
        s += "Question: "
        s += f"{PREFIX}{q}"
    s += sgl.assistant(sgl.gen("a"))


def test_the_constant_prefix_is_sent_ahead() -> None:
    backend = FakeBackend()
    expected = f"<|im_start|>system\n{PREFIX}Be kind.<|im_end|>\n<|im_start|>user\n"
    expected += f"Question: {PREFIX}"
    assert with_prefix.constant_prefix(backend) == expected
    with_prefix.run_batch([("a",), ("b",)], backend=backend)
    assert backend.prefetched == [expected]
    assert all(prompt.text.startswith(expected) for prompt in backend.prompts)
    with_prefix.run_batch([("a",)], backend=backend)
    with_prefix.run_batch([("a",), ("b",)], backend=backend, cache_prefix=False)
    ask.run_batch([("a",), ("b",)], backend=backend)
    assert backend.prefetched == [expected]
    with_prefix.bind(q="c").cache(backend)
    assert backend.prefetched[1] == expected + "c<|im_end|>\n<|im_start|>assistant\n"


def test_finding_the_prefix_runs_nothing() -> None:
    def body(s: Any, q: str) -> None:
        s += PREFIX
        s += str(print("side effect"))
        s += "more"

    assert constant_prefix(body, {}) == [PREFIX]
    assert constant_prefix(len, {}) == []
    assert constant_prefix(lambda s: s, {}) == []


def test_importing_the_language_is_light() -> None:
    code = (
        "import sys, lang\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'openai', 'httpx', 'zmq', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
