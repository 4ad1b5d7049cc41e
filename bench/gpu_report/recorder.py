"""A plugin of pytest: writes the outcome of each test to the file that OUTCOMES names, at once."""

import os
from pathlib import Path

import msgspec
import pytest

VARIABLE = "OUTCOMES"
DID_NOT_END = "did not end"


class Outcome(msgspec.Struct):
    """What became of a test; `reason` is why it was skipped or how it failed."""

    test: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test that hangs, or ends the process, has this outcome."""
    _write(Outcome(_name(nodeid), DID_NOT_END))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The test itself, or what went wrong before or after it."""
    if report.when != "call" and report.outcome == "passed":
        return
    reason = "" if report.outcome == "passed" else _reason(report)
    _write(Outcome(_name(report.nodeid), report.outcome, report.duration, reason[-3000:]))


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return report.longreprtext


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _write(outcome: Outcome) -> None:
    with Path(os.environ[VARIABLE]).open("ab") as lines:
        lines.write(msgspec.json.encode(outcome) + b"\n")


def read(path: Path) -> dict[str, Outcome]:
    """The last outcome of each test."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines]
    return {outcome.test: outcome for outcome in outcomes}
