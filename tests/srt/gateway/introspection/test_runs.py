"""Reported runs: bounded, the last ones, and told to pages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.gateway.introspection import runs as module
from srt.gateway.introspection.runs import MAX_RUNS, MAX_STEPS, Runs

MUCH = 10**9
About = dict[str, Any]


def about(run: str, ended: float | None = None) -> About:
    return {"run": run, "name": "judge", "started": 1.0, "ended": ended}


def step(name: str, text: str = "", t1: float | None = None, after: int = 0) -> dict[str, Any]:
    ids = [f"0/{i}" for i in range(after)]
    return {"id": name, "kind": "gen", "text": text, "t0": 0.0, "t1": t1, "after": ids}


def test_a_step_is_replaced_by_its_end() -> None:
    runs = Runs()
    runs.add(about("a"), [step("0/0"), step("0/1")])
    (first,) = runs.news(MUCH)
    runs.add(about("a", ended=2.0), [step("0/0", "text", 1.5)])
    (second,) = runs.news(MUCH)
    assert [len(event["steps"]) for event in (first, second)] == [2, 1]
    assert (first["ended"], second["ended"], first["type"]) == (None, 2.0, "run")
    runs.add(about("a"), [])  # what comes late does not open it again
    (third,) = runs.news(MUCH)
    assert third["steps"] == [] and third["ended"] == 2.0
    assert runs.news(MUCH) == []
    (whole,) = runs.whole()
    assert [each["text"] for each in whole["steps"]] == ["text", ""]


def test_the_runs_that_were_reported_last_are_kept() -> None:
    runs = Runs()
    for number in range(MAX_RUNS):
        runs.add(about(str(number)), [step("0/0")])
    runs.news(MUCH)
    runs.add(about("0"), [step("0/1")])
    runs.add(about("new"), [])
    events = runs.news(MUCH)
    assert [event["run"] for event in events] == ["0", "new"]
    assert [each for event in events for each in event["dropped"]] == ["1"]
    assert {event["run"] for event in runs.whole()} >= {"0", "2", "new"}
    assert len(runs.whole()) == MAX_RUNS


def test_news_are_given_in_parts() -> None:
    runs = Runs()
    for run in "ab":
        runs.add(about(run, 9.0), [step(f"0/{number}", "x" * 600) for number in range(20)])
    told: dict[str, list[str]] = {"a": [], "b": []}
    rounds = 0
    while events := runs.news(5000):
        assert sum(module._size(each) for event in events for each in event["steps"]) < 5800
        for event in events:
            told[event["run"]] += [each["id"] for each in event["steps"]]
        rounds += 1
    assert rounds >= 5
    assert told["a"] == told["b"] == [f"0/{number}" for number in range(20)]


def test_nobody_is_told_old_news() -> None:
    runs = Runs()
    for number in range(2 * MAX_RUNS):
        runs.add(about(str(number)), [step("0/0")])
    runs.told()
    assert runs.news(MUCH) == []
    runs.add(about("a"), [step("0/0")])
    (event,) = runs.news(MUCH)
    assert event["run"] == "a" and event["dropped"] == [str(MAX_RUNS)]


def test_a_long_run_is_cut() -> None:
    runs = Runs()
    for first in range(0, MAX_STEPS + 30, 10):
        runs.add(about("a"), [step(f"0/{first + i}") for i in range(10)])
    (whole,) = runs.whole()
    assert len(whole["steps"]) == MAX_STEPS and whole["cut"] == 30
    runs.add(about("a"), [step("0/0", "its end")])  # one that is known still changes
    assert runs.whole()[0]["steps"][0]["text"] == "its end"


def test_a_full_run_keeps_times_and_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUN_BYTES", 3000)
    runs = Runs()
    runs.add(about("a"), [step("0/0"), step("0/1", "x" * 1800)])
    runs.add(about("a"), [step("0/1", "y" * 1800, 2.0)])  # in the place of what it had
    runs.add(about("a"), [step("0/0", "z" * 1800, 1.0, after=3) | {"error": "e" * 900}])
    first, second = runs.whole()[0]["steps"]
    assert (first["t1"], first["text"], first["error"], first["after"]) == (1.0, "", None, ["0/0"])
    assert second["text"] == "y" * 1800


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.integers(0, 3), st.integers(0, 900), st.integers(0, 4)
        )
    )
)
def test_bytes_are_bounded_and_counted(steps: list[tuple[str, int, int, int]]) -> None:
    runs = Runs()
    bounds = module.MAX_BYTES, module.MAX_RUN_BYTES
    module.MAX_BYTES, module.MAX_RUN_BYTES = 3000, 1500
    told: dict[str, dict[str, Any]] = {}
    try:
        for run, name, size, after in steps:
            runs.add(about(run), [step(str(name), "x" * size, after=after)])
            kept = [each for event in runs.whole() for each in event["steps"]]
            assert runs._num_bytes == sum(map(module._size, kept))
            assert runs._num_bytes <= 3000 and runs.whole()[-1]["run"] == run
            for event in runs.news(MUCH):
                for gone in event["dropped"]:
                    told.pop(gone, None)
                told.setdefault(event["run"], {}).update({s["id"]: s for s in event["steps"]})
            # A page that was told all news knows what one does that comes now.
            whole = {event["run"]: {s["id"]: s for s in event["steps"]} for event in runs.whole()}
            assert told == whole
    finally:
        module.MAX_BYTES, module.MAX_RUN_BYTES = bounds


def test_a_call_that_is_left_out_counts_once() -> None:
    runs = Runs()
    runs.add(about("r"), [step(f"0/{number}") for number in range(MAX_STEPS)])
    for _ in range(2):  # as it begins, and as it ends
        runs.add(about("r"), [step("1/0"), step("1/1")])
    assert runs.whole()[0]["cut"] == 2
