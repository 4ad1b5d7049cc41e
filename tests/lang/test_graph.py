"""Compiled programs: the same as interpreted ones, with fewer calls, and what is known of them."""

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import lang as sgl
from lang import loop
from lang.errors import ProgramError, TraceError
from lang.graph.graph import Graph
from tests.lang.fakes import BOOM, FakeBackend
from tests.lang.programs import World, program, programs
from tests.lang.test_faults import within
from tests.lang.test_logs import asking, summary

ANY_HEALTH = settings(suppress_health_check=list(HealthCheck))


def calls_of(backend: FakeBackend) -> list[str]:
    return sorted(prompt.text for prompt in backend.prompts)


@ANY_HEALTH
@given(programs, st.none() | st.integers(0, 3), st.sampled_from([0.0, 0.7]))
def test_a_compiled_program_is_the_interpreted_one(
    steps: Any, seed: int | None, temperature: float
) -> None:
    options: Any = {"seed": seed, "temperature": temperature}
    interpreted = program.run(steps, World(), backend=asking(), **options)
    expected, world = summary(interpreted), World()
    compiled = program.compile(keep=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = compiled.run(steps, world, backend=asking(), **options)
        assert summary(state) == expected


@ANY_HEALTH
@example([("fork", [[("select", "a")]], True), ("read", "a")], None)
@given(programs, st.none() | st.integers(0, 3))
def test_random_programs_that_are_recorded_whole(steps: Any, seed: int | None) -> None:
    """The steps are constants here: what they read is recorded, up to the first decision."""
    world = World()
    first = program.run(steps, World(), backend=asking(), seed=seed, temperature=0.5)
    expected = summary(first)
    compiled = program.compile(steps=steps, world=world)
    for keep in (compiled, program.compile(keep=True, steps=steps, world=world)):
        backend = asking()
        state = keep.run(backend=backend, seed=seed, temperature=0.5)
        text, values, calls, messages = summary(state)
        assert (text, values, messages) == (expected[0], expected[1], expected[3])
        assert set(calls) <= set(expected[2])
        assert len(backend.prompts) <= _num_asked(steps, seed)
    log = sgl.Log()
    assert (
        summary(compiled.run(backend=asking(), seed=seed, temperature=0.5, log=log))[:2]
        == expected[:2]
    )
    replayed = asking()
    again = compiled.run(backend=replayed, seed=seed, temperature=0.5, log=log)
    assert summary(again)[:2] == expected[:2]
    if not compiled.graph.stopped:
        assert not replayed.prompts


def _num_asked(steps: Any, seed: int | None) -> int:
    backend = asking()
    state = program.run(steps, World(), backend=backend, seed=seed, temperature=0.5)
    loop.call(state.program.all_idle())
    return len(backend.prompts)


@sgl.function
def judge(s: Any, essay: str, style: str = "plain") -> Any:
    s += sgl.system("You judge.")
    s += sgl.user(f"Essay: {essay} in {style}\n")
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += sgl.assistant(f"Dimension {i}: " + sgl.gen("judgment", max_tokens=5))
    forks.join()
    s += sgl.user("Sum up: " + forks[0]["judgment"].strip() + f" and {forks[1]['judgment']}")
    s += sgl.assistant(sgl.gen("summary"))
    s["verdict"] = s["summary"].strip()
    s += sgl.select("grade", ["A", "B"])
    return {"grade": s["grade"], "list": [s["verdict"], 5]}


def test_a_judge() -> None:
    compiled = judge.compile()
    assert not compiled.graph.stopped
    for options in ({}, {"seed": 3}, {"temperature": 0}):
        expected = judge.run("E", backend=asking(), **options)
        state = compiled.run("E", backend=asking(), **options)
        assert summary(state) == summary(expected) and state.ret_value == expected.ret_value
        rows = [{"essay": str(i), "style": "x"} for i in range(4)]
        batch = compiled.run_batch(rows, backend=asking(), **options)
        assert [summary(s) for s in batch] == [
            summary(s) for s in judge.run_batch(rows, backend=asking(), **options)
        ]
    generated = compiled.run_batch([("a",), ("b",)], backend=asking(), generator_style=True)
    assert [s["grade"] for s in generated] == ["A", "A"]


async def test_compiled_in_a_loop_without_threads() -> None:
    import threading

    before = threading.active_count()
    state = await judge.compile().arun("E", backend=asking(), seed=1)
    assert threading.active_count() <= before + 1  # the language's loop
    assert summary(state) == summary(judge.run("E", backend=asking(), seed=1))


def test_the_lines_and_addresses_are_the_programs() -> None:
    state, expected = (f.run("E", backend=asking()) for f in (judge.compile(), judge))
    mine = [(call.address, call.source) for call in state.trace()]
    assert mine == [(call.address, call.source) for call in expected.trace()]


# ---- graph breaks --------------------------------------------------------------------------------


def test_a_break_names_the_line_and_the_rest_is_interpreted() -> None:
    world: list[str] = []

    @sgl.function
    def body(s: Any, question: str) -> Any:
        s += question + sgl.gen("a", temperature=0)
        forks = s.fork(2)
        forks += "same" + sgl.gen("b", temperature=0)
        forks.join()
        if s["a"] == "never":
            s += "no"
        s.effect(world.append, "e")
        s += sgl.gen("c")
        return s["c"] + "!"

    compiled = body.compile()
    assert "line" in compiled.graph.stopped and "'a'" in compiled.graph.stopped
    assert "interpreted from here" in str(compiled) and not compiled.graph.dropped
    backend, plain = asking(), asking()
    state = compiled.run("Q", backend=backend, seed=2)
    expected = body.run("Q", backend=plain, seed=2)
    assert summary(state) == summary(expected) and state.ret_value == expected.ret_value
    assert world == ["e", "e"]
    assert len(plain.prompts) == 4 and len(backend.prompts) == 3  # the forks are equal
    with pytest.raises(TraceError, match=r"line [0-9]+: .*'a'"):
        body.trace()
    with pytest.raises(TraceError):
        body.compile(breaks=False)
    log = sgl.Log()
    compiled.run("Q", backend=asking(), seed=2, log=log).sync()
    backend = asking()
    assert summary(compiled.run("Q", backend=backend, seed=2, log=log)) == summary(expected)
    assert not backend.prompts and len(world) == 3


async def test_breaks_of_async_programs() -> None:
    @sgl.function
    async def body(s: Any, question: str) -> Any:
        s += question + sgl.gen("a")
        value = await s.get("a")
        s += f"{value}" + sgl.gen("b")
        if await s.get("b"):
            s += "yes"
        return await s.get("b")

    state = await body.compile().arun("Q", backend=asking(), seed=1)
    expected = await body.arun("Q", backend=asking(), seed=1)
    assert summary(state) == summary(expected) and state.ret_value == expected.ret_value
    assert summary(body.compile().run("Q", backend=asking(), seed=1)) == summary(expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s["a"].upper(),
        lambda s: "a" in s,
        lambda s: s.get_meta_info("a"),
        lambda s: s.effect(len, "x"),
        lambda s: s.score(["x"]),
        lambda s: s.messages(),
        lambda s: sgl.vote(judge, "grade", 2)("E"),
        lambda s: judge.run_batch([{"essay": "E"}]),
        lambda s: judge.run("E", stream=True),
        lambda s: judge.run("E", log=sgl.Log()),
        lambda s: ", ".join(s["a"] for _ in range(2)),
        lambda s: int(s["a"]),
        lambda s: {s["a"]: 1},
        lambda s: 1 / 0,
    ],
)
def test_what_cannot_be_recorded(use: Any) -> None:
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        use(s)

    with pytest.raises(TraceError, match=r"line [0-9]+"):
        sgl.function(body).trace()
    assert sgl.function(body).compile().graph.stopped


def test_a_program_that_catches_the_break_is_interpreted_from_there() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        try:
            size = len(s["a"])
        except Exception:
            size = -1
        judge.run("E")
        s += f"{size}" + sgl.gen("b")

    compiled = body.compile()
    assert "'a'" in compiled.graph.stopped and len(compiled.graph.nodes) == 2
    expected = summary(body.run(backend=asking(), seed=1))
    assert summary(compiled.run(backend=asking(), seed=1)) == expected
    with pytest.raises(TraceError, match="'a'"):
        body.trace()


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="no parameter 'other'"):
        judge.compile(other=1)
    with pytest.raises(TypeError, match=r"\* parameters"):
        sgl.function(lambda s, *rest: None).compile()
    with pytest.raises(TypeError, match="missing a required argument: 'essay'"):
        judge.compile().run(backend=asking())
    with pytest.raises(TypeError, match="a row must be"):
        judge.compile().run_batch([5], backend=asking())
    with pytest.raises(TypeError, match=r"style is None: .*compile\(style=None"):
        judge.compile().run_batch([("E", None)], backend=asking())
    assert "None" in judge.compile(style=None).run("E", backend=asking()).text()


# ---- passes --------------------------------------------------------------------------------------


def test_dead_calls_are_left_out_and_raise() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "x"
        forks = s.fork(3)
        forks[0] += "f" + sgl.gen("used") + sgl.gen("unused")
        forks[1] += "g" + sgl.gen("lost")
        forks[2] += "h" + sgl.gen("joined")
        s += forks[0].var("used") + sgl.gen("end")
        forks[2].var("joined")

    backend, plain = asking(), asking()
    compiled = body.compile()
    state = compiled.run(backend=backend, seed=4)
    assert state.text() == body.run(backend=plain, seed=4).text()
    assert len(backend.prompts) == 2 and len(plain.prompts) == 5
    dropped = compiled.report().dropped
    assert [name for name in ("unused", "lost", "joined") if any(name in d for d in dropped)] == [
        "unused",
        "lost",
        "joined",
    ]
    kept = asking()
    assert body.compile(keep=True).run(backend=kept, seed=4).text() == state.text()
    assert len(kept.prompts) == 5


def test_what_all_prompts_begin_with_is_sent_ahead() -> None:
    @sgl.function
    def body(s: Any, rules: str, question: str) -> None:
        s += "Answer each question shortly, and never guess: " + rules + "\n"
        s += f"Question: {question}" + sgl.gen("a")

    rules = "think first, then write; say so if you do not know."
    compiled, backend = body.compile(rules=rules), asking()
    rows = [{"question": str(i)} for i in range(3)]
    compiled.run_batch(rows, backend=backend)
    begins = f"Answer each question shortly, and never guess: {rules}\nQuestion: "
    assert backend.prefetched == [begins]
    assert compiled.report().prefix_chars == len(begins)


def test_decoders_over_compiled_programs() -> None:
    @sgl.function
    def body(s: Any, word: str) -> None:
        s += word + sgl.gen("a") + "," + sgl.gen("b")

    made = []
    for each in (body, body.compile()):
        states = sgl.beam(each, 2, 3)("go", backend=asking(), seed=1)
        vote = sgl.vote(each, "a", 3)("go", backend=asking(), seed=1)
        made.append(([summary(state) for state in states], vote.counts))
    assert len(made[0][0]) == 2 and made[0] == made[1]


def test_what_a_join_gathers_is_a_list_of_known_length() -> None:
    @sgl.function
    def body(s: Any) -> Any:
        s += "x" + sgl.gen("old")
        forks = s.fork(3)
        forks += "f" + sgl.gen("a")
        forks[1] += sgl.gen("old") + sgl.gen("b")
        forks[2]["c"] = 7
        forks.join()
        for i, text in enumerate(s["a"]):
            s += f"{i}: {text.strip()}\n"
        s += f"{len(s['a'])} {s['b'][1]} {s['b'][0]} {s['c']}" + s["old"][0] + sgl.gen("end")
        return s["a"], s["c"]

    compiled = body.compile()
    assert not compiled.graph.stopped
    for options in ({"seed": 2}, {"temperature": 0}):
        expected = body.run(backend=asking(), **options)
        state = compiled.run(backend=asking(), **options)
        assert summary(state) == summary(expected) and state.ret_value == expected.ret_value


def test_wanted_outputs() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a") + sgl.gen("b") + sgl.gen("c")

    backend = asking()
    state = body.compile(outputs=["b"]).run(backend=backend, seed=1)
    assert state["b"] == body.run(backend=asking(), seed=1)["b"] and len(backend.prompts) == 2
    with pytest.raises(ProgramError, match="'c' was dropped"):
        state["c"]

    @sgl.function
    def returns(s: Any) -> Any:
        s += "x" + sgl.gen("a") + sgl.gen("b")
        return s["a"]

    backend = asking()
    assert returns.compile(outputs=[]).run(backend=backend).ret_value and len(backend.prompts) == 1


def test_equal_calls_are_made_once_unless_they_are_samples() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "x"
        forks = s.fork(4)
        forks += "f" + sgl.gen("a") + "," + sgl.gen("b")
        forks.join()

    compiled = body.compile()
    for options, count in (({"temperature": 0}, 2), ({"temperature": 1, "seed": 3}, 8)):
        backend = asking()
        state = compiled.run(backend=backend, **options)
        assert summary(state) == summary(body.run(backend=asking(), **options))
        assert len(backend.prompts) == count
        assert sum(not call.is_shared for call in state.trace()) == count
        assert state.usage().calls == 8
    assert len(compiled.report().equal) == 6


def test_an_equal_call_that_fails_fails_both_and_one_that_ends_does_not() -> None:
    @sgl.function
    def body(s: Any) -> None:
        forks = s.fork(2)
        forks += "f" + BOOM + sgl.gen("a")
        forks.join()

    backend = FakeBackend()
    state = body.compile().run(backend=backend, temperature=0)
    assert "exploded" in str(within(state.error)) and len(backend.prompts) == 2


def test_unordered_pieces_and_rows() -> None:
    @sgl.function
    def body(s: Any, user: str, shots: str, rules: str) -> None:
        s += "Begin. "
        s += sgl.unordered(user=f"User {user}.", shots=shots, rules=rules, separator=" | ")
        s += sgl.gen("a", max_tokens=4)

    rows = [
        {"user": f"u{i}", "shots": f"shots {i % 2}", "rules": "always the same"} for i in range(6)
    ]
    compiled = body.compile()
    report = compiled.report(rows)
    assert report.orders == [("rules", "shots", "user")]
    assert report.shareable > report.shareable_before and "rules, shots, user" in str(report)
    backend = asking()
    states = compiled.run_batch(rows, backend=backend, seed=1, num_threads=1)
    assert [s["a"] for s in states] != []
    begun = [prompt.text for prompt in backend.prompts]
    assert begun == sorted(begun)

    @sgl.function
    def chosen(s: Any, user: str, shots: str, rules: str) -> None:
        s += f"Begin. {rules} | {shots} | User {user}." + sgl.gen("a", max_tokens=4)

    expected = chosen.run_batch(rows, backend=asking(), seed=1)
    assert [s.text() for s in states] == [s.text() for s in expected]
    assert [s["a"] for s in states] == [s["a"] for s in expected]
    written = body.run(backend=asking(), **rows[0]).text()
    assert written.startswith("Begin. User u0. | shots 0 | always the same")
    assert compiled.run(backend=asking(), **rows[0]).text() == written


# ---- when, repeat --------------------------------------------------------------------------------


@sgl.function
def agent(s: Any, question: str) -> None:
    s += question + sgl.gen("first", max_tokens=3)
    s += sgl.when(
        s.var("first").matches("[0-4]$"),
        " low" + sgl.gen("low"),
        " high" + sgl.gen("high") + sgl.gen("higher"),
    )
    s += sgl.repeat(
        "\nThought:" + sgl.gen("thought"), until=sgl.var("thought").matches("[0-9]$"), at_most=4
    )
    s += "\nAnswer:" + s.var("thought").strip() + sgl.gen("answer")


@pytest.mark.parametrize("question", list("abcdefgh"))
def test_decisions_without_python(question: str) -> None:
    compiled = agent.compile()
    assert not compiled.graph.stopped
    for options in ({"seed": 1}, {"temperature": 0}):
        state = agent.run(question, backend=asking(), **options)
        assert summary(compiled.run(question, backend=asking(), **options)) == summary(state)
        assert ("low" in state.vars()) != ("high" in state.vars())
        thoughts = [call for call in state.trace() if call.name == "thought"]
        ended = [call.text[-1].isdigit() for call in thoughts]
        assert not any(ended[:-1]) and (ended[-1] or len(ended) == 4)
        assert state["thought"] == thoughts[-1].text
        other = "low" if "high" in state.vars() else "high"
        with pytest.raises(ProgramError, match="not taken"):
            state[other]
        log = sgl.Log()
        assert summary(agent.run(question, backend=asking(), log=log, **options)) == summary(state)
        backend = asking()
        again = agent.run(question, backend=backend, log=log, **options)
        assert summary(again) == summary(state) and not backend.prompts


def test_wrong_decisions() -> None:
    with pytest.raises(TypeError, match="condition"):
        sgl.when(True, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at_most"):
        sgl.repeat("a", until=sgl.var("x").non_empty(), at_most=0)
    with pytest.raises(TraceError, match="use when and repeat"):
        bool(sgl.var("x").equals("a"))
    with pytest.raises(ValueError, match="two pieces"):
        sgl.unordered(a="x")
    with pytest.raises(TypeError, match="without gens"):
        sgl.unordered(a="x", b=sgl.gen("y"))
    missing = sgl.function(
        lambda s: s.__iadd__("x" + sgl.when(sgl.var("none").equals("a"), "b"))
    ).run(backend=asking())
    assert isinstance(within(missing.error), KeyError)


# ---- what is known -------------------------------------------------------------------------------


def test_a_graph_is_printed_drawn_and_reported() -> None:
    graph = judge.trace(essay=sgl.arg, style="plain")
    assert isinstance(graph, Graph)
    text, svg, report = str(graph), graph.svg(), graph.report()
    assert "select 'grade'" in text and "level 1 gen 'summary'" in text
    assert svg.startswith("<svg") and svg.count("<rect") == len(graph.nodes)
    assert report.levels == 3 and report.calls == {"gen": 4, "select": 1}
    joins = [node for node in graph.nodes if node.kind == "join"]
    assert joins[0].level == 1 and len(joins[0].children) == 3
    sources = {node.source.rpartition("/")[2].partition(":")[0] for node in graph.nodes}
    assert "test_graph.py" in sources
