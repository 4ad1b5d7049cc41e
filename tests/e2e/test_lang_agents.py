"""Agents on the real model: what they do, not how good their answers are."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

import lang as sgl
from lang.backends.runtime import RuntimeEndpoint, endpoint_of
from srt.offline.engine import Engine
from tests.e2e.server import Server


@pytest.fixture(scope="module")
def backend(engine: Engine) -> Iterator[RuntimeEndpoint]:
    with endpoint_of(engine) as backend:
        yield backend


Number = Annotated[int, Meta(ge=0, le=999)]


class Tools:
    """They count their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def look_up(self, what: Literal["tower", "bakery"]) -> str:
        """A fact of the town."""
        self.calls.append(what)
        return {"tower": "7 floors of 6 metres", "bakery": "300 loaves a day"}[what]

    async def multiply(self, a: Number, b: Number) -> int:
        """Multiply two numbers."""
        self.calls.append((a, b))
        return a * b


@sgl.function
def town(s: Any, tools: Tools, kind: Any, **options: Any) -> None:
    both = [tools.look_up, tools.multiply]
    s += sgl.system(sgl.describe(both))
    s += sgl.user("How high is the tower?")
    # A thought of 400 characters is never cut, whatever the model writes on this machine.
    s += sgl.agent("answer", both, type=kind, max_tokens=500, **options)
    s += sgl.user("Thank you.") + sgl.assistant(sgl.gen("end", max_tokens=4))


@pytest.mark.parametrize("thoughts", [pytest.param(False, marks=pytest.mark.full), True])
def test_an_agent_ends_with_a_value(backend: RuntimeEndpoint, thoughts: bool) -> None:
    for seed in range(4):
        tools, log = Tools(), sgl.Log()
        run = {"max_calls": 3, "thoughts": thoughts, "temperature": 1, "seed": seed}
        state = town.run(tools, Number, backend=backend, log=log, **run)
        assert state.error() is None
        assert state["answer"] in range(1000)
        calls = (state.get_meta_info("answer") or {})["calls"]
        assert len(calls) == len(tools.calls) <= 3
        asked = sum(call.kind == "gen" for call in state.trace())
        again = town.run(tools, Number, backend=backend, log=log, **run)
        assert again.text() == state.text() and again.vars() == state.vars()
        assert len(tools.calls) == len(calls)
        assert all(call.from_log for call in again.trace()) and asked == len(calls) + 2


def test_tools_are_called(backend: RuntimeEndpoint) -> None:
    made = []
    for seed in range(6):
        tools = Tools()
        state = town.run(tools, Number, backend=backend, temperature=1, seed=seed)
        assert state.error() is None
        made += tools.calls
        text = state.text()
        assert text.count("<tool_response>\n") == len(tools.calls)
    assert made


def test_no_agents_in_programs_on_the_server(backend: RuntimeEndpoint) -> None:
    with sgl.session(backend), pytest.raises(sgl.UnsupportedError, match="agent: programs on a"):
        town.submit(Tools(), Number)


def test_over_openais_chat_route(server: Server) -> None:
    with sgl.OpenAI(
        "smollm2", base_url=f"{server.url}/v1", dialect="sglang", api_key="any"
    ) as backend:
        tools = Tools()
        for seed in range(4):
            state = town.run(tools, Number, backend=backend, temperature=1, seed=seed)
            assert state.error() is None and state["answer"] in range(1000)
        assert tools.calls
