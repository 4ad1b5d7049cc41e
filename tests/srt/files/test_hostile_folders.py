"""Model directories that are made to stop, fill or crash a server: each is refused in one line, or
loads within bounds."""

import re
from pathlib import Path

import pytest

from scheduler_proc.executor import _check_model
from srt import trial
from srt.files.model_files import ModelFiles, resolve_model
from srt.launch import main
from srt.ring.forked import result_in_time
from srt.trial import try_tokenizer
from srt.wire.errors import ConfigError
from tests.srt.files.hostile_folders import HOSTILE, write_hostile, write_llama

BY_LAUNCHER = [name for name, (_, where) in HOSTILE.items() if where == "launcher"]
BY_PART = [name for name, (_, where) in HOSTILE.items() if where == "part"]
RUNNING = [name for name, (_, where) in HOSTILE.items() if where == "runs"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CPU_S", 1.0)


@pytest.mark.parametrize("name", BY_LAUNCHER)
def test_the_launcher_refuses_it(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that names the file, or the model that is none."""
    write_hostile(tmp_path / "m", name)
    assert main(["--model", str(tmp_path / "m"), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"srt: .*{tmp_path}/m", line)


@pytest.mark.parametrize("name", BY_PART)
def test_the_scheduler_refuses_it(tmp_path: Path, name: str) -> None:
    """Before any executor, and so torch, is tried."""
    write_hostile(tmp_path / "m", name)
    files = resolve_model(str(tmp_path / "m"))
    try_tokenizer(files)
    with pytest.raises(ConfigError) as refused:
        _check_model(files, "auto")
    (line,) = str(refused.value).splitlines()
    assert str(tmp_path) in line


@pytest.mark.parametrize("name", ["", *RUNNING])
def test_it_loads(tmp_path: Path, name: str) -> None:
    write_hostile(tmp_path / "m", name) if name else write_llama(tmp_path / "m")
    files = resolve_model(str(tmp_path / "m"))
    try_tokenizer(files)
    _check_model(files, "auto")


def test_a_gguf_file_has_a_tokenizer_of_our_own() -> None:
    try_tokenizer(ModelFiles("x", "gguf", Path("/nowhere")))


def test_a_child_that_waits_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srt.ring.forked.WALL_S", 0.2)
    assert result_in_time(_wait, 0.0, 2**28) is None


def _wait() -> bytes:
    import signal

    signal.pause()
    return b""
