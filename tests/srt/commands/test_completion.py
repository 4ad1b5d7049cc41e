"""What shells complete, tried in the shells that are here."""

import os
import pty
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from srt.commands import command, completion


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main(["completion", shell]) == 0
    return capsys.readouterr().out


def run(program: str, script: str, more: str, cwd: Path) -> list[str]:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    options = ["--norc", "--noprofile"] if program == "bash" else []
    done = subprocess.run(
        [program, *options],
        input=f"{script}\n{more}\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srt ", [*command.COMMANDS, "help"]),
        ("srt help mo", ["models"]),
        ("srt mo", ["models"]),
        ("srt serve --max-total", ["--max-total-tokens"]),
        ("srt serve --executor ", ["auto", "native", "torch"]),
        ("srt serve --executor n", ["native"]),
        ("srt serve --port ", []),
        ("srt serve --model m", ["model.gguf"]),
        ("srt serve m", ["model.gguf"]),
        ("srt bench --dataset m", ["model.gguf"]),
        ("srt bench --request", ["--request-rate"]),
        ("srt bench --model m", []),
        ("srt bench m", []),
        ("srt serve --executor = n", ["native"]),  # as bash splits --executor=n
        ("srt serve --executor =", ["auto", "native", "torch"]),
        ("srt serve --record-trace m", ["model.gguf"]),
        ("srt completion ", ["bash", "zsh", "fish"]),
        ("srt completion z", ["zsh"]),
        ("srt serve a", ["a b.gguf"]),
        ("srt serve s", ["s*.gguf"]),
        ("srt doctor --", ["--help", "--json"]),
    ],
)
def test_bash(
    line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "a b.gguf").touch()
    (tmp_path / "s*.gguf").touch()
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    more = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _srt"
    show = 'for each in "${COMPREPLY[@]}"; do echo "$each"; done'
    found = run("bash", script("bash", capsys), f"{more}\n{show}", tmp_path)
    assert sorted(found) == sorted(expected)


def completed_by_zsh(script: str, lines: list[str], home: Path) -> list[str]:
    """What zsh makes of each line at a Tab, typed on a terminal."""
    (home / "script").write_text(script)
    (home / ".zshrc").write_text(
        "autoload -Uz compinit && compinit -u -d ./dump; source ./script\n"
        'show() { print -r -- "$BUFFER" >> found; BUFFER= }\n'
        "zle -N show; bindkey '^O' show; bindkey '^I' complete-word; PS1='READY> '\n"
    )
    keyboard, terminal = pty.openpty()
    environ = {**os.environ, "HOME": str(home), "ZDOTDIR": str(home), "TERM": "xterm"}
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    command = ["zsh", "-i", "--no-global-rcs"]
    with subprocess.Popen(command, **ends, cwd=home, env=environ, start_new_session=True) as shell:
        os.close(terminal)
        killer = threading.Timer(60, shell.kill)
        killer.start()
        shown = b""
        while b"READY>" not in shown:
            shown += os.read(keyboard, 4096)
        os.write(keyboard, "".join([*(f"{line}\t\x0f" for line in lines), "exit\r"]).encode())
        with suppress(OSError):  # its end
            while os.read(keyboard, 4096):
                pass
        killer.cancel()
    os.close(keyboard)
    return (home / "found").read_text().splitlines()


def test_zsh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "serve").mkdir()
    for name in ("model.gguf", "a b.gguf", "serve.toml"):
        (tmp_path / name).touch()
    expected = {
        "srt ser": "srt serve ",
        "srt serve --max-total": "srt serve --max-total-tokens=",
        "srt serve --executor=n": "srt serve --executor=native ",
        "srt serve --executor n": "srt serve --executor native ",
        "srt serve --config=~/serve.t": "srt serve --config=~/serve.toml ",
        "srt serve m": "srt serve model.gguf ",
        "srt serve --port 1 a": "srt serve --port 1 a\\ b.gguf ",
        "srt bench --model m": "srt bench --model m",
        "srt chat chat --sys": "srt chat chat --system=",
        "srt completion z": "srt completion zsh ",
    }
    found = completed_by_zsh(script("zsh", capsys), [*expected], tmp_path)
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srt mo", ["models"]),
        ("srt serve --executor n", ["native"]),
        ("srt serve --executor=n", ["--executor=native"]),
        ("srt serve chat --max-to", ["--max-total-tokens"]),
        ("srt chat serve --max-to", ["--max-tokens"]),
        ("srt serve mod", ["model.gguf"]),
    ],
)
def test_fish(
    line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").touch()
    found = run("fish", script("fish", capsys), f"complete -C '{line}'", tmp_path)
    assert [each.split("\t")[0] for each in found] == expected


def test_every_option_is_there() -> None:
    flags = completion.flags_of(command.COMMANDS["serve"].parser())
    words = {word for flag in flags for word in flag.words}
    assert {"--model", "--config", "--print-config", "--no-ui"} <= words
    assert not any("=" in word for word in words)
    files = {flag.words[-1] for flag in flags if flag.takes_path and flag.words}
    assert {"--config", "--model", "--api-key-file", "--grammar-cache-dir"} <= files
