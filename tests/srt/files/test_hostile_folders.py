"""Model directories that are made to stop, fill or crash a server: each is refused in one line, or
loads within bounds."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.executor import _check_model
from scheduler_proc.models.counts import check_counts
from srt import trial
from srt.files.model_files import ModelFiles, resolve_model
from srt.launch import main
from srt.ring.forked import result_in_time
from srt.trial import try_tokenizer
from srt.wire.errors import ConfigError
from tests.srt.files.hostile_folders import HOSTILE, config, write_hostile, write_llama

# One of each kind.
_SHORT = (
    *("nine chained normalizers", "four chained normalizers", "a pattern that backtracks"),
    *("an id of 4e9", "a tokenizer of 1 GiB", "a config that is a pipe"),
    *("a config of 200,000 levels", "2e9 rows of the embedding", "a million layers"),
    *("a million layers of another architecture", "a billion experts", "no width"),
    *("a width of 2e9 of another architecture", "a rope that stretches by 1e308"),
    *("a header of 2**40", "weights elsewhere", "weights of another width", "1e12 positions"),
    *("a template that is folded for ever", "absurd sampling"),
)


def _those(kind: str) -> list[Any]:
    """The names of what ends so; short forms and others."""
    full = pytest.mark.full
    return [
        pytest.param(name, marks=() if name in _SHORT else full)
        for name, (_, where) in HOSTILE.items()
        if where == kind
    ]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "CPU_S", 1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.mark.parametrize("name", _those("launcher"))
def test_the_launcher_refuses_it(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that names the file, or the model that is none."""
    write_hostile(tmp_path / "m", name)
    assert main(["--model", str(tmp_path / "m"), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"srt: .*{tmp_path}/m", line)


@pytest.mark.parametrize("name", _those("part"))
def test_the_scheduler_refuses_it(tmp_path: Path, name: str) -> None:
    """Before any executor, and so torch, is tried."""
    write_hostile(tmp_path / "m", name)
    files = resolve_model(str(tmp_path / "m"))
    try_tokenizer(files)
    with pytest.raises(ConfigError) as refused:
        _check_model(files, "auto")
    (line,) = str(refused.value).splitlines()
    assert str(tmp_path) in line


@pytest.mark.parametrize("name", ["", *_those("runs")])
def test_it_loads(tmp_path: Path, name: str) -> None:
    write_hostile(tmp_path / "m", name) if name else write_llama(tmp_path / "m")
    files = resolve_model(str(tmp_path / "m"))
    try_tokenizer(files)
    _check_model(files, "auto")


def test_a_trial_starts_no_thread_for_each_core(tmp_path: Path) -> None:
    """Their stacks and heaps on a machine of 64 cores would be above the limit on memory."""
    write_llama(tmp_path / "m")
    program = (
        "import os, sys; from srt.files.model_files import resolve_model; from srt import trial;"
        "print(trial._tried(resolve_model(sys.argv[1])), len(os.listdir('/proc/self/task')))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b'' 1\n"


def test_what_has_passed_is_tried_again_only_if_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path / "m")
    tried = []

    def passing(*_: object) -> bytes:
        tried.append(1)
        return b""

    monkeypatch.setattr(trial, "result_in_time", passing)
    files = resolve_model(str(tmp_path / "m"))
    for _ in range(2):
        try_tokenizer(files)
    assert len(tried) == 1
    (tmp_path / "m" / "added_tokens.json").write_text("{}")
    try_tokenizer(files)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    try_tokenizer(files)
    assert len(tried) == 3


def test_a_refusal_is_not_kept(tmp_path: Path) -> None:
    write_hostile(tmp_path / "m", "four chained normalizers")
    for _ in range(2):
        with pytest.raises(ConfigError, match="its normalizer makes"):
            try_tokenizer(resolve_model(str(tmp_path / "m")))


def test_a_file_of_another_format_has_more_room(tmp_path: Path) -> None:
    """It becomes a tokenizer.json of many times its size."""
    write_llama(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "m" / "tokenizer.model")
    asked = []

    def record(_: object, cpu_s: float, num_bytes: int) -> bytes:
        asked.append((cpu_s, num_bytes))
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "result_in_time", record)
        try_tokenizer(resolve_model(str(tmp_path / "m")))
        size = (tmp_path / "m" / "tokenizer.model").stat().st_size
    assert asked == [(1.0 + 8 * size * 0.5 / 2**20, 2**29 + 8 * size * 24)]


@pytest.mark.parametrize("keys", [{"num_experts": 2**14}, {"num_params": 7_000_000_000}])
def test_what_models_have_is_tried_with_transformers(tmp_path: Path, keys: dict[str, int]) -> None:
    write_llama(tmp_path / "m")
    config(**keys)(tmp_path / "m")
    check_counts(tmp_path / "m")


def test_a_gguf_file_has_a_tokenizer_of_our_own() -> None:
    try_tokenizer(ModelFiles("x", "gguf", Path("/nowhere")))


def test_a_child_that_waits_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srt.ring.forked.WALL_S", 0.2)
    assert result_in_time(_wait, 0.0, 2**28) is None


def _wait() -> bytes:
    import signal

    signal.pause()
    return b""
