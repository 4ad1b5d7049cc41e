"""A line of the log, in a file and on a terminal."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from srt.ring.log import set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    set_up_logging("gateway", "info")
    logging.getLogger("srt").warning("careful")
    logging.getLogger("srt").debug("nobody reads this")
    return stderr.getvalue()


def test_a_file_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stamp, _, rest = written(monkeypatch, io.StringIO()).partition(" ")
    assert len(stamp) == len("12:34:56") and rest == "gateway     WARNING: careful\n"


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = written(monkeypatch, Terminal())
    assert line.startswith("\033[2m") and line.endswith("\033[33mcareful\033[0m\n")
    monkeypatch.setenv("NO_COLOR", "1")
    line = written(monkeypatch, Terminal())
    assert "\033" not in line and line.endswith("gateway     WARNING: careful\n")
