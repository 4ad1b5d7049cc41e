"""Agents for the tests: a back end that writes rounds, and a tool that counts its calls."""

import json
from typing import Any

import lang as sgl
from lang.backends.base import Prompt
from lang.backends.sampling import Sampling
from tests.lang.fakes import FakeBackend


def call(name: str, /, **arguments: Any) -> str:
    return json.dumps({"tool": name, "arguments": arguments})


def answer(value: Any) -> str:
    return json.dumps({"answer": value})


class Script(FakeBackend):
    """Writes the texts in turn: by the number of results in the prompt, so that every state has its
    own place."""

    def __init__(self, *texts: str, **options: Any) -> None:
        def answer_of(prompt: Prompt, sampling: Sampling) -> str:
            return texts[sum(turn.role == "tool" for turn in prompt.messages)]

        super().__init__(answer_of, **options)


class Calculator:
    """A tool that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add(self, a: int, b: int = 1) -> int:
        """Add two numbers."""
        self.calls.append((a, b))
        return a + b


@sgl.function
def ask(s: Any, tools: Any, limit_s: float | None = 10.0, **options: Any) -> None:
    s += sgl.user("How much?")
    with s.assistant():
        s += sgl.agent("answer", tools, timeout_s=limit_s, **options)


def calls_of(state: sgl.ProgramState, name: str = "answer") -> list[dict[str, Any]]:
    meta = state.get_meta_info(name)
    assert meta is not None
    found: list[dict[str, Any]] = meta["calls"]
    return found


def error_of(backend: FakeBackend, **options: Any) -> BaseException | None:
    @sgl.function
    def body(s: Any) -> None:
        s += sgl.agent("answer", [Calculator().add], **options)

    error: BaseException | None = body.run(backend=backend).error()
    return error
