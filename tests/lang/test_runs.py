"""Ways to run: plain and async functions, batches, streams, threads and the constant prefix."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import lang as sgl
from lang.backends.sampling import derived_seed
from lang.functions.runs import MAX_BODIES
from lang.functions.tracer import constant_prefix
from tests.lang.fakes import BOOM, HANG, FakeBackend
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
    if function is ask:  # a plain run blocks its caller's loop, but works
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


@pytest.mark.full
def test_runs_inside_of_runs_never_wait_for_their_own_threads() -> None:
    """As many programs as the pool has threads, and each waits for inner programs."""
    backend = FakeBackend()

    def outer(s: Any) -> None:
        inner = ask_async("b")
        s += str(asyncio.run(_inner(backend)))
        s += "".join(ask("c").text() for _ in range(2)) + inner["a"]
        s += "".join(ask.stream("d", backend=backend))
        s += "".join(state["a"] for state in ask.run_batch([("e",)] * 2))

    async def every() -> list[sgl.ProgramState]:
        program = sgl.function(outer)
        runs = [program.arun(backend=backend) for _ in range(2 * MAX_BODIES)]
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
    meta = two_gens.run(stream=True, backend=backend).get_meta_info("b", timeout=SOON_S)
    assert meta is not None and meta["completion_tokens"] == 11
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


@sgl.function
def tree(s: Any) -> None:
    s += "q:" + sgl.gen("a")
    forks = s.fork(2)
    forks += lambda i: f"{i}>" + sgl.gen("b")
    inner = forks[1].fork(1)
    inner += "!" + sgl.gen("c")
    s += "-" + sgl.gen("d")


TREE = {(): "q:hello-hello", (0,): "0>hello", (1,): "1>hello", (1, 0): "!hello"}


def joined(pairs: list[tuple[tuple[int, ...], str]]) -> dict[tuple[int, ...], str]:
    found: dict[tuple[int, ...], str] = {}
    for path, piece in pairs:
        found[path] = found.get(path, "") + piece
    return found


def test_a_stream_of_all_forks() -> None:
    backend = FakeBackend(lambda prompt, sampling: "hello")
    pairs = list(tree.run(stream=True, backend=backend).tree_iter())
    assert joined(pairs) == TREE
    endless = FakeBackend(lambda prompt, sampling: "xyz" + HANG)
    seen = sgl.function(lambda s: s.fork(2).__iadd__("p" + sgl.gen("a")))
    begun = seen.run(stream=True, backend=endless).tree_iter()
    paths: set[tuple[int, ...]] = set()
    while paths != {(0,), (1,)}:  # until both forks have sent something
        paths.add(next(begun)[0])
    begun.close()
    failing = sgl.function(lambda s: s.__iadd__(BOOM + sgl.gen("a")))
    with pytest.raises(sgl.ProgramError):
        list(failing.run(stream=True, backend=backend).tree_iter())


def test_forks_are_watched_in_streams_only() -> None:
    state = tree.run(backend=FakeBackend())
    with pytest.raises(ValueError, match="stream=True"):
        state.tree_iter()
    with pytest.raises(ValueError, match="stream=True"):
        state.tree_async_iter()


async def test_a_stream_of_all_forks_on_a_loop() -> None:
    backend = FakeBackend(lambda prompt, sampling: "hello")
    state = tree.run(stream=True, backend=backend)
    assert joined([pair async for pair in state.tree_async_iter()]) == TREE


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


def test_the_prefix_ends_before_an_expression_in_a_text() -> None:
    asking = f"{PREFIX}{sgl.gen('first')} and so on"

    @sgl.function
    def body(s: Any) -> None:
        s += PREFIX
        s += asking

    backend = FakeBackend()
    assert body.constant_prefix(backend) == PREFIX and backend.prompts == []


def test_finding_the_prefix_runs_nothing() -> None:
    def body(s: Any, q: str) -> None:
        s += PREFIX
        s += str(print("side effect"))
        s += "more"

    assert constant_prefix(body, {}) == [PREFIX]
    assert constant_prefix(len, {}) == []
    assert constant_prefix(lambda s: s, {}) == []


# ---- parameters, methods, defaults and seeds -----------------------------------------------------


def test_a_parameter_may_have_the_name_of_a_sampling_argument() -> None:
    @sgl.function
    def ask(s: Any, n: int, stop: str = "") -> None:
        s += stop * n + sgl.gen("a")

    backend = FakeBackend()
    assert ask.run(n=3, stop="x", max_tokens=5, backend=backend).text() == "xxx<3>"
    assert ask.bind(stop="y").run_batch([{"n": 2}], backend=backend)[0].text() == "yy<2>"
    assert (backend.samplings[0].n, backend.samplings[0].stop) == (1, ())
    assert backend.samplings[0].max_tokens == 5


def test_functions_with_yield_are_no_programs() -> None:
    def yields(s: Any) -> Any:
        s += "a"
        yield s.text()

    async def yields_async(s: Any) -> Any:
        s += "a"
        yield s.text()

    for body in (yields, yields_async):
        with pytest.raises(TypeError, match=f"{body.__name__} has a yield: nothing would run it"):
            sgl.function(body)


class Asker:
    greeting = "Dear reader, this is a constant beginning that is long enough to send ahead. "

    def __init__(self, word: str) -> None:
        self.word = word

    @sgl.function
    def ask(self, state: Any, q: str) -> str:
        state += "Hello. "
        state += self.word + q + sgl.gen("a")
        return str(state["a"])

    kept = ask_async

    @sgl.function
    @classmethod
    def greet(cls, s: Any, q: str) -> str:
        s += cls.greeting + q
        return cls.__name__

    @sgl.function
    @staticmethod
    def echo(s: Any, q: str) -> None:
        s += q

    @classmethod
    @sgl.function
    def turned(cls, s: Any) -> None:
        s += "never"


def test_programs_as_methods_and_states_of_another_name() -> None:
    asker, backend = Asker("hey "), FakeBackend()
    assert asker.ask.run("you", backend=backend).text() == "Hello. hey you<14>"
    assert asker.ask.bind(q="x")(backend=backend).ret_value == "<12>"
    states = asker.ask.run_batch([{"q": "a"}, ("bb",)], backend=backend)
    assert [state["a"] for state in states] == ["<12>", "<13>"]
    assert asker.ask.constant_prefix(backend) == "Hello. "
    assert asker.kept.run("hey", backend=backend).ret_value == "<3>"


@pytest.mark.parametrize("of", [Asker, Asker("")])
def test_programs_of_a_class(of: Any) -> None:
    backend = FakeBackend()
    state = of.greet.run("you", backend=backend)
    assert (state.text(), state.ret_value) == (Asker.greeting + "you", "Asker")
    assert of.echo(q="me", backend=backend).text() == "me"
    with pytest.raises(TypeError, match="turned: @function must be above @classmethod"):
        of.turned.run(backend=backend)


def test_defaults_reach_the_runs_inside() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += sgl.gen("a") + sgl.gen("b", max_tokens=3)

    def outer(s: Any) -> None:
        inner()
        inner.run(temperature=0.7)
        inner.run_batch([{}])
        s += sgl.gen("c")

    backend = FakeBackend()
    sgl.function(outer).run(backend=backend, temperature=0.1, max_tokens=9)["c"]
    temperatures = sorted(each.temperature or 0 for each in backend.samplings)
    assert temperatures == [0.1] * 5 + [0.7] * 2
    assert sorted(each.max_tokens for each in backend.samplings) == [3] * 3 + [9] * 4


def seeds_of(**arguments: Any) -> list[int]:
    """The seeds of all calls of a batch of two rows with gens, forks, samples and inner runs."""

    def inner(s: Any) -> None:
        s += sgl.gen("a")

    def body(s: Any, i: int) -> None:
        s += sgl.gen("a") + sgl.gen("b")
        for _ in range(2):
            forks = s.fork(2)
            forks += sgl.gen("c") + sgl.gen("d", n=2)
            forks.join()
        for _ in range(2):
            s += sgl.function(inner)().text()
        sgl.function(inner).run_batch([()] * 2)

    backend = FakeBackend()
    for state in sgl.function(body).run_batch([(0,), (1,)], backend=backend, **arguments):
        state.sync()
    return sorted(each.seed or 0 for each in backend.samplings)


def test_a_runs_seed_gives_every_call_its_own() -> None:
    seeds = seeds_of(seed=7)
    assert len(seeds) == len(set(seeds)) == 2 * (2 + 4 * 3 + 2 + 2)
    assert seeds == seeds_of(seed=7) and not set(seeds) & set(seeds_of(seed=8))
    assert set(seeds_of()) == {0}
    assert derived_seed(7, "row", 1) == 632882366258589489  # the same in every process


def test_a_gens_own_seed_is_kept() -> None:
    backend = FakeBackend()
    body = sgl.function(lambda s: s.__iadd__(sgl.gen("a", seed=5) + sgl.gen("b", seed=5)))
    body.run(backend=backend, seed=7).sync()
    assert [each.seed for each in backend.samplings] == [5, 5]


def test_the_modules_names_are_listed() -> None:
    assert set(sgl.__all__) <= set(dir(sgl)) and {"OpenAI", "Runtime"} <= set(dir(sgl))


def test_importing_the_language_is_light() -> None:
    code = (
        "import sys, lang\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'openai', 'httpx2', 'zmq', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
