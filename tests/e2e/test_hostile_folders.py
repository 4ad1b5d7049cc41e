"""Servers that are given model directories made to stop, fill or crash them."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.srt.files.hostile_folders import HOSTILE, write_hostile
from tests.waiting import SOON_S

pytestmark = pytest.mark.slow

MAX_BYTES = 2**30  # of all processes together
LOOK_S = 0.05


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_or_served_within_bounds(tmp_path: Path, name: str) -> None:
    """A refusal is one line of the launcher's, or of a part's beside it."""
    write_hostile(tmp_path / "m", name)
    command = [sys.executable, "-m", "srt.launch", "--model", str(tmp_path / "m"), "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--threads", "1"], stdout=log, stderr=log)
    try:
        end, most = time.monotonic() + SOON_S, 0
        while process.poll() is None and not (told := _ready(tmp_path / "log")):
            most = max(most, sum(map(_proportional, _tree(process.pid))))
            assert most < MAX_BYTES and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(LOOK_S)
        served = process.poll() is None and told
        process.send_signal(signal.SIGTERM)
        process.wait(SOON_S)
    finally:
        process.kill()
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text
    if HOSTILE[name][1] == "runs":
        assert served, text
        return
    if HOSTILE[name][1] == "launcher":
        (line,) = text.splitlines()
        assert line.startswith("srt: ")
    else:
        assert process.returncode > 0
        errors = [line for line in text.splitlines() if "ERROR" in line or line.startswith("srt: ")]
        named = ("config.json", str(tmp_path), "GiB of memory")
        assert len([line for line in errors if any(name in line for name in named)]) == 1, text


def _ready(log: Path) -> bool:
    return b" ready   " in log.read_bytes()


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # it has ended
                found += map(int, task.read_text().split())
    return found


def _proportional(pid: int) -> int:
    """The bytes that a process has, its share of what it has with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
