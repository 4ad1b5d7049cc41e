"""The words of the command `srt`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from srt.commands.command import main
from srt.options.settings import read_settings
from srt.version import version_of
from srt.wire.errors import ConfigError


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ("serve", "chat", "run", "doctor"))


def test_an_unknown_word_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert "'sevre' is not a command; did you mean serve?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["serve", "chat", "run", "doctor"])
def test_each_command_has_its_own_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([word, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: srt {word} ")


@pytest.mark.parametrize(
    "words", [["smollm2", "--port", "80"], ["--port", "80", "smollm2"], ["--port=80"]]
)
def test_the_model_may_stand_anywhere(words: list[str]) -> None:
    environ = {"SRT_MODEL": "/no/such"} if "smollm2" in words else {}
    args = read_settings(words, environ, "srt serve").args
    assert (args.model, args.port) == ("smollm2", 80)


def test_a_model_is_named_once() -> None:
    with pytest.raises(ConfigError, match="'a' and --model name two models"):
        read_settings(["a", "--model", "smollm2"], {}, "srt serve")


def test_the_launcher_takes_no_words() -> None:
    with pytest.raises(SystemExit):
        read_settings(["smollm2"], {})


def test_the_command_checks_that_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2", "--model", "smollm2"]) == 2
    assert "name two models" in capsys.readouterr().err


def test_serve_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such"]) == 2
    assert "srt: model '/no/such' not found" in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "srt", "no"], capture_output=True, text=True)
    assert done.returncode == 2 and "'no' is not a command" in done.stderr


@pytest.mark.parametrize("words", [["doctor"], ["serve", "--print-config"], ["--help"]])
def test_whatever_the_output_can_hold(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "srt", *words]
    environ = {**os.environ, "SRT_RING_DIR": str(tmp_path / "モデル"), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (1, "srt: No space left on device\n")


def test_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"srt {version_of()}\n"


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "models"])
    assert capsys.readouterr().out.startswith("usage: srt models ")
    assert main(["pull"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err


def test_what_replaced_an_option_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--keep-cache"])
    assert "the cache is kept, unless --flush-cache is given" in capsys.readouterr().err
