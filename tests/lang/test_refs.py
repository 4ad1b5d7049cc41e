"""References: texts that a program uses before they are there."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lang as sgl
from lang import loop
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from lang.errors import CancelledError, LangError, TraceError
from tests.lang.fakes import BOOM, HANG, FakeBackend, echo_size
from tests.lang.test_faults import within
from tests.running.profiles import examples


def json_answer(prompt: Prompt, sampling: Sampling) -> str:
    return ' {"name": "Ann", "tags": ["a", "b"]}, rest '


def run(body: Any, **options: Any) -> sgl.ProgramState:
    state: sgl.ProgramState = sgl.function(body).run(backend=FakeBackend(**options))
    return state


def test_python_goes_on_while_a_reference_waits() -> None:
    done = threading.Event()
    backend = FakeBackend(answer=lambda prompt, sampling: str(done.wait(5)))

    def body(s: Any) -> None:
        forks = s.fork(2)
        forks[0] += "a" + sgl.gen("p")
        forks[1] += "Given " + forks[0].var("p") + ":" + sgl.gen("q")
        s["went_on"] = not done.is_set()
        done.set()
        forks.join()

    state = sgl.function(body).run(backend=backend)
    assert within(state.vars) == {"went_on": True, "p": ["True", None], "q": [None, "True"]}
    assert [prompt.text for prompt in backend.prompts] == ["a", "Given True:"]


def test_functions_of_references() -> None:
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        a = s.var("a")
        s.sync()
        fork = s.fork(1)[0]
        fork += sgl.concat([a.strip(), "!", a.split(",")[1].strip()], "-")
        fork += "\n" + a.split("}")[0].otherwise("no") + "}\n"
        json = a.match(r"\{[^}]*\}")
        fork += json.json("/name") + "|" + json.json("/tags/1") + json.match('"(?P<k>n.)', "k")
        fork += f"\n{json.json('/name')} and {sgl.gen('b')}" + sgl.format("<{x}{y}>", x=a, y="c")
        fork += json.json("/none").otherwise("nothing")
        s["text"] = fork.text()[len(s.text()) :]

    state = run(body, answer=json_answer)
    told = json_answer(Prompt(""), Sampling())
    expected = f'{told.strip()}-!-"tags": ["a"\n{told.split("}")[0]}}}\nAnn|bna'
    assert state["text"] == f"{expected}\nAnn and {told}<{told}c>nothing"


def test_references_are_of_one_kind_however_they_were_made() -> None:
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        a = s.var("a")
        s["text"] = "."
        made = [a, a.strip(), sgl.concat([a, "b"]), a.otherwise("no"), sgl.first([a, a.strip()])]
        for first in made:
            s += sgl.concat([first, *made], "|") + sgl.format("{x}{y}", x=first, y=a)
            s += sgl.first([first, *made])

    state = run(body, answer=lambda prompt, sampling: " A ")
    assert state.error() is None and state.text().startswith("x A  A | A |A| A b| A | A ")


def test_a_reference_in_another_run() -> None:
    inner = sgl.function(lambda s, essay: s.__iadd__("E:" + essay + sgl.gen("x")))

    def body(s: Any) -> None:
        s += "w" + sgl.gen("a")
        state = inner(essay=s.var("a"))
        s += state.var("x")

    assert run(body).text() == "w<1><5>"


def test_values_of_types_are_the_texts_that_were_written() -> None:
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a", schema={"type": "object"})
        s["n"] = 5
        s["d"] = {}
        s += s.var("a").json("/name") + s.var("n")

    state = run(body, answer=lambda prompt, sampling: '{"name": "Ann"}')
    assert state.text().endswith("Ann5")
    state += state.var("d")
    assert "'d' is not a text but dict" in str(within(state.error))


@pytest.mark.parametrize(
    "use",
    [
        bool,
        len,
        int,
        float,
        list,
        iter,
        hash,
        lambda ref: ref == "a",
        lambda ref: "a" in ref,
        lambda ref: {ref: 1},
        lambda ref: ref[0],
        lambda ref: [1, 2][ref],
        lambda ref: list(ref.split(",")),
        sgl.concat,
        lambda ref: ref and 1,
    ],
)
def test_looking_at_a_reference_is_refused(use: Any) -> None:
    def body(s: Any) -> None:
        s += "x" + sgl.gen("a")
        use(s.var("a"))

    with pytest.raises(TraceError, match=r"line [0-9]+: .*'a'.*s\[\"name\"\] waits"):
        run(body)


def test_wrong_arguments_are_refused_where_they_stand() -> None:
    state = run(lambda s: s.__iadd__("x" + sgl.gen("a")))
    ref = state.var("a")
    for wrong, message in (
        (lambda: state.var("b"), "'b'"),
        (lambda: ref.split("")[0], "separator"),
        (lambda: ref.json("x"), "pointer"),
        (lambda: ref.match("("), "pattern"),
        (lambda: sgl.format("{x}", y=ref), "'x'"),
        (lambda: sgl.concat(["a"]), "at least one reference"),
        (lambda: sgl.first([ref, "a"]), "a list of references"),
        (lambda: f"{ref:>5}", "format"),
    ):
        with pytest.raises((ValueError, KeyError, TypeError), match=message):
            wrong()
    with pytest.raises(TraceError):
        state.effect(len, ref)


def test_failures_pass_on_or_are_caught() -> None:
    def body(s: Any) -> None:
        forks = s.fork(2)
        forks[0] += BOOM + sgl.gen("a")
        s += "1" + forks[0].var("a").otherwise("caught") + sgl.gen("b")
        s += sgl.first([forks[0].var("a"), s.var("b")])
        forks[1] += forks[0].var("a")

    state = sgl.function(body).run(backend=FakeBackend())
    assert within(state.text) == "1caught<7><7>"

    def failing(s: Any) -> None:
        fork = s.fork(1)[0]
        fork += BOOM + sgl.gen("a")
        s += fork.var("a").strip() + "x"

    assert "exploded" in str(within(run(failing).error))
    pointer = run(lambda s: (s.__iadd__("x" + sgl.gen("a")), s.__iadd__(s.var("a").json("/k"))))
    assert isinstance(within(pointer.error), LangError)


def test_the_first_ends_the_others() -> None:
    backend = FakeBackend(echo_size)

    def body(s: Any) -> None:
        forks = s.fork(3)
        forks[0] += HANG + sgl.gen("a")
        forks[1] += "ok" + sgl.gen("a")
        forks[2] += HANG + sgl.gen("a")
        s += sgl.first([fork.var("a").strip() for fork in forks])
        s["errors"] = [type(fork.error()) for fork in forks]

    state = sgl.function(body).run(backend=backend)
    assert within(state.text) == "<2>"
    assert state["errors"] == [CancelledError, type(None), CancelledError]
    loop.call(state.program.all_idle())
    assert backend.aborted == backend.closing and backend.live == 0  # some may not have begun


@settings(max_examples=examples(10))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_crossed_references_never_wait_for_each_other(uses: list[tuple[int, int]]) -> None:
    """Forks that use each other's latest variable, in any order."""

    def body(s: Any) -> None:
        forks = s.fork(4)
        latest = {}
        for i, fork in enumerate(forks):
            fork += str(i) + sgl.gen(f"v{i}")
            latest[i] = f"v{i}"
        for number, (reader, source) in enumerate(uses):
            name = f"w{number}"
            forks[reader] += forks[source].var(latest[source]) + sgl.gen(name)
            latest[reader] = name
        forks.join("concate_and_append")

    def waiting(s: Any) -> None:
        forks = s.fork(4)
        latest = {}
        for i, fork in enumerate(forks):
            fork += str(i) + sgl.gen(f"v{i}")
            latest[i] = f"v{i}"
        for number, (reader, source) in enumerate(uses):
            name = f"w{number}"
            forks[reader] += str(forks[source][latest[source]]) + sgl.gen(name)
            latest[reader] = name
        forks.join("concate_and_append")

    assert within(run(body).text) == within(run(waiting).text)


def test_the_text_of_a_reference_cannot_be_looked_at_either() -> None:
    state = run(lambda s: s.__iadd__("x" + sgl.gen("a")))
    ref = state.var("a")
    for look in (len, lambda text: text == "a", lambda text: "a" in text, list, hash, bool):
        with pytest.raises(TraceError):
            look(str(ref))
        with pytest.raises(TraceError):
            look(f"{ref}")
    with pytest.raises(TraceError):
        str(ref).strip()
    for quoted in (repr, lambda ref: str([ref]), lambda ref: f"{ref!r}"):
        with pytest.raises(TraceError):
            quoted(ref)
    state += f"{ref}" + ", ".join([str(ref), "b"])
    assert within(state.text) == "x<1><1><1>, b"
