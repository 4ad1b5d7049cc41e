"""`gen(type=...)` and return types, on a fake back end; what is asked for, checked by automata."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import re
import uuid
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

import lang as sgl
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from lang.values.types import form_of, integer_pattern
from tests.lang.fakes import FakeBackend
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.byte_matcher import schema_matcher


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Verdict(msgspec.Struct):
    grade: Annotated[int, Meta(ge=1, le=5)]
    why: str


class Page(TypedDict):
    title: str


@dataclasses.dataclass
class Point:
    x: int


class Modelled(pydantic.BaseModel):
    name: str


def writing(text: str, **options: Any) -> FakeBackend:
    """A back end that always writes this, and finds the shortest choice likeliest."""
    return FakeBackend(lambda prompt, sampling: text, **options)


def run(body: Any, backend: FakeBackend) -> sgl.ProgramState:
    state: sgl.ProgramState = sgl.function(body).run(backend=backend)
    state.error()
    return state


BARE = [
    (int, "-12", -12),
    (float, "1.5", 1.5),
    (float, "-3", -3.0),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (datetime.date, "2024-03-31", datetime.date(2024, 3, 31)),
    (
        Annotated[datetime.datetime, Meta(tz=False)],
        "2024-03-31T12:00:00",
        datetime.datetime(2024, 3, 31, 12),
    ),
    (
        datetime.datetime,
        "2024-03-31T12:00:00Z",
        datetime.datetime(2024, 3, 31, 12, tzinfo=datetime.UTC),
    ),
    (datetime.timedelta, "P1D", datetime.timedelta(days=1)),
    (
        uuid.UUID,
        "12345678-1234-1234-1234-123456789abc",
        uuid.UUID("12345678-1234-1234-1234-123456789abc"),
    ),
    (bytes, "YWI=", b"ab"),
    (Annotated[int, Meta(ge=1, le=5)], "4", 4),
    (Annotated[int, Meta(gt=-12, lt=300)], "-11", -11),
    (Annotated[int, Meta(ge=0, le=100, multiple_of=25)], "75", 75),
    (Annotated[str, Meta(min_length=1, max_length=3)], "abc", "abc"),
    (Annotated[str, Meta(pattern="^a+$")], "aa", "aa"),
]
JSON = [
    (list[int], "[1,2]", [1, 2]),
    (dict[str, int], '{"a":1}', {"a": 1}),
    (int | None, "null", None),
    (Literal["a", None], '"a"', "a"),
    (Verdict, '{"grade":2,"why":"so"}', Verdict(2, "so")),
    (Page, '{"title":"t"}', {"title": "t"}),
    (Point, '{"x":1}', Point(1)),
    (Modelled, '{"name":"n"}', Modelled(name="n")),
    (Annotated[float, Meta(ge=0, le=1)], "0.25", 0.25),
    (Annotated[int, Meta(ge=0, multiple_of=7)], "21", 21),
]


@pytest.mark.parametrize(("kind", "text", "value"), [*BARE, *JSON])
def test_the_variable_is_the_value(kind: Any, text: str, value: object) -> None:
    def body(s: Any) -> None:
        s += "q" + sgl.gen("x", type=kind, temperature=0.5, stop="#") + "!"

    backend = writing(text)
    state = run(body, backend)
    assert state["x"] == value and type(state["x"]) is type(value)
    meta = state.get_meta_info("x")
    assert meta is not None and meta["text"] == text and state.text() == f"q{text}!"
    (sampling,) = backend.samplings
    assert sampling.temperature == 0.5 and sampling.stop[0] == "#" and sampling.ebnf is None
    if sampling.regex is not None:
        assert re.fullmatch(sampling.regex, text)
    else:
        assert sampling.json_schema is not None
        assert schema_matcher(msgspec.json.decode(sampling.json_schema)).accepts(text)


def test_which_types_are_json() -> None:
    assert all(form_of(kind).given.keys() <= {"regex"} for kind, *_ in BARE)
    assert all(form_of(kind).given.keys() == {"json_schema"} for kind, *_ in JSON)


def test_a_text_without_limits_is_free() -> None:
    backend = writing("any text")
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=str)), backend)
    assert state["x"] == "any text" and backend.samplings[0].set_fields() == set()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (bool, "true", True),
        (Literal["yes", "nope"], "yes", "yes"),
        (Literal[10, 2], "2", 2),
        (Mood, "bad", Mood.BAD),
        (Level, "1", Level.LOW),
        (Annotated[Mood, Meta(description="m")], "bad", Mood.BAD),
    ],
)
def test_few_values_are_a_select(kind: Any, text: str, value: object) -> None:
    def body(s: Any) -> None:
        s += "q" + sgl.gen("x", type=kind) + "!"

    backend = FakeBackend()  # finds short words likely
    backend.logprob = lambda word: -1.0 if word == text else -5.0
    state = run(body, backend)
    assert state["x"] is value or (state["x"] == value and type(state["x"]) is type(value))
    meta = state.get_meta_info("x")
    assert meta is not None and meta["text"] == text and text in meta["probabilities"]
    assert state.text() == f"q{text}!"

    without = run(body, FakeBackend(score=False))  # it chooses the last
    last = list(form_of(kind).choices or ())[-1]
    assert without.text() == f"q{last}!" and (without.get_meta_info("x") or {})["text"] == last


def test_samples() -> None:
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=int, n=2)), writing("7"))
    assert state["x"] == [7, 7]
    meta = state.get_meta_info("x")
    assert meta is not None and [each["text"] for each in meta["n"]] == ["7", "7"]


def test_a_number_ends_where_no_number_goes_on() -> None:
    backend = writing("-7 days")
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=int, stop_regex="#+") + "!"), backend)
    assert (state["x"], state.text()) == (-7, "q-7!")
    form = form_of(int)
    assert form.stop_regex == "[^-0-9]"
    assert all(re.fullmatch(form.given["regex"], text) for text in ("7", "7 days", "0\n"))
    assert not any(re.fullmatch(form.given["regex"], text) for text in ("", "07", "7-", " 7"))
    assert form_of(Annotated[int, Meta(ge=1, le=5)]).stop_regex is None
    moment = "2024-03-31T12:00:00"
    assert run(
        lambda s: s.__iadd__("q" + sgl.gen("x", type=datetime.datetime)), writing(moment + "Z, so")
    )["x"] == datetime.datetime.fromisoformat(moment + "+00:00")


def test_an_answer_that_is_no_value() -> None:
    kind = Annotated[int, Meta(ge=1, le=5)]
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=kind)), writing("9"))
    error = state.error()
    assert isinstance(error, sgl.AnswerError) and error.text == "9" and "<= 5" in str(error)
    assert (state.get_meta_info("x") or {})["text"] == "9"
    cut = writing("{")
    cut.finish = "length"
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=Verdict, max_tokens=1)), cut)
    assert "cut at max_tokens=1" in str(state.error())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"type": int, "dtype": int}, ValueError, "type and dtype exclude"),
        ({"type": int, "schema": int}, ValueError, "type and schema exclude"),
        ({"type": int, "regex": "a"}, ValueError, "type and regex exclude"),
        ({"type": int, "json_schema": "{}"}, ValueError, "type and json_schema exclude"),
        ({"type": int, "ebnf": "a"}, ValueError, "type and ebnf exclude"),
        ({"type": int, "choices": ["a"]}, ValueError, "choices and type exclude"),
        ({"type": int, "grammar": sgl.g.text("a")}, ValueError, "type and grammar exclude"),
        ({"type": bool, "max_tokens": 4}, ValueError, "type .*bool.* and max_tokens exclude"),
        ({"type": {"type": "object"}}, TypeError, "schema= takes JSON Schemas"),
        ({"type": object()}, TypeError, "type must be a pydantic model or"),
        ({"type": sgl.ProgramState}, TypeError, "type must be a pydantic model or"),
        ({"type": Literal[1, "1"]}, ValueError, "two values of the Literal"),
        ({"type": Literal["", "a"]}, ValueError, "empty cannot be chosen"),
        ({"type": Annotated[int, Meta(ge=5, le=4)]}, ValueError, "no integer from 5 to 4"),
        ({"type": Annotated[str, Meta(pattern=r"a(?=b)")]}, ValueError, "look-ahead"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sgl.gen("x", **arguments)


def test_a_back_end_without_constraints_is_named() -> None:
    backend = writing("7")
    backend.capabilities = msgspec.structs.replace(backend.capabilities, constraints=False)
    state = run(lambda s: s.__iadd__("q" + sgl.gen("x", type=int)), backend)
    error = state.error()
    assert isinstance(error, sgl.UnsupportedError) and error.param == "type"
    assert run(lambda s: s.__iadd__("q" + sgl.gen("x", type=str)), backend).error() is None


def test_a_back_end_without_some_constraints_names_the_argument() -> None:
    backend = writing("7")
    backend.answer = refusing
    for arguments in ({"type": int}, {"where": lambda x: x.contains("a")}):
        error = run(lambda s, a=arguments: s.__iadd__("q" + sgl.gen("x", **a)), backend).error()
        assert isinstance(error, sgl.UnsupportedError) and error.param in arguments
        assert "regex: it has none" in str(error)


def refusing(prompt: Prompt, sampling: Sampling) -> str:
    raise sgl.UnsupportedError("regex", "it has none")


@pytest.mark.parametrize("kind", [kind for kind, *_ in BARE])
@settings(max_examples=examples(5))
@given(data=st.data())
def test_all_that_may_be_written_is_a_value(kind: Any, data: st.DataObject) -> None:
    form = form_of(kind)
    text = data.draw(st.from_regex(form.given.get("regex", "a+"), fullmatch=True))
    if form.stop_regex is not None:
        text = re.split(form.stop_regex, text, maxsplit=1)[0]
    if form.predicate is None:
        form.convert(text)


def test_no_reasoning_around_values() -> None:
    with pytest.raises(ValueError, match="separate_reasoning and type exclude each other: 'x'"):
        sgl.separate_reasoning(sgl.gen("x", type=int))


@given(st.integers(-1200, 1200), st.integers(0, 1500), st.integers(-1300, 2800))
def test_ranges(low: int, size: int, number: int) -> None:
    pattern = integer_pattern(low, low + size)
    assert (re.fullmatch(pattern, str(number)) is not None) == (low <= number <= low + size)
    assert not re.fullmatch(pattern, f"0{number}") and not re.fullmatch(pattern, "-0")


@given(st.integers(-(10**19), 10**19), st.integers(-(10**19), 10**19))
def test_open_ranges(bound: int, number: int) -> None:
    above, below = integer_pattern(bound, None), integer_pattern(None, bound)
    most = 10**18 - 1
    is_above = bound <= number <= max(most, bound + most)
    is_below = min(-most, bound - most) <= number <= bound
    assert (re.fullmatch(above, str(number)) is not None) == is_above
    assert (re.fullmatch(below, str(number)) is not None) == is_below
    assert re.fullmatch(above, str(bound)) and re.fullmatch(below, str(bound))
