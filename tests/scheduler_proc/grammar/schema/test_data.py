"""Real schemas and the public suite: what compiles judges instances correctly, in any order.

Needs the JSONL files of `bench.schemas`, in SRT_DATA or beside the checkout; otherwise skipped.
"""

import os
from pathlib import Path

import pytest

from bench.schemas import (
    BENCH_FILE,
    OrderSearch,
    RefusedError,
    Score,
    compile_ours,
    compile_theirs,
    groups,
)
from tests.scheduler_proc.grammar.schema.listed_names import only_listed

DATA = Path(os.environ.get("SRT_DATA", Path(__file__).parents[5] / "shared" / "data"))

pytestmark = pytest.mark.skipif(
    not (DATA / BENCH_FILE).exists(), reason=f"no schemas in {DATA}: set SRT_DATA"
)


def check(group: str, every: int, at_least: float) -> None:
    rows = dict(groups(DATA))[group][::every]
    ours, theirs = Score(), Score()
    for row in rows:
        ours.add(row, compile_ours)
        theirs.add(row, compile_theirs)
    assert ours.mistakes == [] and not any(ours.undecided.values())
    assert ours.compiled >= max(theirs.compiled, at_least * ours.schemas), ours.reasons


def check_closed(every: int, at_least: float) -> None:
    """Closed schemas allow the valid instances that have listed names only, and no others."""
    rows = dict(groups(DATA))["JSONSchemaBench"][::every]
    compiled, allowed, others = 0, 0, 0
    for row in rows:
        try:
            closed = compile_ours(row["schema"], closed=True)
        except RefusedError:
            continue
        compiled += 1
        search = OrderSearch(closed.matcher, row["schema"], closed.orders)
        for test in row["tests"]:
            expected = test["valid"] and only_listed(row["schema"], test["data"])
            assert search.accepts(test["data"]) == expected, (row["name"], test["data"])
            allowed += expected
            others += test["valid"] and not expected
    assert compiled >= at_least * len(rows) and allowed and others
    print(f"{compiled} of {len(rows)}: {allowed} allowed, {others} with other names refused")


def test_closed_objects_of_real_schemas() -> None:
    check_closed(every=12, at_least=0.95)


def test_a_sample_of_real_schemas() -> None:
    check("JSONSchemaBench", every=12, at_least=0.95)


def test_the_suite() -> None:
    check("suite, required", every=3, at_least=0.7)


def test_the_optional_part_of_the_suite() -> None:
    check("suite, optional", every=3, at_least=0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "at_least"),
    [("JSONSchemaBench", 0.99), ("suite, required", 0.86), ("suite, optional", 0.85)],
)
def test_all_of_it(group: str, at_least: float) -> None:
    check(group, every=1, at_least=at_least)


@pytest.mark.slow
def test_all_closed_objects() -> None:
    check_closed(every=1, at_least=0.99)
