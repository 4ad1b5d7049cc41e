"""CPU time by process over a null executor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from bench.cpu_time import added, cpu_seconds_below
from bench.host import PARTS, ROOT, SERVER_PARTS, Load, Turn, measure, per_table

# It works for 0.1 s, and so does its child, which runs something else.
PARENT = """
import subprocess, sys, time

while time.process_time() < 0.1:
    pass
if sys.argv[-1] == "parent":
    child = [sys.executable, "-c", sys.argv[1], sys.argv[1], "-m", "child"]
    subprocess.run(child, stdin=sys.stdin, check=True)
else:
    print("done", flush=True)
    sys.stdin.read()
"""


def test_the_time_of_a_child_is_its_parents() -> None:
    before = cpu_seconds_below(os.getpid())
    command = [sys.executable, "-c", PARENT, PARENT, "-m", "parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"done\n"
        spent = added(before, cpu_seconds_below(os.getpid()))
        assert spent["parent"] >= 0.2 and "child" not in spent
        parent.communicate()


def test_tables_are_microseconds_and_leave_the_client_out_of_the_sum() -> None:
    turn = Turn(10, 100, 0.5, dict.fromkeys(PARTS, 0.001))
    turns = {"a": {"here": [turn, turn]}, "b": {"here": [turn._replace(tokens=10)]}}
    first, _ = per_table(turns, tokens=False).splitlines()[2:]
    assert cells(first) == ["a", "here", "20", "200", *["100"] * 5, "500", "100"]
    (only,) = per_table(turns, tokens=True).splitlines()[2:]
    assert cells(only)[-2:] == ["50.0", "10.0"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.full
def test_the_ring_runs_without_a_model(tmp_path: Path) -> None:
    load = Load(8, 4, 16, 3, streamed=True)
    turns = uvloop.run(measure([ROOT], [load], 0.0, 1, tmp_path / "server.log"))
    (turn,) = turns[load.name][str(ROOT)]
    assert turn.tokens == 24 and all(turn.cpu_s[part] > 0 for part in SERVER_PARTS[:-1])
