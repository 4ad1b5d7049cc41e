"""Agents, on a back end that makes up what the model writes: rounds, runs, logs, the end."""

import asyncio
import dataclasses
import functools
import itertools
import json
import threading
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

import lang as sgl
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from lang.errors import AnswerError, ProgramError
from tests.lang.agents import Calculator, Script, answer, ask, call, calls_of, error_of
from tests.lang.fakes import HANG, FakeBackend
from tests.waiting import SOON_S

# ---- rounds --------------------------------------------------------------------------------------


def test_rounds() -> None:
    tools = Calculator()
    backend = Script(call("add", a=1, b=2), call("add", a=3), answer("four"))
    state = ask.run([tools.add], backend=backend)
    assert state["answer"] == "four" and tools.calls == [(1, 2), (3, 1)]
    said = (
        "<|im_start|>user\nHow much?<|im_end|>\n"
        '<|im_start|>assistant\n{"tool": "add", "arguments": {"a": 1, "b": 2}}<|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n{"tool": "add", "arguments": {"a": 3}}<|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n{"answer": "four"}<|im_end|>\n'
    )
    assert state.text() == said
    roles = [message["role"] for message in state.messages()]
    assert roles == ["user", *["assistant", "tool"] * 2, "assistant"]
    first, second = calls_of(state)
    assert first.pop("took_s") >= 0.0 and second.pop("took_s") >= 0.0
    assert first == {"tool": "add", "arguments": {"a": 1, "b": 2}, "result": 3}
    assert second == {"tool": "add", "arguments": {"a": 3}, "result": 4}
    kinds = [(each.kind, each.name, each.address) for each in state.trace()]
    add = "Calculator.add"
    assert kinds == [
        *(("gen", "answer", "0/0"), ("effect", add, "0/1"), ("gen", "answer", "0/2")),
        *(("effect", add, "0/3"), ("gen", "answer", "0/4")),
    ]


def test_outside_roles_it_opens_its_own() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += "Once. " + sgl.agent("answer", [Calculator().add]) + "The end."

    state = body.run(backend=Script(call("add", a=1), answer("2"), template="default"))
    assert state.text() == (
        'Once. ASSISTANT:{"tool": "add", "arguments": {"a": 1}}\nTOOL:2\n'
        'ASSISTANT:{"answer": "2"}\nThe end.'
    )


def test_in_another_role_it_is_refused() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += sgl.user(sgl.agent("answer", [Calculator().add]))

    assert "assistant's role, not in 'user'" in str(body.run(backend=Script("")).error())


def test_a_template_without_the_role_is_refused() -> None:
    backend = Script(answer("x"), template="bare")
    sgl.register_chat_template(sgl.ChatTemplate("bare", {"assistant": ("A:", "\n")}))
    error = error_of(backend)
    assert "role 'tool' is not one of the chat template 'bare'" in str(error)
    assert not backend.prompts


def test_the_last_round_only_answers() -> None:
    backend = Script(call("add", a=1), call("add", a=2), answer(5))
    state = ask.run([Calculator().add], max_calls=2, type=int, backend=backend)
    assert state["answer"] == 5
    schemas = [json.loads(each.json_schema or "") for each in backend.samplings]
    assert ["anyOf" in each for each in schemas] == [True, True, False]
    assert schemas[2]["properties"] == {"answer": {"type": "integer"}}
    # A back end that does not keep to it:
    state = ask.run([Calculator().add], max_calls=1, backend=Script(*[call("add", a=1)] * 2))
    error = state.error()
    assert isinstance(error, AnswerError) and "another call than the 1" in str(error)
    assert len(calls_of(state)) == 1


def test_the_first_rounds_only_call() -> None:
    backend = Script(call("add", a=1), call("add", a=2), answer("y"))
    state = ask.run([Calculator().add], min_calls=2, max_calls=2, backend=backend)
    assert state["answer"] == "y"
    schemas = [json.loads(each.json_schema or "") for each in backend.samplings]
    assert [[*each["properties"]] for each in schemas] == [["tool", "arguments"]] * 2 + [["answer"]]
    error = error_of(Script(answer("y")), min_calls=1)
    assert isinstance(error, AnswerError) and "an answer before the 1 calls" in str(error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (call("sub", a=1), "no tool 'sub'"),
        ('{"tool": "add"}', "neither a call"),
        ("{}", "neither a call"),
        ('{"answer": 1, "tool": "add"}', "neither a call"),
        ('{"answer": 1}', "Expected `str`"),
        ('{"tool": "ad', "truncated"),
        ("Two.", "malformed"),
    ],
)
def test_what_is_neither_call_nor_answer_is_an_error(text: str, why: str) -> None:
    error = error_of(Script(text))
    assert isinstance(error, AnswerError) and why in str(error) and error.text == text


def test_the_schema_of_a_round() -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    def find(at: Point, how: Literal["near", "far"], limit: Annotated[int, Meta(ge=1)] = 3) -> str:
        return ""

    def now() -> str:
        return ""

    backend = Script(answer([{"x": 1}]))
    state = ask.run([find, now], type=list[Point], thoughts=True, backend=backend)
    assert state["answer"] == [Point(1)] and not calls_of(state)
    schema = json.loads(backend.samplings[0].json_schema or "")
    assert [list(each["properties"]) for each in schema["anyOf"]] == [
        *[["thought", "tool", "arguments"]] * 2,
        ["thought", "answer"],
    ]
    assert all(each["required"] == list(each["properties"]) for each in schema["anyOf"])
    assert schema["anyOf"][0]["properties"]["tool"] == {"const": "find"}
    arguments = schema["$defs"]["find_arguments"]
    assert arguments["required"] == ["at", "how"] and not arguments["additionalProperties"]
    assert arguments["properties"]["limit"] == {"type": "integer", "minimum": 1}
    assert "Point" in schema["$defs"]


def test_thoughts() -> None:
    first = json.dumps({"thought": "Hm.", "tool": "add", "arguments": {"a": 1}})
    backend = Script(first, json.dumps({"thought": "Ah.", "answer": "2"}))
    state = ask.run([Calculator().add], thoughts=True, backend=backend)
    assert state["answer"] == "2" and calls_of(state)[0]["thought"] == "Hm."


def test_an_answer_of_a_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", x=(int, ...))
    outer = pydantic.create_model("Outer", inner=(inner, ...))
    backend = Script(call("add", a=1), answer({"inner": {"x": 2}}))
    state = ask.run([Calculator().add], type=outer, backend=backend)
    assert state["answer"].inner.x == 2
    assert "Inner" in json.loads(backend.samplings[0].json_schema or "")["$defs"]

    class Inner(msgspec.Struct):
        y: int

    def take(it: Inner) -> str:
        return ""

    with pytest.raises(ValueError, match="'Inner' is a type of the tools and of the answer"):
        sgl.agent("answer", [take], type=outer)


# ---- in programs ---------------------------------------------------------------------------------


@sgl.function
def forked(s: Any, tools: Any) -> None:
    s += sgl.user("How much?")
    forks = s.fork(2)
    forks += sgl.agent("answer", tools, max_calls=2)
    forks.join()
    s += sgl.agent("last", tools, max_calls=3) + sgl.user("Well?")
    s += sgl.assistant(sgl.gen("end"))


def _by_prompt(prompt: Prompt, sampling: Sampling) -> str:
    if sampling.json_schema is None:
        return "end"
    results = [turn.content for turn in prompt.messages if turn.role == "tool"]
    may_call = "anyOf" in sampling.json_schema
    if len(results) < 2 and may_call:
        return call("add", a=len(prompt.text))
    return answer(",".join(results))


def _summary(state: sgl.ProgramState) -> Any:
    trace = [(each.address, each.kind, each.name) for each in state.trace()]
    meta = [calls_of(state, "last"), state.get_meta_info("end")]
    return state.text(), state.vars(), trace, state.messages(), meta


def test_forks_joins_and_replays() -> None:
    tools, log = Calculator(), sgl.Log()
    first = forked.run([tools.add], backend=FakeBackend(_by_prompt), seed=1, log=log)
    expected, num_calls = _summary(first), len(tools.calls)
    assert num_calls == 6 and len(first["answer"]) == 2
    # Two for each call that may be made and one for the answer, whatever was made.
    assert [a for a, *_ in expected[2] if a.count("/") == 1][-1] == "0/9"
    assert [each.kind for each in log].count("effect") == 6
    certificate = first.certificate()
    backend = FakeBackend(_by_prompt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = forked.run([tools.add], backend=backend, seed=1, log=log)
        assert _summary(again) == expected
    assert not backend.prompts and len(tools.calls) == num_calls
    assert again.certificate() == certificate
    fresh = forked.run([tools.add], backend=FakeBackend(_by_prompt), seed=1)
    assert fresh.certificate() == certificate


def test_a_run_that_was_ended_anywhere_goes_on(tmp_path: Path) -> None:
    """A call whose outcome is not in the log is made again, no other."""
    path = tmp_path / "run.jsonl"
    run = functools.partial(forked.run, seed=1, log=path)
    whole = _texts(run([Calculator().add], backend=FakeBackend(_by_prompt)))
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        tools, backend = Calculator(), FakeBackend(_by_prompt)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert _texts(run([tools.add], backend=backend)) == whole
        known = [json.loads(line)["kind"] for line in lines[:kept]]
        assert len(tools.calls) == 6 - known.count("effect")
        assert len(backend.prompts) == 10 - known.count("gen")


def _texts(state: sgl.ProgramState) -> Any:
    return state.text(), state.vars()


def test_batches_and_streams() -> None:
    tools = [Calculator().add]
    texts = [call("add", a=1), answer("2")]
    states = ask.run_batch([{"tools": tools}] * 5, backend=Script(*texts))
    assert [state["answer"] for state in states] == ["2"] * 5
    assert [each.address for each in states[3].trace()] == ["3/0", "3/1", "3/2"]
    state = ask.run(tools, backend=Script(*texts), stream=True)
    assert "".join(state.text_iter()) == states[0].text()
    assert "".join(ask.run(tools, backend=Script(*texts), stream=True).text_iter("answer")) == "2"
    numbers = ask.run(tools, type=list[int], backend=Script(answer([1, 2])), stream=True)
    assert "".join(numbers.text_iter("answer")) == "[1, 2]" and numbers["answer"] == [1, 2]


async def test_asynchronous_programs() -> None:
    @sgl.function
    async def body(s: Any) -> str:
        s += sgl.agent("answer", [Calculator().add])
        value: str = await s.get("answer")
        return value

    state = await body.arun(backend=Script(call("add", a=1), answer("2")))
    assert state.ret_value == "2"


def test_marks_and_references() -> None:
    @sgl.function
    def body(s: Any) -> None:
        s += sgl.assistant(f"{sgl.agent('answer', [Calculator().add], type=int)}")
        s += "It is " + s.var("answer")

    state = body.run(backend=Script(call("add", a=1), answer(2)))
    assert state.text().endswith("It is 2") and state["answer"] == 2


@sgl.function
def inner(s: Any) -> None:
    s += sgl.user("Inside?") + sgl.assistant(sgl.gen("said"))


@sgl.function
def outer(s: Any, tools: Any) -> None:
    s += sgl.user("Outside?")
    s += sgl.agent("answer", tools)
    s["inside"] = inner.run()["said"]
    s += s["inside"] + sgl.assistant(sgl.gen("end"))


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_that_run_programs(is_async: bool, tmp_path: Path) -> None:
    """Their calls have addresses below the tool's, and do not move those of the function."""
    faults = [RuntimeError("crash")]

    def consult() -> str:
        said: str = inner.run()["said"]
        if faults:
            raise faults[0]
        return said

    async def aconsult() -> str:
        return str((await inner.arun())["said"])

    tool = aconsult if is_async else consult

    def write(prompt: Prompt, sampling: Sampling) -> str:
        if sampling.json_schema is None:
            return f"<{prompt.messages[-1].content[:2]}{sampling.seed}>"
        tools = sum(turn.role == "tool" for turn in prompt.messages)
        return answer("y") if tools else call(tool.__name__)

    log = sgl.Log(tmp_path / "log")
    faults.clear()
    first = outer.run([tool], backend=FakeBackend(write), seed=3, log=log)
    first.sync()
    places = [each.at for each in log]
    assert sorted(places) == ["0/0", "0/1", "0/10", "0/2", "0/run1/run0/0", "0/run9/0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend = FakeBackend(write)
        again = outer.run([tool], backend=backend, seed=3, log=log)
        assert again.text() == first.text() and not backend.prompts
        # Ended while the tool ran: its own calls need not be made again.
        log = sgl.Log(tmp_path / "log").copy()
        log.drop([each for each in places if each not in ("0/0", "0/run1/run0/0")])
        third = outer.run([tool], backend=backend, seed=3, log=log)
        assert third.text() == first.text() and len(backend.prompts) == 3


def test_a_decoder_chooses_among_rounds() -> None:
    tools = Calculator()

    def write(prompt: Prompt, sampling: Sampling) -> str:
        if "tool_response" not in prompt.text:
            return call("add", a=(sampling.seed or 0) % 97)
        return answer(f"{(sampling.seed or 0) % 97}")

    search = sgl.beam(ask, width=2, expand=2)
    best = search([tools.add], backend=FakeBackend(write), temperature=1, seed=1)
    assert len(best) == 2 and len({state["answer"] for state in best}) == 2


# ---- the end -------------------------------------------------------------------------------------


def test_cancelling_ends_the_wait() -> None:
    began, release = threading.Event(), threading.Event()
    ended = threading.Event()

    def hang() -> str:
        began.set()
        release.wait(SOON_S)
        return "late"

    async def ahang() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    for tool in (hang, ahang):
        began.clear()
        log = sgl.Log()
        state = ask.run(
            [tool],
            limit_s=None,
            backend=Script(call(tool.__name__), answer("y")),
            stream=True,
            log=log,
        )
        assert began.wait(SOON_S)
        state.cancel()
        with pytest.raises(ProgramError, match="cancelled"):
            state["answer"]
        assert [each.kind for each in log] == ["gen"]
    assert ended.wait(SOON_S)
    release.set()


def test_a_cancel_while_a_tool_runs_out_of_time_asks_no_more() -> None:
    closing, go_on = threading.Event(), threading.Event()

    async def slow_to_close() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            closing.set()
            await asyncio.to_thread(go_on.wait, SOON_S)
            raise
        return ""

    backend = Script(call("slow_to_close"), answer("y"))
    state = ask.run([slow_to_close], limit_s=0.01, backend=backend, stream=True)
    assert closing.wait(SOON_S)
    state.cancel()
    go_on.set()
    with pytest.raises(ProgramError, match="cancelled"):
        state["answer"]
    state.program.body_done.result(SOON_S)
    assert len(backend.prompts) == 1


def test_a_runs_time_limit_ends_a_tool_and_its_programs() -> None:
    ended = threading.Event()

    @sgl.function
    def hanging(s: Any) -> None:
        s += HANG + sgl.gen("x")

    def wait() -> str:
        try:
            return str(hanging.run()["x"])
        finally:
            ended.set()

    state = ask.run([wait], backend=Script(call("wait"), answer("y")), timeout_s=0.05)
    assert isinstance(state.error(), TimeoutError)
    assert ended.wait(SOON_S)


@pytest.mark.parametrize("at", range(6))
def test_a_cancelled_run_goes_on(tmp_path: Path, at: int) -> None:
    """Whatever it was about to record: its log is free, and has whole calls only."""
    run = functools.partial(forked.run, backend=FakeBackend(_by_prompt), seed=1)
    expected = run([Calculator().add]).text()
    known: Future[sgl.ProgramState] = Future()

    calls = itertools.count()

    def add(a: int, b: int = 1) -> int:
        if next(calls) == at:
            known.result(SOON_S).cancel()
        return a + b

    cancelled = run([add], stream=True, log=tmp_path / "log")
    known.set_result(cancelled)
    cancelled.program.body_done.result(SOON_S)
    assert cancelled.error() is not None
    state = run([add], log=tmp_path / "log")
    assert state.text() == expected and state.error() is None
