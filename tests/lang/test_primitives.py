"""Every primitive on a fake back end: the state, the prompts and the variables that result."""

import asyncio
import datetime
import decimal
import enum
import os
import random
import re
import uuid
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import lang as sgl
from lang.errors import LangError, ProgramError, UnsupportedError
from lang.logs.trace import Call
from lang.run import marks
from srt.wire.sampling import sub_seed
from tests.lang.fakes import HANG, FakeBackend
from tests.scheduler_proc.grammar.byte_matcher import schema_matcher
from tests.waiting import SOON_S


def run(body: Any, backend: FakeBackend | None = None, **kwargs: Any) -> sgl.ProgramState:
    """Run `body(s)` and wait for all of it."""
    state: sgl.ProgramState = sgl.function(body).run(backend=backend or FakeBackend(), **kwargs)
    state.error()
    return state


def test_text_and_gens_follow_each_other() -> None:
    def body(s: Any) -> str:
        s += "abc"
        s += "x" + sgl.gen("a", max_tokens=5) + "y" + sgl.gen("b")
        return "done"

    backend = FakeBackend()
    state = run(body, backend, temperature=0.5)
    assert state.text() == "abcx<4>y<8>" and state.ret_value == "done"
    assert (state["a"], state["b"]) == ("<4>", "<8>")
    assert [p.text for p in backend.prompts] == ["abcx", "abcx<4>y"]
    assert [(s.max_tokens, s.temperature) for s in backend.samplings] == [(5, 0.5), (128, 0.5)]
    meta = state.get_meta_info("a")
    assert meta is not None and meta["prompt_tokens"] == 4
    assert meta["finish_reason"] == {"type": "stop", "matched": None} and meta["id"] == "fake"


def test_variables() -> None:
    def body(s: Any) -> None:
        s["given"] = 7
        s += "q" + sgl.gen("a")
        assert "nothing" not in s and s["given"] == 7 and s.get_var("a") == "<1>"
        assert "a" in s
        s.set_var("a", "other")
        assert s["a"] == "other" and s.get_meta_info("given") is None
        with s.var_scope("both"):
            s += "-" + sgl.gen("b") + "-"

    state = run(body)
    assert state["both"] == f"-{state['b']}-"
    with pytest.raises(KeyError):
        state["nothing"]
    assert state.get_meta_info("nothing") is None


def test_unnamed_gens_do_not_overwrite_each_other() -> None:
    state = run(lambda s: s.__iadd__(sgl.gen() + sgl.gen()))
    assert [call.name for call in state.trace()] == ["<1>", "<2>"]
    assert state.text() == "<0><3>"


def test_several_completions() -> None:
    texts = iter("abc")
    backend = FakeBackend(lambda prompt, sampling: next(texts))
    state = run(lambda s: s.__iadd__("p" + sgl.gen("x", n=3, seed=5)), backend)
    assert state["x"] == ["a", "b", "c"] and state.text() == "pa"
    assert [(s.n, s.seed) for s in backend.samplings] == [(1, sub_seed(5, i)) for i in range(3)]
    meta = state.get_meta_info("x")
    assert meta is not None and len(meta["n"]) == 3


def test_roles_in_every_form() -> None:
    def one(s: Any) -> None:
        s += sgl.system("S")
        s += sgl.user("U")
        s += sgl.assistant(sgl.gen("a"))

    def two(s: Any) -> None:
        with s.system():
            s += "S"
        s.user("U")
        s += sgl.assistant_begin()
        s += sgl.gen("a")
        s.assistant_end()

    backend = FakeBackend()
    states = [run(one, backend), run(two, backend)]
    assert states[0].text() == states[1].text()
    prompt = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    assert [p.text for p in backend.prompts] == [prompt + "<|im_start|>assistant\n"] * 2
    asked = backend.prompts[0]
    assert [(m.role, m.content) for m in asked.messages] == [("system", "S"), ("user", "U")]
    assert (asked.open_role, asked.open_text) == ("assistant", "")
    assert backend.samplings[0].stop == ("<|im_end|>",)
    assert states[0].messages() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": states[0]["a"]},
    ]


def test_the_default_system_prompt() -> None:
    backend = FakeBackend(template="smollm2")
    state = run(lambda s: s.__iadd__(sgl.user("U")), backend)
    assert state.text().startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM"
    )
    assert [m["role"] for m in state.messages()] == ["system", "user"]


def test_nested_roles_are_an_error() -> None:
    state = run(lambda s: s.__iadd__(sgl.user("a" + sgl.assistant("b"))))
    assert "Nested roles are not allowed" in str(state.error())


def test_select_and_its_methods() -> None:
    def body(s: Any) -> None:
        s += "p" + sgl.select("a", ["xxx", "y zz", "wwww"])
        s += sgl.gen("b", choices=["k l", "m"], choices_method=sgl.greedy_token_selection)
        s += sgl.select("c", ["a", "bb"], choices_method=sgl.unconditional_likelihood_normalized)

    backend = FakeBackend()
    state = run(body, backend)
    assert state.text() == "py zzk la" and state["a"] == "y zz"
    meta = state.get_meta_info("a")
    assert meta is not None and meta["normalized_prompt_logprobs"] == [-3.0, -1.5, -4.0]
    assert sum(meta["probabilities"].values()) == pytest.approx(1.0)
    greedy = state.get_meta_info("b")
    assert greedy is not None and greedy["greedy_logprob_matrix"] == [[-1.0, -1.0], [-1.0, -1.0]]
    gains = state.get_meta_info("c")
    assert gains is not None and gains["normalized_unconditional_prompt_logprobs"] == [0.0, -1.0]
    with pytest.raises(ProgramError, match="temperature"):
        _ = run(lambda s: s.__iadd__(sgl.select("a", ["x"], temperature=1.0)))["a"]
    inexact = run(lambda s: s.__iadd__(sgl.select("a", ["x", "y"])), FakeBackend(score=False))
    assert inexact["a"] == "y"
    for choices, error in (([], ValueError), ("ab", TypeError), (["a", ""], ValueError)):
        with pytest.raises(error):
            sgl.select("a", choices)


def test_a_method_of_ones_own() -> None:
    class Last(sgl.ChoicesSamplingMethod):
        def __call__(self, *, choices: Any, **scores: Any) -> sgl.ChoicesDecision:
            return sgl.ChoicesDecision(choices[-1], {"mine": True})

    state = run(lambda s: s.__iadd__(sgl.select("a", ["x", "y"], choices_method=Last())))
    meta = state.get_meta_info("a")
    assert state["a"] == "y" and meta is not None and meta["mine"]


def test_scores_and_distributions() -> None:
    def body(s: Any) -> None:
        s += "p" + sgl.distribution("d", ["x", "yy"]) + sgl.score("t", ["yy"])
        assert s.score(["abc", "a b"]) == {"abc": -3.0, "a b": -2.0}
        assert s.distribution(["x"]) == {"x": 1.0}

    state = run(body)
    assert state.text() == "p" and state["t"] == {"yy": -2.0}
    assert state["d"]["x"] == pytest.approx(1 / (1 + 2.718281828**-1))


def test_forks() -> None:
    backend = FakeBackend()

    def body(s: Any) -> None:
        s += "x" * 100
        s["before"] = 1
        forks = s.fork(3)
        forks += lambda i: f"{i}" * i
        forks += ["a", "bb", "ccc"]
        forks += sgl.gen("v")
        forks[1] += "more"
        forks[1]["only"] = 5
        assert [f["before"] for f in forks] == [1, 1, 1] and len(forks) == 3
        assert forks[2]["v"] == "<105>"
        forks.join()
        s += "end"

    state = run(body, backend)
    assert state["v"] == ["<101>", "<103>", "<105>"] and state["only"] == [None, 5, None]
    assert state.text() == "x" * 100 + "end" and state["before"] == 1
    assert backend.prefetched == []  # the server itself computes only once what they share
    assert [
        len(list(step.children[0])) for step in state.trace().steps if hasattr(step, "children")
    ]


def test_join_by_text_and_copies() -> None:
    def body(s: Any) -> None:
        s += "p"
        forks = s.fork(2)
        forks += lambda i: f"[{i}]"
        forks.join("concate_and_append")
        with s.copy() as t:
            t += "hidden" + sgl.gen("c")

    backend = FakeBackend()
    state = run(body, backend)
    assert state.text() == "p[0][1]" and state["c"] == ["<13>"]
    with pytest.raises(ValueError, match="mode"):
        run(lambda s: s.fork(2).join("other"))


def test_functions_in_functions() -> None:
    @sgl.function
    def inner(s: Any, word: str) -> None:
        s += word + sgl.gen("x")

    def body(s: Any) -> None:
        states = [inner("a"), inner(word="bb")]
        s += states[0]["x"] + states[1]["x"]

    assert run(body).text() == "<1><2>"


def test_bind_and_sampling_defaults() -> None:
    @sgl.function
    def f(s: Any, q: str, seed: int) -> None:
        s += f"{q}{seed}" + sgl.gen("a", stop="x")

    backend = FakeBackend()
    bound = f.bind(q="hey")
    state = bound.run(seed=3, backend=backend, max_new_tokens=9, top_k=4)
    assert state.text() == "hey3<4>"
    sampling = backend.samplings[0]
    assert (sampling.max_tokens, sampling.top_k, sampling.stop) == (9, 4, ("x",))
    assert sampling.seed is None  # a parameter of the function keeps its name
    with pytest.raises(TypeError, match="'z'"):
        f.bind(z=1)
    with pytest.raises(TypeError, match="state"):
        sgl.function(lambda: None)


def test_images_are_refused_or_carried(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"png")

    def body(s: Any) -> None:
        s += sgl.user(sgl.image(str(path)) + "What is it?")
        s += sgl.assistant(sgl.gen("a"))

    refused = run(body)
    assert isinstance(refused.error(), UnsupportedError) and "image" in str(refused.error())
    backend = FakeBackend(images=True)
    state = run(body, backend)
    assert backend.prompts[0].images[0].data == b"png"
    assert backend.prompts[0].messages[0].images[0].data == b"png"
    assert state.messages()[0]["content"][0]["type"] == "image_url"
    with pytest.raises(OSError, match="missing"):
        sgl.image(tmp_path / "missing")
    video = run(lambda s: s.__iadd__(sgl.video(b"v", 4)))
    error = video.error()
    assert isinstance(error, UnsupportedError) and error.param == "video"


def test_separated_reasoning() -> None:
    backend = FakeBackend(lambda p, s: "<think>hm</think>yes")

    def body(s: Any) -> None:
        s += sgl.user("q")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("a"), model_type="qwen3"))

    state = run(body, backend)
    assert (state["a"], state["a_reasoning_content"]) == ("yes", "hm")
    assert state.text().endswith("assistant\nyes<|im_end|>\n")
    with pytest.raises(ValueError, match="model_type"):
        sgl.separate_reasoning(sgl.gen("a"), "unknown")


async def test_what_fails_beside_separated_reasoning_keeps_nobody_waiting() -> None:
    parts = HANG + sgl.gen("a", choices=["x"], timeout_s=0.01)
    state = run(lambda s: s.__iadd__(sgl.separate_reasoning(parts, model_type="qwen3")))
    with pytest.raises(ProgramError, match="took longer than timeout_s"):
        await asyncio.wait_for(state.get("a"), SOON_S)


# ---- structure -----------------------------------------------------------------------------------


def answering(text: str) -> FakeBackend:
    return FakeBackend(lambda prompt, sampling: text)


def test_types() -> None:
    backend = answering(" 42")
    state = run(lambda s: s.__iadd__(sgl.gen_int("n", max_tokens=4)), backend)
    assert state["n"] == " 42" and state["n"].value == 42
    assert backend.samplings[0].regex == r"[-+]?[0-9]+[ \n]*"
    assert backend.samplings[0].stop == (" ", "\n")
    quoted = run(lambda s: s.__iadd__(sgl.gen_string("t")), answering('"hey"'))
    assert quoted["t"] == '"hey"' and quoted["t"].value == "hey"
    with pytest.warns(UserWarning, match="dtype wins"):
        sgl.gen("x", dtype=int, regex="a")
    with pytest.raises(TypeError, match="complex"):
        sgl.gen("x", dtype=complex)


def test_named_groups() -> None:
    regex = r"(?P<year>\d{4})-(?P<month>\d\d)"
    state = run(lambda s: s.__iadd__(sgl.gen("d", regex=regex)), answering("2024-05"))
    assert state["d"] == "2024-05" and state["d"].year == "2024" and state["d"].month == "05"
    with pytest.raises(AttributeError, match="day"):
        _ = state["d"].day
    cut = run(lambda s: s.__iadd__(sgl.gen("d", regex=regex)), answering("2024-"))
    assert cut["d"] == "2024-" and cut["d"].groups == {}
    either = run(lambda s: s.__iadd__(sgl.gen("d", regex="(?P<a>x)|(?P<b>y)+")), answering("yy"))
    assert either["d"].groups == {"a": None, "b": "y"}
    with pytest.raises(ValueError, match="look-ahead"):
        sgl.gen("d", regex="(?P<a>x)(?=y)")
    with pytest.raises(re.error):
        sgl.gen("x", regex="(")


def test_no_pattern_takes_for_ever() -> None:
    """Python's engine would: its time doubles with each character."""
    regex = r"(?P<a>(x+x+)+)y"
    state = run(lambda s: s.__iadd__(sgl.gen("d", regex=regex)), answering("x" * 5000))
    assert state["d"].groups == {}
    fine = run(lambda s: s.__iadd__(sgl.gen("d", regex=regex)), answering("xxxxy"))
    assert fine["d"].a == "xxxx"


class Point(msgspec.Struct):
    x: int


class Typed(TypedDict):
    x: int


class Named(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Data:
    x: int


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize("schema", [Point, Data, Model, {"type": "object"}])
def test_schemas(schema: Any) -> None:
    backend = answering('{"x": 3}')
    value = run(lambda s: s.__iadd__(sgl.gen("p", schema=schema)), backend)["p"]
    assert value == ({"x": 3} if isinstance(schema, dict) else schema(x=3))
    assert "object" in str(backend.samplings[0].json_schema)


TYPES: list[tuple[Any, str, Any]] = [
    (list[Point], '[{"x": 1}]', [Point(1)]),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (int | None, "null", None),
    (Annotated[int, msgspec.Meta(ge=1)], "3", 3),
    (Literal["a", "b"], '"a"', "a"),
    (Colour, '"red"', Colour.RED),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (set[int], "[1, 2]", {1, 2}),
    (Typed, '{"x": 1}', {"x": 1}),
    (Named, "[1]", Named(1)),
    (datetime.date, '"2024-05-06"', datetime.date(2024, 5, 6)),
    (uuid.UUID, '"12345678-1234-5678-1234-567812345678"', uuid.UUID("12345678" * 4)),
    (bytes, '"aGV5"', b"hey"),
    (str, '"a"', "a"),
]


@pytest.mark.parametrize(("kind", "text", "value"), TYPES)
def test_every_type_that_msgspec_knows(kind: Any, text: str, value: Any) -> None:
    backend = answering(text)
    state = run(lambda s: s.__iadd__(sgl.gen("p", schema=kind)), backend)
    assert state["p"] == value and type(state["p"]) is type(value)
    asked, known = backend.samplings[0].json_schema or "", msgspec.json.schema(kind)
    assert msgspec.json.decode(asked).keys() >= known.keys() - {"contentEncoding", "uniqueItems"}
    if kind is not str:  # its texts are bare, not JSON
        typed = run(lambda s: s.__iadd__(sgl.gen("p", dtype=kind)), backend)["p"]
        assert typed == text and typed.value == value


WRITTEN: list[tuple[Any, str]] = [
    (dict[int, str], '{"-12":"a"}'),
    (dict[float, int], '{"1.5":1}'),
    (dict[Literal[1, 2], bool], '{"2":true}'),
    (dict[Colour, int], '{"red":1}'),
    (dict[datetime.date | int, int], '{"2024-05-06":1,"7":1}'),
    (dict[Annotated[str, msgspec.Meta(max_length=1)], list[bytes]], '{"a":["aGV5"]}'),
    (datetime.datetime, '"2024-12-31T07:08:09.123456-03:30"'),
    (Annotated[datetime.datetime, msgspec.Meta(tz=False)], '"2024-05-06T07:08:09"'),
    (datetime.time, '"07:08:09Z"'),
    (Annotated[datetime.time, msgspec.Meta(tz=False)], '"07:08:09"'),
    (datetime.timedelta, '"PT5M"'),
    (decimal.Decimal, '"1.50"'),
    (set[Literal[1, 2]], "[1,1]"),
]


@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_what_a_type_lets_the_model_write_is_a_value_of_it(kind: Any, text: str) -> None:
    class Inner(msgspec.Struct):
        value: kind

    for schema, sample in ((kind, text), (Inner, f'{{"value":{text}}}')):
        asked = sgl.gen("p", schema=schema).given["json_schema"]  # type: ignore[attr-defined]
        matcher, rng = schema_matcher(msgspec.json.decode(asked)), random.Random(1)
        assert matcher.accepts(sample)
        written = [answer for _ in range(20) if (answer := matcher.sample(rng, 200)) is not None]
        assert len(written) > 10
        for answer in written:
            msgspec.json.decode(answer, type=schema)


class Sets(pydantic.BaseModel):
    words: set[str]
    pairs: list[frozenset[int]]
    id: pydantic.UUID4


def test_what_a_pydantic_model_lets_the_model_write_is_an_instance_of_it() -> None:
    asked = sgl.gen("p", schema=Sets).given["json_schema"]  # type: ignore[attr-defined]
    matcher, rng = schema_matcher(msgspec.json.decode(asked)), random.Random(1)
    name = "12345678-1234-4678-a234-567812345678"
    assert matcher.accepts(f'{{"words":["a","a"],"pairs":[[1,1]],"id":"{name}"}}')
    for answer in filter(None, (matcher.sample(rng, 400) for _ in range(30))):
        Sets.model_validate_json(answer)


class Loose(pydantic.BaseModel, extra="allow"):
    x: int


@pytest.mark.parametrize(("kind", "is_closed"), [(Point, 1), (Data, 1), (Model, 1), (Loose, 0)])
def test_the_model_invents_no_members(kind: Any, is_closed: bool) -> None:
    for schema in (kind, pydantic.RootModel[list[kind]] if kind in (Model, Loose) else list[kind]):
        asked = sgl.gen("p", schema=schema).given["json_schema"]  # type: ignore[attr-defined]
        for closed in (False, True):  # whatever the server's rule
            matcher = schema_matcher(msgspec.json.decode(asked), closed=closed)
            text = '{"x":1,"y":2}' if schema is kind else '[{"x":1,"y":2}]'
            assert matcher.accepts(text.replace(',"y":2', ""))
            assert matcher.accepts(text) is not bool(is_closed)


def test_a_model_of_several_schemas_is_closed_as_a_whole() -> None:
    more = {"allOf": [{"properties": {"y": {"type": "integer"}}}]}

    class Joined(pydantic.BaseModel, json_schema_extra=more):
        x: int

    asked = sgl.gen("p", schema=Joined).given["json_schema"]  # type: ignore[attr-defined]
    for closed in (False, True):
        matcher = schema_matcher(msgspec.json.decode(asked), closed=closed)
        assert matcher.accepts('{"x":1,"y":2}') and not matcher.accepts('{"x":1,"z":2}')


class Conditional(pydantic.BaseModel, json_schema_extra={"anyOf": [{"required": ["allOf"]}]}):
    allOf: int = 1


def test_conditions_on_listed_names_leave_a_model_closed_by_itself() -> None:
    asked = sgl.gen("p", schema=Conditional).given["json_schema"]  # type: ignore[attr-defined]
    assert msgspec.json.decode(asked)["additionalProperties"] is False


def test_a_value_that_was_cut_keeps_its_text_and_says_why() -> None:
    backend = answering('{"x": ')
    backend.finish = "length"

    def body(s: Any) -> None:
        s += "A point: " + sgl.gen("p", schema=Point, max_tokens=6) + sgl.gen("q")

    state = run(body, backend)
    with pytest.raises(ProgramError, match=r"cut at max_tokens=6.*\{\"x\": ") as caught:
        _ = state["p"]
    cause = caught.value.__cause__
    assert isinstance(cause, sgl.AnswerError) and cause.text == '{"x": '
    assert state.text("keep") == 'A point: {"x": '
    meta = state.get_meta_info("p")
    assert meta is not None and meta["completion_tokens"] == 6
    (step,) = state.trace().steps
    assert isinstance(step, Call) and step.text == '{"x": '
    context = run(lambda s: s.__iadd__(sgl.gen("p", schema=Point, max_tokens=9)), backend)
    assert "context" in str(context.error()) and "max_tokens" not in str(context.error())
    wrong = run(lambda s: s.__iadd__(sgl.gen("p", schema=Point)), answering('{"x": "a"}'))
    assert "cut" not in str(wrong.error()) and "Expected `int`" in str(wrong.error())


def test_arguments_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="exclude"):
        sgl.gen("x", regex="a", ebnf="b")
    with pytest.raises(ValueError, match="exclude"):
        sgl.gen("x", schema=Point, json_schema="{}")
    with pytest.raises(TypeError, match="schema"):
        sgl.gen("x", schema=3)


def test_what_a_choice_has_no_use_for_is_refused() -> None:
    useless: dict[str, Any] = {"regex": "a", "n": 2, "max_tokens": 5, "dtype": int, "stop": "x"}
    for name in useless:
        with pytest.raises(ValueError, match=f"choices and {name}"):
            sgl.gen("a", choices=["x", "y"], **{name: useless[name]})
    with pytest.raises(ValueError, match="choices_method"):
        sgl.gen("a", choices_method=sgl.greedy_token_selection)
    neutral: dict[str, Any] = {"n": 1, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
    parts = HANG + sgl.gen("a", choices=["x"], timeout_s=0.01, **neutral)
    hanging = run(lambda s: s.__iadd__(parts))
    assert "timeout_s=0.01" in str(hanging.error())


def test_details_of_log_probabilities_need_these() -> None:
    for name in ("logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"):
        asked: dict[str, Any] = {name: 1}
        state = run(lambda s, asked=asked: s.__iadd__(sgl.gen("a", **asked)))
        assert f"{name} needs return_logprob" in str(state.error())
    run(lambda s: s.__iadd__(sgl.gen("a", return_logprob=True, top_logprobs_num=2))).sync()


def test_choices_that_come_twice_count_once() -> None:
    def body(s: Any) -> None:
        s += "p" + sgl.select("a", ["x", "yy", "x"])
        s["d"] = s.distribution(["x", "yy", "x"])

    state = run(body)
    meta = state.get_meta_info("a")
    assert meta is not None and meta["probabilities"] == state["d"]
    assert sum(state["d"].values()) == pytest.approx(1.0)
    assert len(meta["normalized_prompt_logprobs"]) == 3


def test_a_select_tells_its_tokens() -> None:
    state = run(lambda s: s.__iadd__("abc" + sgl.select("a", ["k l", "mmmmm"])))
    meta = state.get_meta_info("a")
    assert meta is not None and (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 2)
    (call,) = state.trace()
    assert (call.prompt_tokens, call.completion_tokens) == (3, 2)


def test_expressions_in_f_strings() -> None:
    def body(s: Any) -> None:
        s += f"One {sgl.gen('a')} two {sgl.user(sgl.gen('b') + '!')}"
        s.user(f"{sgl.gen('c')}")
        forks = s.fork(2)
        forks += f"-{sgl.gen('d')}-"
        forks.join()
        s += str(sgl.gen("e")) + sgl.assistant(f"<{sgl.select('f', ['x', 'y'])}>")

    state = run(body, answering("@"))
    assert state.text() == (
        "One @ two <|im_start|>user\n@!<|im_end|>\n<|im_start|>user\n@<|im_end|>\n"
        "@<|im_start|>assistant\n<x><|im_end|>\n"
    )
    assert state["d"] == ["@", "@"] and state["f"] == "x"
    with pytest.raises(TypeError, match="expressions"):
        sgl.select("x", [f"{sgl.gen('a')}"])
    with pytest.raises(TypeError, match="format"):
        f"{sgl.gen('a'):>10}"
    late = f"{sgl.gen('a')}"
    for _ in range(marks.MAX_KEPT):
        str(sgl.gen("b"))
    with pytest.raises(sgl.LangError, match="not kept"):
        run(lambda s: s.__iadd__(late))


def test_a_text_that_is_used_keeps_its_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_KEPT", 64)
    monkeypatch.setattr(marks, "_kept", marks._Kept())
    kept = f"<{sgl.gen('a')}>"

    def body(s: Any, i: int) -> None:
        s += kept
        s += f"{i}{sgl.gen('b')}"

    rows = [{"i": i} for i in range(500)]
    states = sgl.function(body).run_batch(rows, backend=FakeBackend(), num_threads=4)
    assert [state.error() for state in states] == [None] * 500
    assert states[-1].text() == "<<1>>499<8>"


def test_a_run_of_many_rows_keeps_a_modules_texts() -> None:
    kept = f"<{sgl.gen('a')}>"
    for _ in range(5000):
        str(sgl.gen("b"))
    assert run(lambda s: s.__iadd__(kept)).text() == "<<1>>"


def test_images_that_were_used_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_USED_BYTES", 10_000)
    images = [sgl.image(b"x" * 4000) for _ in range(5)]
    held = [weakref.ref(image) for image in images]
    texts = [f"{image}{i}" for i, image in enumerate(images)]
    large = f"{sgl.user(sgl.image(b'x' * 20_000))}"
    del images
    for text in texts:  # none has been used yet
        assert len(marks.split(text)) == 2
    assert [ref() is not None for ref in held] == [False] * 3 + [True] * 2
    with pytest.raises(LangError, match="not kept"):
        marks.split(texts[0])
    assert marks.split(large) and marks.split(large)
    assert held[-1]() is None


def test_a_childs_expressions_are_not_its_parents() -> None:
    before = f"{sgl.gen('before')}"
    reading, writing = os.pipe()
    if not (child := os.fork()):
        marks.split(before)
        os.write(writing, str(sgl.gen("childs")).encode())
        os._exit(0)
    os.close(writing)
    own = [str(sgl.gen("parents")) for _ in range(3)]
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(LangError, match="another process's"):
        marks.split(text)
    assert all(len(marks.split(one)) == 1 for one in (before, *own))


def test_texts_of_backslashes_are_searched_once() -> None:
    """The time is linear in their number: if it were quadratic, a million would take minutes."""
    text = "\\" * 1_000_000
    assert not marks.has_mark(text) and marks.split(text) == [text]
    assert len(marks.split(repr(repr(f"{text}{sgl.gen('a')}")))) == 3


def test_a_part_of_an_expression_is_not_said() -> None:
    text = f"{sgl.gen('a')}"
    for part in (text[1:], text[:-1]):
        with pytest.raises(LangError, match="cut inside"):
            run(lambda s, part=part: s.__iadd__("a" + part)).text()
        with pytest.raises(TypeError, match="must not have an expression"):
            sgl.gen(stop=part)


def test_an_expressions_repr_stands_for_it() -> None:
    text = f"{sgl.gen('a')!r},{[sgl.gen('b')]},{sgl.gen('c')!a}" + repr(f"{sgl.gen('d')}")
    assert run(lambda s: s.__iadd__(text), answering("@")).text() == "@,[@],@'@'"


@pytest.mark.parametrize("name", ["stop", "stop_regex", "regex", "ebnf", "json_schema", "name"])
def test_no_argument_takes_an_expression(name: str) -> None:
    text = f"a{sgl.gen('q')}"
    values: list[Any] = [text, [text], ascii(text), sgl.gen("q")]
    for value in values:
        with pytest.raises(TypeError, match=f"^{name} must not have an expression"):
            sgl.gen(**{name: value})
    with pytest.raises(TypeError, match=r"^schema must not"):
        sgl.gen("x", schema={"enum": [text]})
    with pytest.raises(TypeError, match=r"^stop must not"):
        run(lambda s: None, stop=[text])
    with pytest.raises(TypeError, match=r"^name must not"):
        sgl.select(text, ["a"])


def test_a_choice_takes_what_changes_nothing() -> None:
    useless: list[dict[str, Any]] = [
        {"stop": []}, {"stop": ""}, {"seed": 0}, {"n": 1}, {"stop_token_ids": ()},
    ]  # fmt: skip
    for given in useless:
        state = run(lambda s, given=given: s.__iadd__("p" + sgl.gen("a", choices=["x"], **given)))
        assert state["a"] == "x"


def test_a_state_is_no_text() -> None:
    for body in (lambda s: s.__iadd__(f"{s}"), lambda s: s.__iadd__(f"{s.fork(2)}")):
        with pytest.raises(TypeError, match=r"text\(\)"):
            run(body)


def test_stop_patterns_end_the_text() -> None:
    backend = answering("one 12 two 345")
    state = run(lambda s: s.__iadd__(sgl.gen("a", stop_regex=r"\d{2}")), backend)
    assert state["a"] == "one "
    meta = state.get_meta_info("a")
    assert meta is not None and meta["finish_reason"] == {"type": "stop", "matched": r"\d{2}"}
    slow = run(lambda s: s.__iadd__(sgl.gen("a", stop_regex=r"(\d\d)+")), backend)
    assert slow["a"] == "one "
    for pattern, text in (
        (r"two?\b", "one 12 "),
        (r"\d+$", "one "),  # the text of a match ends with it, as on the server
        (r"45\b", "one 12 two 3"),
    ):
        state = run(lambda s, p=pattern: s.__iadd__(sgl.gen("a", stop_regex=p)), backend)
        assert state["a"] == text
    hostile = answering("a" * 5000)
    state = run(lambda s: s.__iadd__(sgl.gen("a", stop_regex=r"(a|aa)+b")), hostile)
    assert state["a"] == "a" * 5000
    for pattern in ("(?=a)b", "a*", "(a){300}"):
        with pytest.raises(ValueError):
            sgl.gen("a", stop_regex=[pattern])
    assert run(lambda s: s.__iadd__(sgl.gen("a", stop_regex="q")), backend)["a"].endswith("345")


def test_a_state_is_extended_by_text_and_expressions_only() -> None:
    wrong: Any
    for wrong, error in ((None, ValueError), (3, TypeError)):
        with pytest.raises(error):
            run(lambda s, wrong=wrong: s.__iadd__(wrong))
    with pytest.raises(TypeError):
        _ = sgl.gen("a") + wrong


def test_the_trace_is_json_and_html() -> None:
    def body(s: Any) -> None:
        s += "<&>" + sgl.gen("a")
        forks = s.fork(2)
        forks += sgl.gen("b")
        forks.join()

    trace = run(body).trace()
    first, fork = msgspec.json.decode(trace.to_json())
    assert first["kind"] == "gen" and first["prompt_tokens"] == 3 and first["latency_s"] > 0
    assert [child[0]["name"] for child in fork["fork"]] == ["b", "b"]
    assert "&lt;&amp;&gt;" in trace._repr_html_() and len(trace) == 3


def test_the_default_back_end() -> None:
    backend = FakeBackend()
    with pytest.raises(sgl.LangError, match="no back end"):
        sgl.function(lambda s: None).run()
    sgl.set_default_backend(backend)
    try:
        assert sgl.function(lambda s: s.__iadd__(sgl.gen("a")))()["a"] == "<0>"
        sgl.flush_cache()
    finally:
        sgl.set_default_backend(None)
    assert backend.flushed == 1


# ---- what roles hold -----------------------------------------------------------------------------


def literal_parts(backend: FakeBackend) -> list[list[str]]:
    """For each prompt, the parts in which control tokens are text."""
    return [[p.text[i:j] for i, j in p.literal_spans] for p in backend.prompts]


def test_what_roles_hold_is_text() -> None:
    backend = FakeBackend(lambda prompt, sampling: "yes")

    def body(s: Any) -> None:
        s += "<|im_start|> as it is"
        s += sgl.user("a<|im_end|>") + sgl.assistant("So " + sgl.gen("x") + ".")
        s += sgl.user_begin() + "b" + sgl.gen("y") + sgl.user_end()
        s += sgl.assistant_begin() + sgl.gen("z")

    sgl.function(body).run(backend=backend).sync()
    assert literal_parts(backend) == [
        ["a<|im_end|>", "So "],
        ["a<|im_end|>", "So yes.", "b"],
        ["a<|im_end|>", "So yes.", "byes", ""],
    ]


def test_what_the_roles_of_joined_forks_hold_is_text() -> None:
    backend = FakeBackend(lambda prompt, sampling: "yes")

    def body(s: Any) -> None:
        s += sgl.user("a")
        for i, child in enumerate(forks := s.fork(2)):
            child += sgl.assistant(f"c{i}")
        forks.join("concate_and_append")
        s += sgl.user("b") + sgl.assistant(sgl.gen("x"))

    sgl.function(body).run(backend=backend).sync()
    assert literal_parts(backend)[-1] == ["a", "c0", "c1", "b", ""]
