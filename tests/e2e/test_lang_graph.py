"""Compiled programs on the real model: the same bytes as the interpreted ones."""

import asyncio
import importlib
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lang as sgl
from bench.lang_graph.examples import RUNS, constants_of, function_of
from lang.functions.function import SglFunction
from tests.e2e.server import Server
from tests.lang.programs import NAMES, World, program
from tests.running.profiles import seeds

OPTIONS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.8, "seed": 7})
# These decide by what the model writes, look at how it was written, or loop over what a join gives.
BREAKS = {
    "react_agent.agent",
    "skeleton_of_thought.write",
    "tree_of_thought.search",
    "tool_agent.agent",
}
# In short greedily: those that break, one with retrieval, one with a constraint.
GREEDY = BREAKS - {"react_agent.agent"} | {"rag.answer", "json_extraction.extract"}
# Drawn with a seed, in short: one that breaks, one with forks, one with choices.
SEEDED = {"react_agent.agent", "parallel_tips.tips", "essay_judge.judge"}
# Its answers must be JSON, which the back end of the bench does not write.
ALL = RUNS | {"tool_agent.agent": {"question": "How long is the bridge?", "max_calls": 1}}


@pytest.fixture(scope="module")
def backend(server: Server) -> Iterator[sgl.RuntimeEndpoint]:
    with sgl.RuntimeEndpoint(server.ring) as backend:
        yield backend


def made(state: sgl.ProgramState) -> Any:
    """All that a run made; how much of it was cached depends on what ran before."""
    calls = [(call.address, call.name, call.text) for call in state.trace()]
    return state.text(), state.vars(), calls, state.messages(), without_cached(state.ret_value)


def without_cached(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            name: each for name, each in value.items() if name not in ("cached_tokens", "took_s")
        }
        return {name: without_cached(each) for name, each in kept.items()}
    return [without_cached(each) for each in value] if isinstance(value, list) else value


def test_all_functions_of_examples_are_here() -> None:
    found = set()
    for path in (Path(__file__).parents[2] / "examples").glob("*.py"):
        module = importlib.import_module(f"examples.{path.stem}")
        functions = inspect.getmembers(module, lambda each: isinstance(each, SglFunction))
        found |= {f"{path.stem}.{name}" for name, _ in functions}
    assert found == ALL.keys()


EXAMPLES = [
    pytest.param(
        name, OPTIONS[0], id=f"{name}-greedy", marks=() if name in GREEDY else pytest.mark.full
    )
    for name in ALL
]
EXAMPLES += [
    pytest.param(
        name, OPTIONS[1], id=f"{name}-seed", marks=() if name in SEEDED else pytest.mark.full
    )
    for name in ALL
]


@pytest.mark.parametrize(("name", "options"), EXAMPLES)
def test_an_example_compiled_is_the_example(
    name: str, options: dict[str, Any], backend: Any
) -> None:
    function, arguments = function_of(name), ALL[name]
    constants = constants_of(arguments)
    rest = {key: value for key, value in arguments.items() if key not in constants}
    expected = made(function.run(**arguments, backend=backend, **options))
    compiled = function.compile(**constants)
    assert bool(compiled.graph.stopped) == (name in BREAKS), compiled.graph.stopped
    if options["temperature"]:
        assert made(asyncio.run(compiled.arun(**rest, backend=backend, **options))) == expected
        return
    assert made(compiled.run(**rest, backend=backend, **options)) == expected
    if name not in BREAKS and None not in arguments.values():
        assert made(function.compile().run(**arguments, backend=backend, **options)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "few_shot_qa.answer",
        pytest.param("rag.answer", marks=pytest.mark.full),
        pytest.param("skeleton_of_thought.expand", marks=pytest.mark.full),
    ],
)
def test_batches_are_the_same(name: str, backend: Any) -> None:
    function, arguments = function_of(name), RUNS[name]
    (varied,) = [key for key in ("question", "point") if key in arguments]
    constants = constants_of(arguments)
    texts = [arguments[varied], "Why?", "Where is it?"]
    rows = [{**arguments, varied: text} for text in texts]
    rest = [{key: row[key] for key in row if key not in constants} for row in rows]
    for options in OPTIONS:
        expected = [made(s) for s in function.run_batch(rows, backend=backend, **options)]
        states = function.compile(**constants).run_batch(rest, backend=backend, **options)
        assert [made(state) for state in states] == expected


@pytest.mark.parametrize("seed", seeds(1))
def test_random_programs(seed: int, backend: Any) -> None:
    steps = [*random_steps(random.Random(seed), 4), ("gen", "a", 1, None)]
    for options in OPTIONS:
        given = {"backend": backend, "max_new_tokens": 4, **options}
        expected = made(program.run(steps, World(), **given))
        compiled = program.compile(steps=steps, world=World())
        text, values, _, messages, _ = made(compiled.run(**given))
        assert (text, values, messages) == (expected[0], expected[1], expected[3])


def random_steps(rng: random.Random, size: int) -> list[Any]:
    """Steps of `tests.lang.programs`, without hypothesis, which would try too many for a model."""
    steps: list[Any] = []
    for _ in range(size):
        name = rng.choice(NAMES)
        step: Any = rng.choice(
            [
                ("text", "one two\n"),
                ("gen", name, 1, rng.choice([None, 2])),
                ("select", name),
                ("read", name),
                ("fork", [("gen", name, 1, None)], True),
                ("if", name, [("text", "x")], [("gen", name, 1, None)]),
            ]
        )
        if step[0] == "fork":
            bodies = [random_steps(rng, size // 2) or [("text", "y")] for _ in range(2)]
            step = ("fork", bodies, rng.random() < 0.5)
        steps.append(step)
    return steps
