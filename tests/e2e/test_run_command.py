"""`srt run` as a program of its own, with a real server."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "srt", "run"]
LONG = ["Write a very long story.", "--max-tokens", "3000"]


def run(piped: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], input=piped, capture_output=True, text=True, timeout=120, cwd=ROOT
    )


@pytest.mark.parametrize("way", ["http", "ring"])
def test_an_answer_about_a_file(server: Server, way: str) -> None:
    url = server.url if way == "http" else server.ring
    text = "Snow is white. Coal is black. " * 20
    words = ["What colour is snow?", "--url", url, "--temperature", "0", "--max-tokens", "4"]
    done = run(text, *words)
    assert (done.returncode, done.stderr) == (0, "[cut after 4 tokens, see --max-tokens]\n")
    assert done.stdout.strip() and done.stdout.endswith("\n")
    before = server.stats()["cached_tokens_total"]
    assert run(text, "And coal?", *words[1:]).returncode == 0
    assert server.stats()["cached_tokens_total"] - before > 100  # the file


def test_an_answer_of_a_form(server: Server, tmp_path: Path) -> None:
    done = run("", "Is snow white?", "--regex", "(yes|no)", "--url", server.url)
    assert done.stdout in ("yes\n", "no\n") and (done.returncode, done.stderr) == (0, "")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["snow", "coal"]}')
    done = run("", "Which is white?", "--raw", "--json-schema", str(schema), "--url", server.url)
    assert done.stdout in ('"snow"\n', '"coal"\n') and done.returncode == 0


def test_what_the_server_refuses(server: Server) -> None:
    done = run("word " * 20_000, "Sum it up.", "--url", server.url)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("srt run: ") and done.stderr.count("\n") == 1


def test_an_interrupt_and_a_reader_that_goes(server: Server) -> None:
    """Both end the request on the server too."""
    for status in (128 + signal.SIGINT, 128 + signal.SIGPIPE):
        process = subprocess.Popen(
            [*COMMAND, *LONG, "--url", server.url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            # A shell that starts the tests in the background has them ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(10)  # an answer has begun
        if status == 128 + signal.SIGINT:
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == status
        process.stdout.close()
        process.stderr.close()
        server.wait_idle()


@pytest.mark.full
def test_a_server_of_its_own() -> None:
    environ = {**os.environ, "SRT_THREADS": "1"}
    done = subprocess.run(
        [*COMMAND, "Is snow white?", "--regex", "(yes|no)", "--model", "smollm2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environ,
        check=False,
    )
    assert done.stdout in ("yes\n", "no\n") and (done.returncode, done.stderr) == (0, "")
