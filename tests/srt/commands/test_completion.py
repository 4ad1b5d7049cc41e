"""What shells complete, tried in the shells that are here."""

import shutil
import subprocess
from pathlib import Path

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
        ("srt ", [*command.COMMANDS]),
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
        ("srt doctor --", ["--help", "--json"]),
    ],
)
def test_bash(
    line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "a b.gguf").touch()
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    more = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _srt"
    show = 'for each in "${COMPREPLY[@]}"; do echo "$each"; done'
    found = run("bash", script("bash", capsys), f"{more}\n{show}", tmp_path)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_it(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert all(name in text for name in command.COMMANDS)
    if shell == "fish":
        more = "complete -C 'srt serve --executor n'"
        assert "native" in " ".join(run("fish", text, more, tmp_path))
    else:
        run("zsh", text, "true", tmp_path)


def test_every_option_is_there() -> None:
    flags = completion.flags_of(command.COMMANDS["serve"].parser())
    words = {word for flag in flags for word in flag.words}
    assert {"--model", "--config", "--print-config", "--no-ui"} <= words
    assert not any("=" in word for word in words)
    files = {flag.words[-1] for flag in flags if flag.takes_path and flag.words}
    assert {"--config", "--model", "--api-key-file", "--grammar-cache-dir"} <= files
