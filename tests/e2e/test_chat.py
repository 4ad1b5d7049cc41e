"""The terminal chat as a separate program, with a real server."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server

LINES = [
    "/system You answer in one word.",
    "What colour is snow?",
    "And \\",
    "coal?",
    "/save chat.json",
    "/nonsense",
    "/reset",
    "Hello",
    "/save other.json",
    "/save",
    "/system",
    "/quit",
    "this is not read",
]


def run(server: Server, lines: list[str], directory: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "srt.chat", "--max-tokens", "8", "--temperature", "0"]
    process = subprocess.Popen(
        [*command, *args],
        cwd=directory,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("".join(line + "\n" for line in lines))
    process.stdin.flush()
    return process


@pytest.mark.parametrize("way", ["http", "ring"])
def test_a_conversation(server: Server, tmp_path: Path, way: str) -> None:
    url = server.url if way == "http" else server.ring
    output, errors = run(server, LINES, tmp_path, "--url", url).communicate(timeout=120)
    assert errors == ""
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert (tmp_path / "chat.json").stat().st_mode & 0o777 == 0o600
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in saved] == roles
    assert saved[0]["content"] == "You answer in one word."
    assert saved[3]["content"] == "And \ncoal?"
    assert all(message["content"] in output for message in saved if message["role"] == "assistant")
    after_reset = json.loads((tmp_path / "other.json").read_text())
    assert [message["role"] for message in after_reset] == ["system", "user", "assistant"]
    figures = [line for line in output.splitlines() if "prompt tokens cached]" in line]
    assert len(figures) == 3 and "tokens/s" in figures[0]
    cached = [int(line.split(", ")[-1].split(" of ")[0]) for line in figures]
    assert cached[1] > 30  # the second turn finds the first one
    assert "no command /nonsense" in output and "/save needs a file's name" in output
    assert "system: You answer in one word." in output and "not read" not in output


def test_an_interrupt_ends_the_answer_only(server: Server, tmp_path: Path) -> None:
    args = ("--url", server.url, "--max-tokens", "3000")
    process = run(server, ["Write a very long story."], tmp_path, *args)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.read(10)  # an answer has begun
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate("/save chat.json\n", timeout=60)
    assert process.returncode == 0 and errors == ""
    assert "[stopped]" in output
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in saved] == ["user", "assistant"]
    server.wait_idle()


def test_no_server(tmp_path: Path, server: Server) -> None:
    process = run(server, ["Hello"], tmp_path, "--url", "http://127.0.0.1:9")
    _, errors = process.communicate(timeout=60)
    assert "no server of models answers at http://127.0.0.1:9: start one" in errors
    assert process.returncode == 1


def test_a_refused_message_leaves_the_chat_as_it_was(server: Server, tmp_path: Path) -> None:
    lines = ["word " * 20000, "Hello", "/save chat.json"]
    process = run(server, lines, tmp_path, "--url", server.url)
    output, _ = process.communicate(timeout=60)
    assert "error: " in output
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in saved] == ["user", "assistant"]
