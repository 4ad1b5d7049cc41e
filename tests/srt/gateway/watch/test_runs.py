"""Reported runs: bounded, the last ones, and told to pages."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from srt.gateway.watch import runs as module
from srt.gateway.watch.runs import MAX_RUNS, MAX_STEPS, Runs

About = dict[str, Any]


def about(run: str, ended: float | None = None) -> About:
    return {"run": run, "name": "judge", "started": 1.0, "ended": ended}


def step(name: str, text: str = "", t1: float | None = None) -> dict[str, Any]:
    return {"id": name, "kind": "gen", "text": text, "t0": 0.0, "t1": t1}


def test_a_step_is_replaced_by_its_end() -> None:
    told: list[dict[str, Any]] = []
    runs = Runs(told.append)
    runs.add(about("a"), [step("0/0"), step("0/1")])
    runs.add(about("a", ended=2.0), [step("0/0", "text", 1.5)])
    runs.add(about("a"), [])  # what comes late does not open it again
    assert [len(event["steps"]) for event in told] == [2, 1, 0]
    (whole,) = runs.whole()
    assert whole["ended"] == 2.0 and whole["type"] == "run"
    assert [each["text"] for each in whole["steps"]] == ["text", ""]


def test_the_runs_that_were_reported_last_are_kept() -> None:
    told: list[dict[str, Any]] = []
    runs = Runs(told.append)
    for number in range(MAX_RUNS):
        runs.add(about(str(number)), [step("0/0")])
    runs.add(about("0"), [step("0/1")])
    runs.add(about("new"), [])
    assert told[-1]["dropped"] == ["1"]
    assert {event["run"] for event in runs.whole()} >= {"0", "2", "new"}
    assert len(runs.whole()) == MAX_RUNS


def test_a_long_run_is_cut() -> None:
    runs = Runs(lambda event: None)
    for first in range(0, MAX_STEPS + 30, 10):
        runs.add(about("a"), [step(f"0/{first + i}") for i in range(10)])
    (whole,) = runs.whole()
    assert len(whole["steps"]) == MAX_STEPS and whole["cut"] == 30
    runs.add(about("a"), [step("0/0", "its end")])  # one that is known still changes
    assert runs.whole()[0]["steps"][0]["text"] == "its end"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 900))))
def test_bytes_are_bounded_and_counted(steps: list[tuple[str, int, int]]) -> None:
    told: list[dict[str, Any]] = []
    runs = Runs(told.append)
    bounds = module.MAX_BYTES, module.MAX_RUN_BYTES
    module.MAX_BYTES, module.MAX_RUN_BYTES = 3000, 1500
    try:
        for run, name, size in steps:
            runs.add(about(run), [step(str(name), "x" * size)])
            kept = [each for event in runs.whole() for each in event["steps"]]
            assert runs._num_bytes == sum(map(module._size, kept))
            assert runs._num_bytes <= 3000 and runs.whole()[-1]["run"] == run
    finally:
        module.MAX_BYTES, module.MAX_RUN_BYTES = bounds
