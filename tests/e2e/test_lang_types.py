"""Types, predicates and grammars of the language on the real model."""

# mypy: disable-error-code="return"
# The gen `return` makes the result of functions that have no `return` of their own.
import datetime
import enum
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

import lang as sgl
from lang import g
from lang.backends.runtime import RuntimeEndpoint, endpoint_of
from srt.offline.engine import Engine
from tests.e2e.server import Server


@pytest.fixture(scope="module")
def backend(engine: Engine) -> Iterator[RuntimeEndpoint]:
    with endpoint_of(engine) as backend:
        yield backend


class Colour(enum.Enum):
    RED = "red"
    WHITE = "white"
    BLACK = "black"


class Verdict(msgspec.Struct):
    grade: Annotated[int, Meta(ge=1, le=5)]
    reason: Annotated[str, Meta(max_length=20)]


TYPES: list[tuple[str, Any]] = [
    ("A week has this many days: ", int),
    ("Pi is about ", float),
    ("Is snow white? ", bool),
    ("The first moon landing, as an ISO date: ", datetime.date),
    ("A rating from 1 to 5: ", Annotated[int, Meta(ge=1, le=5)]),
    ("A percentage: ", Annotated[int, Meta(ge=0, le=100)]),
    ("A probability: ", Annotated[float, Meta(ge=0, le=1)]),
    ("Left or right? ", Literal["left", "right"]),
    ("The colour of snow is ", Colour),
    ("A short word: ", Annotated[str, Meta(min_length=2, max_length=5)]),
    ("Three numbers: ", Annotated[list[int], Meta(max_length=3)]),
    ("A number or nothing: ", int | None),
    ("A verdict: ", Verdict),
]


@pytest.mark.parametrize(("prompt", "kind"), TYPES)
def test_values_of_every_kind(backend: RuntimeEndpoint, prompt: str, kind: Any) -> None:
    def body(s: Any) -> None:
        s += prompt + sgl.gen("x", type=kind)

    state = sgl.function(body).run(backend=backend, temperature=0)
    value, meta = state["x"], state.get_meta_info("x")
    assert msgspec.convert(msgspec.to_builtins(value), kind) == value
    assert meta is not None and state.text() == prompt + meta["text"]


def test_a_number_ends_where_the_model_ends_it(backend: RuntimeEndpoint) -> None:
    def body(s: Any) -> None:
        s += "One week has 7 days. A day has 24 hours. One week has "
        s += sgl.gen("x", type=int) + " days."

    state = sgl.function(body).run(backend=backend, temperature=0)
    assert (state["x"], state.text()[-16:]) == (7, "week has 7 days.")


def test_a_choice_is_the_likeliest(backend: RuntimeEndpoint) -> None:
    def body(s: Any) -> None:
        s += "The colour of snow is " + sgl.gen("x", type=Colour)

    state = sgl.function(body).run(backend=backend)
    probabilities = (state.get_meta_info("x") or {})["probabilities"]
    assert state["x"].value in probabilities and len(probabilities) == 3


@sgl.function
def judge(s: Any, essay: str) -> Verdict:
    s += f"An essay: {essay}\nA verdict as JSON: " + sgl.gen("return", max_tokens=60)


@sgl.function
def is_good(s: Any, essay: str) -> bool:
    verdict = judge(essay=essay)
    s += f"A grade of {verdict.ret_value.grade} is good: " + sgl.gen("return")


def test_typed_functions(backend: RuntimeEndpoint) -> None:
    states = is_good.run_batch([{"essay": e} for e in ("Cats.", "Dogs.")], backend=backend)
    assert all(type(state.ret_value) is bool for state in states)
    assert isinstance(judge.run("Birds.", backend=backend, temperature=0).ret_value, Verdict)


ARTICLE = "The tower was built in 1889. It is 330 metres tall. Its lifts go to the top."


def test_where(backend: RuntimeEndpoint) -> None:
    def body(s: Any) -> None:
        s += f"{ARTICLE}\nHow tall is the tower? Quote the article: "
        s += sgl.gen("quote", where=lambda x: x.inside(ARTICLE) & x.stops_at(".") & (x.length > 9))
        s += "\nA sentence about cats: "
        s += sgl.gen(
            "line",
            where=lambda x: x.stops_at(".") & (x.length <= 60) & ~x.contains("the"),
            max_tokens=64,
        )
        s += sgl.gen("either", where=lambda x: x.starts_with(" so") & x.length.between(3, 8))

    for seed in (0, 1):
        state = sgl.function(body).run(backend=backend, temperature=1, seed=seed)
        quote, line, either = state["quote"], state["line"], state["either"]
        assert quote in ARTICLE and quote.index(".") == len(quote) - 1 > 8
        assert line.index(".") == len(line) - 1 < 60 and "the" not in line
        assert re.fullmatch(r"(?s) so.{0,5}", either)


@g.rule
def total() -> Any:
    return g.capture("number", g.regex("[1-9][0-9]?")) | "(" + total + " + " + total + ")"


def test_grammars(backend: RuntimeEndpoint) -> None:
    word = g.capture("word", g.regex("[a-z]{1,8}"))
    date = g.capture("year", g.regex("[12][0-9]{3}")) + "-" + g.capture("month", g.regex("0[1-9]"))

    def body(s: Any) -> None:
        s += "Three words: " + sgl.gen("list", grammar=(word + ", ").repeat(2, 2) + word + ".")
        s += "\nA month: " + sgl.gen("date", grammar=date)
        s += "\nA sum: (1 + (2 + 3)), " + sgl.gen("sum", grammar="(" + total + " + " + total + ")")
        s += "\nA point: " + sgl.gen("json", grammar=g.json(tuple[int, int]) + ";", max_tokens=20)

    state = sgl.function(body).run(backend=backend, temperature=0)
    words = [each["text"] for each in (state.get_meta_info("list") or {})["captures"]]
    assert state["list"] == f"{', '.join(words)}." and len(words) == 3
    assert state["list"].word == words[-1]
    assert state["date"] == f"{state['date'].year}-{state['date'].month}"
    numbers = [each["text"] for each in (state.get_meta_info("sum") or {})["captures"]]
    assert re.sub(r"[( +)]+", " ", state["sum"]).split() == numbers
    assert re.fullmatch(r"\[-?[0-9]+,-?[0-9]+\];", state["json"])


def test_what_the_server_refuses_is_an_error(backend: RuntimeEndpoint) -> None:
    def body(s: Any) -> None:
        s += "A" + sgl.gen("x", where=lambda x: x.in_(["a"]) & x.in_(["b"]))

    assert sgl.function(body).run(backend=backend).error() is not None


def test_types_of_submitted_functions(backend: RuntimeEndpoint) -> None:
    @sgl.function
    def rate(s: Any) -> Annotated[int, Meta(ge=1, le=5)]:
        s += "Is snow white? " + sgl.gen("white", type=bool)
        s += " A colour, a comma and a colour: "
        s += sgl.gen("pair", grammar=(colour + ",").repeat(1, 2) + colour)
        s += " A rating from 1 to 5: " + sgl.gen("return")

    colour = g.capture("colour", g.select(["red", "blue"]))
    with sgl.session(backend):
        made = rate.submit(temperature=0)
        assert made["white"].get() in (True, False)
        assert made["return"].get() in range(1, 6)
        pair = made["pair"].get()
        assert pair.colour == pair.rpartition(",")[2]


def test_streams_of_values(backend: RuntimeEndpoint) -> None:
    @sgl.function
    def count(s: Any) -> int:
        s += "One week has 7 days. A day has 24 hours. One week has " + sgl.gen("return") + "!"

    state = count.run(backend=backend, stream=True, temperature=0)
    assert "".join(state.text_iter("return")) == "7"
    assert state.ret_value == 7 and state.text().endswith("has 7!")


def test_over_openais_routes(server: Server) -> None:
    word = g.capture("word", g.regex("[a-z]{1,8}"))

    @sgl.function
    def facts(s: Any) -> Colour:
        s += "One week has 7 days. A day has 24 hours. One week has " + sgl.gen("days", type=int)
        s += " days. A line: " + sgl.gen("line", where=lambda x: x.stops_at(".") & (x.length < 60))
        s += " Words: " + sgl.gen("list", grammar=(word + ", ").repeat(2, 2) + word + ".")
        s += " The colour of snow is " + sgl.gen("return")

    with sgl.OpenAI(
        "smollm2", False, base_url=f"{server.url}/v1", dialect="sglang", api_key="any"
    ) as backend:
        state = facts.run(backend=backend, temperature=0)
        assert state["days"] == 7 and state["line"].index(".") == len(state["line"]) - 1 < 59
        assert state["list"].word == state["list"].rpartition(" ")[2].rstrip(".")
        assert isinstance(state.ret_value, Colour)
