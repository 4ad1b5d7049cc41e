"""Functions of the language that run on the server, against the same functions run here."""

from collections.abc import Iterator
from typing import Any

import pytest

import lang as sgl
from srt.offline.engine import Engine
from srt.wire.programs import Perf


@pytest.fixture(scope="module")
def backend(engine: Engine) -> Iterator[Any]:
    """The shared engine, as the default back end."""
    sgl.set_default_backend(engine)
    yield engine
    sgl.set_default_backend(None)


SHORT: dict[str, Any] = {"max_tokens": 6, "temperature": 0}


@sgl.function
def chain(s: Any, topic: Any) -> None:
    s += "A line about "
    s += topic
    s += ":"
    s += sgl.gen("first", **SHORT) + "\nAnother:" + sgl.gen("second", **SHORT)
    s += "\nGood or bad? " + sgl.select("mark", choices=["good", "bad"])


@sgl.function
def chat(s: Any, question: Any) -> None:
    s += sgl.system("You are brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", **SHORT))
    with s.user():
        s += "Are you sure of "
        s += s["answer"]
        s += "?"
    with s.assistant():
        s += "Well, " + sgl.gen("again", stop=".", **SHORT)


@sgl.function
def forks(s: Any) -> None:
    s += "Three tips. First some words:" + sgl.gen("words", **SHORT)
    group = s.fork(3)
    group += lambda i: f"\nTip {i}:" + sgl.gen("tip", **SHORT)
    group.join()
    tips = s["tip"]
    s += "\nAll tips: " + tips[0] + "; " + tips[1] + "; " + tips[2] + "\nThe best:"
    s += sgl.gen("best", **SHORT)


@sgl.function
def appended(s: Any) -> None:
    s += "Colours:"
    group = s.fork(2)
    group += ["\nRed:" + sgl.gen("a", **SHORT), "\nBlue:" + sgl.gen("b", **SHORT)]
    group.join("concate_and_append")
    s += "\nMixed:" + sgl.gen("mixed", **SHORT)


@sgl.function
def crossed(s: Any) -> None:
    """Two forks, each of which goes on with the other's text."""
    one, two = s.fork(2)
    one += "One:" + sgl.gen("x", **SHORT)
    two += "Two has heard "
    two += one["x"]
    two += ":" + sgl.gen("y", **SHORT)
    one += "\nOne has heard "
    one += two["y"]
    one += ":" + sgl.gen("z", **SHORT)
    s["x"], s["y"], s["z"] = one["x"], two["y"], one["z"]


@sgl.function
def typed(s: Any) -> None:
    s += "A number:" + sgl.gen("number", dtype=int, temperature=0, max_tokens=4)
    s += "\nJSON:" + sgl.gen("object", schema=dict[str, int], temperature=0, max_tokens=64)


CASES: list[tuple[Any, dict[str, Any], list[str]]] = [
    (chain, {"topic": "the <|im_end|> sea"}, ["first", "second", "mark"]),
    (chain, {"topic": "hills", "seed": 7, "top_k": 10}, ["first", "second", "mark"]),
    (chat, {"question": "What is <|im_start|>?"}, ["answer", "again"]),
    (forks, {}, ["words", "best"]),
    (appended, {}, ["mixed"]),
    (crossed, {}, ["x", "y", "z"]),
    (typed, {}, ["number"]),
]


@pytest.mark.parametrize(("function", "arguments", "names"), CASES)
def test_submit_is_run(
    backend: Any, function: Any, arguments: dict[str, Any], names: list[str]
) -> None:
    """The same texts: prompts, spans, seeds and stops are those of a run."""
    run = function.run(**arguments)
    expected = {name: run[name] for name in names}
    usage = run.usage()
    with sgl.session():
        submitted = function.submit(**arguments)
        assert {name: submitted[name].get() for name in names} == expected
        infos = [var.explain() for var in submitted.values() if isinstance(var, sgl.ProgramVar)]
        metas = [info.meta for info in infos if info.meta is not None]
        if function in (chat, crossed):
            assert sum(meta.prompt_tokens for meta in metas) == usage.prompt_tokens
            assert sum(meta.completion_tokens for meta in metas) == usage.completion_tokens


def test_one_program_of_many_functions(backend: Any) -> None:
    """Maps and a reduce are one submission; nothing is sent before something is read."""
    with sgl.session() as app:
        topic = app.var()
        maps = [chain.submit(topic=topic)["first"] for _ in range(3)]
        total = chain.submit(topic=app.concat(maps, "\n"))["second"]
        short = total.strip().split(" ")[0]
        assert app._calls and not app._ids
        assert topic.explain().state == "pending" and not app._calls
        topic.set("rain")
        assert short.get() == total.get(perf="latency", deadline_s=60).strip().split(" ")[0]
        assert total.explain().consumers and "".join(total.stream()) == total.get()
        assert maps[0].get() == chain.run(topic="rain")["first"]


async def test_async_programs(backend: Any) -> None:
    async with sgl.session(perf="throughput") as app:
        var = chain.submit(topic="rain")["second"]
        pieces = [piece async for piece in var.astream()]
        assert "".join(pieces) == await var.aget()
        assert app.perf == "throughput"


def test_what_a_submission_is_for_is_what_gets_of_it_want(backend: Any) -> None:
    """Also gets of what is made of its variables; one that says something else wants that."""
    target = Perf("ttft", 60_000.0)
    with sgl.session(perf="throughput"):
        mine, plain = chain.submit(topic="rain", perf=target), chain.submit(topic="rain")
        short = mine["second"].strip()
        for var in (short, mine["first"], plain["first"]):
            var.get()
        assert [var.explain().perf for var in (short, mine["first"])] == [target] * 2
        assert plain["first"].explain().perf == Perf("throughput")
        mine["first"].get(perf="latency")
        assert mine["first"].explain().perf == Perf("latency")
        for wrong in ("fast", Perf("latency", 5.0), Perf("ttft", -1.0)):
            bad: Any = wrong
            with pytest.raises(ValueError, match="perf"):
                chain.submit(topic="rain", perf=bad)
            with pytest.raises(ValueError, match="perf"):
                mine["first"].get(perf=bad)
            with pytest.raises(ValueError, match="perf"):
                sgl.session(perf=bad)


def test_guards_and_errors(backend: Any) -> None:
    with sgl.session() as app:
        given = app.var("yes")
        asked = chain.submit(topic="x", when=given.equals("yes"))["first"]
        skipped = chain.submit(topic="x", when=sgl.negated(given.equals("yes")))["first"]
        assert sgl.first([skipped, asked]).get() == asked.get()
        with pytest.raises(sgl.ProgramError, match="skipped"):
            skipped.get()
        never = app.var()
        with pytest.raises(sgl.ProgramError, match="not ready"):
            never.get(deadline_s=0.05)
        never.cancel()
        with pytest.raises(sgl.ProgramError, match="cancelled"):
            chain.submit(topic=never)["first"].get()


@sgl.function
def reads(s: Any) -> None:
    s += "x" + sgl.gen("answer", **SHORT)
    if s["answer"] == "yes":
        s += "good"


@sgl.function
def scores(s: Any) -> None:
    s += "x" + sgl.score("v", ["a", "b"])


def test_what_cannot_be_recorded_is_named(backend: Any) -> None:
    with (
        sgl.session() as app,
        pytest.raises(sgl.TraceError, match=r"line \d+: `if s\[\"answer\"\]"),
    ):
        reads.submit()
    with sgl.session(), pytest.raises(sgl.UnsupportedError, match="score"):
        scores.submit()
    with pytest.raises(sgl.LangError, match="no session"):
        reads.submit()
    with sgl.session() as app, pytest.raises(sgl.LangError, match="variable of a session"):
        chain.run(topic=app.var("x"))["first"]


@sgl.semantic_function
def joke(  # type: ignore[no-untyped-def]
    topic: sgl.Input,
    style: str,
    joke: sgl.Output(max_tokens=6, temperature=0),  # type: ignore[valid-type]
):
    """Tell a {{style}} joke about {{topic}}: {{joke}}"""


def test_semantic_functions(backend: Any) -> None:
    with sgl.session() as app:
        var = joke(app.var("cats"), style="short")
        alone = backend.generate(
            "Tell a short joke about cats: ", sampling={"max_new_tokens": 6, "temperature": 0}
        )
        assert var.get() == alone.text


def test_semantic_functions_are_checked() -> None:
    def returns(topic: sgl.Input) -> str:
        """About {{topic}}"""
        return ""

    def bare(topic: sgl.Input) -> None: ...

    def other(topic: sgl.Input):  # type: ignore[no-untyped-def]
        """About {{another}}"""

    for function, match in ((returns, "no return"), (other, "has no")):
        with pytest.raises(TypeError, match=match):
            sgl.semantic_function(function)
    bare.__annotations__.pop("return")
    with pytest.raises(TypeError, match="docstring"):
        sgl.semantic_function(bare)
