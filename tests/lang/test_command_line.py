"""Programs as commands: where the model is, and how errors are said."""

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

import lang as sgl
from srt.wire.errors import RingError


def ended(words: list[str], monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The status of a program that fails so."""
    monkeypatch.setattr(sys, "argv", ["tips.py", *words])
    with pytest.raises(SystemExit) as end, sgl.command_line("Some tips."):
        raise error
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_running_server_and_own_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    words = ["--url", "127.0.0.1:9/v1", "--api-key-file", str(keys), "--chains", "3"]
    monkeypatch.setattr(sys, "argv", ["tips.py", *words])
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int)
    with sgl.command_line(parser) as (backend, options):
        assert (backend.url, options.api_key, options.chains) == ("http://127.0.0.1:9", "first", 3)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RingError("there is no server"), 1, "tips.py: there is no server\n"),
        (FileNotFoundError(2, "No such file", "x.txt"), 1, "tips.py: x.txt: No such file\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(["--url", "127.0.0.1:9"], monkeypatch, error) == status
    assert capsys.readouterr().err == said


@sgl.function
def asks(s: Any) -> None:
    s += "Hello" + sgl.gen("a")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--url", "127.0.0.1:9"], 1, "127.0.0.1:9"),
        (["--url", "ipc:///no/such"], 1, "/no/such"),
        (["--model", "/no/such"], 1, "/no/such"),
        (["--url", "ftp://x"], 2, "must be like http://127.0.0.1:30000"),
        (["--urll", "x"], 2, "did you mean --url?"),
    ],
)
def test_a_server_that_is_not_there(
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tips.py", *words])
    with pytest.raises(SystemExit) as end, sgl.command_line("Some tips.") as (backend, _):
        print(asks.run(backend=backend)["a"])
    written = capsys.readouterr().err
    assert end.value.code == status and said in written and written.count("\n") == 1, written
