"""The functions of the examples with arguments, and the calls that they make of a back end."""

import importlib
from typing import Any

from bench.lang_graph.instant import InstantBackend
from examples import chain_summary, essay_judge, multi_agent_coding, rag
from lang import loop
from lang.functions.function import SglFunction

RUNS: dict[str, dict[str, Any]] = {
    "chain_summary.add": {"part": chain_summary.PARTS[0], "before": " A light."},
    "essay_judge.judge": {"essay": essay_judge.ESSAY, "image": None},
    "few_shot_qa.answer": {"question": "What is the capital of Japan?"},
    "json_extraction.extract": {"text": "Marie Curie, born 1867 in Warsaw, a physicist."},
    "multi_agent_coding.design": {"task": multi_agent_coding.TASK},
    "multi_agent_coding.write": {"task": "box", "plan": " Short.", "file": "area(a, b)"},
    "multi_agent_coding.review": {"task": "box", "files": "x = 1\n", "file": "area(a, b)"},
    "multi_turn_chat.chat": {"turns": ("Name an animal.", "Where does it live?")},
    "parallel_tips.tips": {"topic": "sleep"},
    "rag.answer": {"question": rag.QUESTIONS[0], "passages": list(rag.CORPUS[:2])},
    "react_agent.agent": {"question": "How many floors has the lighthouse?", "max_steps": 2},
    "self_consistency.reason": {"question": "What is 4 + 5?", "chains": 2},
    "skeleton_of_thought.expand": {"topic": "bees", "point": "Honey"},
    "skeleton_of_thought.write": {"topic": "bees"},
    "streaming_chat.chat": {"turns": ("Say hello.",)},
    "tree_of_thought.search": {"question": "a school of swimming", "width": 2},
}


def function_of(name: str) -> SglFunction:
    """The function of an example: `rag.answer` is `answer` of `examples/rag.py`."""
    module, _, function = name.partition(".")
    found = getattr(importlib.import_module(f"examples.{module}"), function)
    assert isinstance(found, SglFunction)
    return found


def constants_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that examples decide by, or loop over."""
    return {name: value for name, value in arguments.items() if not isinstance(value, str)}


def call_rows() -> list[list[str]]:
    """Calls of each example at temperature 0, interpreted and compiled, and how many of the graph
    are one after the other."""
    rows = []
    for name, arguments in RUNS.items():
        function, constants = function_of(name), constants_of(arguments)
        rest = {key: value for key, value in arguments.items() if key not in constants}
        compiled = function.compile(**constants)
        before, after = InstantBackend(), InstantBackend()
        for state in (
            function.run(**arguments, backend=before, temperature=0),
            compiled.run(**rest, backend=after, temperature=0),
        ):
            loop.call(state.program.all_idle())  # the answers follow no schema: a state may fail
        report = compiled.report()
        stopped = report.stopped.partition(":")[0] or "whole"
        calls = (before.calls, after.calls, report.levels)
        rows.append([name, *map(str, calls), stopped])
    return rows
