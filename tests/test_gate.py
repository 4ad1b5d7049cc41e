"""The faults for which pytest's settings in pyproject.toml must fail a test: a test with each."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAD = {
    "a coroutine that is never awaited": """
async def work(): ...

def test_bad():
    work()
""",
    "a socket that is never closed": """
import socket

def test_bad():
    socket.socket()
""",
    "an exception that nobody can catch": """
class Bad:
    def __del__(self):
        raise ValueError

def test_bad():
    Bad()
""",
    "a thread's exception": """
import threading

def test_bad():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
""",
    "what is deprecated": """
import warnings

def test_bad():
    warnings.warn("old", DeprecationWarning)
""",
    "a hang": """
import threading, pytest

@pytest.mark.timeout(1, func_only=True)
def test_bad():
    threading.Event().wait()
""",
    "a hang of the event loop": """
import asyncio, pytest

@pytest.mark.timeout(1, func_only=True)
async def test_bad():
    await asyncio.Event().wait()
""",
}
GOOD = """
def test_good():
    pass
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one run says of all of them, each in a file of its own with a good test after it."""
    folder = tmp_path_factory.mktemp("gate")
    for number, code in enumerate(BAD.values()):
        (folder / f"test_{number}.py").write_text(code + GOOD)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-rA", "-p", "no:cacheprovider", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", BAD)
def test_it_fails_its_test_and_the_run_goes_on(name: str, outcomes: list[str]) -> None:
    file = f"test_{[*BAD].index(name)}.py"
    assert any(line.startswith(f"FAILED {file}::test_bad") for line in outcomes), outcomes
    assert f"PASSED {file}::test_good" in outcomes, outcomes


def test_every_test_has_a_bound(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
