"""The bench of the scheduler core, in small."""

import pytest

from bench import scheduler
from scheduler_proc.process import garbage


def test_looks_and_steps_and_a_tree_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "begin", lambda: None)  # would freeze the tests' objects
    monkeypatch.setattr(scheduler, "TREE_CALLS", 20)
    scheduler.main(["--rows", "2", "--waiting", "300", "--policy", "fcfs", "--repeat", "1"])
    rows, looks = capsys.readouterr().out.strip().split("\n\n")
    assert [line.split("|")[1].strip() for line in rows.splitlines()[2:]] == ["2", "2"]
    assert [line.split("|")[3].strip() for line in looks.splitlines()[2:]] == ["yes", "no"]
    scheduler.main(["--tree", "500", "--seconds", "0.05"])
    nodes, *_, longest = capsys.readouterr().out.strip().splitlines()[-1].strip("| ").split("|")
    assert 100 < int(nodes) <= 600 and float(longest) >= 0
