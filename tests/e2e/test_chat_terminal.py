"""`srt chat` on a terminal, with a real server."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.e2e.terminal import ALT_ENTER, CTRL_C, CTRL_D, UP, Terminal, pasted
from tests.waiting import SOON_S

ROOT = Path(__file__).parents[2]
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a chat on a terminal, with a home of its own."""
    running: list[Terminal] = []

    def start(*args: str, **env: str) -> Terminal:
        command = [sys.executable, "-m", "srt", "chat", "--max-tokens", "8", "--temperature", "0"]
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        terminal = Terminal([*command, *args], tmp_path, {**base, "SRT_THREADS": "1", **env})
        running.append(terminal)
        return terminal

    yield start
    for terminal in running:
        terminal.close()


def begun(terminal: Terminal) -> None:
    """Wait for the first prompt. What is typed before one goes to whoever reads lines then."""
    terminal.wait_for("/help lists the commands", 120)
    terminal.wait_for(">")


def answered(terminal: Terminal) -> None:
    """Wait for the prompt after an answer."""
    terminal.wait_for("prompt tokens cached]")
    terminal.wait_for(">")


def saved(terminal: Terminal, folder: Path, name: str) -> list[dict[str, str]]:
    """The chat so far."""
    terminal.write(f"/save {name}\r")
    terminal.wait_for(f"to {name}")
    terminal.wait_for(">")
    messages: list[dict[str, str]] = json.loads((folder / name).read_text())
    return messages


def test_turns_and_their_history(start: Start, server: Server, tmp_path: Path) -> None:
    first = start("--url", server.url)
    begun(first)
    first.write("What colour is snow?\r")
    answered(first)
    first.write(
        "A line that is given up" + CTRL_C + "And coal?\\\rSay it." + ALT_ENTER + "Please.\r"
    )
    answered(first)
    first.write('"""one\rtwo"""\r')
    answered(first)
    messages = saved(first, tmp_path, "a.json")
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert asked == ["What colour is snow?", "And coal?\nSay it.\nPlease.", "one\ntwo"]
    first.write(CTRL_C)
    first.wait_for("Ctrl-C again")
    first.wait_for(">")
    first.write(CTRL_C)
    assert first.wait_end() == 0
    history = tmp_path / ".cache" / "srt" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    second = start("--url", server.url)
    begun(second)
    second.write("/load a.json\r")
    second.wait_for("loaded 6 messages")
    second.wait_for(">")
    second.write(8 * UP + "\r")  # /load, /save, two lines, three lines, the first message
    answered(second)
    assert saved(second, tmp_path, "b.json")[6]["content"] == "What colour is snow?"
    second.write(CTRL_D)
    assert second.wait_end() == 0


@pytest.mark.full
def test_an_answer_is_interrupted_and_tried_again(
    start: Start, server: Server, tmp_path: Path
) -> None:
    terminal = start("--url", server.url, "--max-tokens", "3000")
    begun(terminal)
    terminal.write("Write a very long story.\r")
    terminal.wait_for(" the ")
    terminal.write(CTRL_C)
    terminal.wait_for("[stopped]")
    answered(terminal)
    before = saved(terminal, tmp_path, "a.json")
    assert [message["role"] for message in before] == ["user", "assistant"]
    terminal.write("/retry\r")
    terminal.wait_for(" the ")
    terminal.write(CTRL_C)
    answered(terminal)
    assert len(saved(terminal, tmp_path, "b.json")) == 2
    terminal.write("/quit\r")
    assert terminal.wait_end() == 0
    server.wait_idle()


@pytest.mark.full
def test_a_paste_of_ten_thousand_lines(start: Start, server: Server, tmp_path: Path) -> None:
    lines = "".join(f"/line {i}\n" for i in range(10_000))
    terminal = start("--url", server.url)
    begun(terminal)
    terminal.write(pasted(lines))
    terminal.wait_for("[paste 1: 10001 lines")
    terminal.write("\r")
    terminal.wait_for("error: ")  # longer than the context: it went as one message
    terminal.wait_for(">")
    terminal.write(pasted("/quit\nis\ttext") + "\r")
    answered(terminal)
    assert saved(terminal, tmp_path, "a.json")[0]["content"] == "/quit\nis\ttext"
    terminal.write(CTRL_D)
    assert terminal.wait_end() == 0


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[1] == str(pid):
            found.append(int(entry.name))
    return found


@pytest.mark.full
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_server_of_its_own_ends_with_the_chat(start: Start, is_killed: bool) -> None:
    terminal = start("smollm2", "--max-tokens", "3000")
    terminal.wait_for("a server of this chat's own", 120)
    terminal.wait_for(">")
    for message in ("Write a very long story.", "/retry"):  # the server bears Ctrl-C
        terminal.write(f"{message}\r")
        terminal.wait_for(" the ")
        terminal.write(CTRL_C)
        terminal.wait_for("[stopped]")
        answered(terminal)
    (launcher,) = children(terminal.process.pid)
    everything = [launcher, *children(launcher)]
    assert len(everything) > 3
    if is_killed:
        terminal.process.kill()
    else:
        terminal.write(CTRL_D)
    terminal.wait_end()
    deadline = time.monotonic() + SOON_S
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in everything):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.full
def test_a_server_of_its_own_that_dies(start: Start) -> None:
    terminal = start("smollm2")
    terminal.wait_for("a server of this chat's own", 120)
    terminal.wait_for(">")
    (launcher,) = children(terminal.process.pid)
    for pid in [launcher, *children(launcher)]:
        os.kill(pid, 9)
    terminal.write("Hello\r")
    terminal.wait_for("the server of this chat has ended")
    assert terminal.wait_end() == 1


def test_no_server_at_an_address(start: Start) -> None:
    terminal = start("--url", "http://127.0.0.1:9")
    terminal.wait_for("no server of models answers at http://127.0.0.1:9: start one with")
    assert terminal.wait_end() == 1


def piped(text: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "srt", "chat", "--max-tokens", "4", "--temperature", "0"]
    return subprocess.run(
        [*command, *args], input=text, capture_output=True, text=True, timeout=120, cwd=ROOT
    )


@pytest.mark.full
def test_messages_from_a_pipe(server: Server, tmp_path: Path) -> None:
    done = piped("The capital of France?\n", "--url", f"{server.url}/v1/")
    assert done.returncode == 0 and "prompt tokens cached]" in done.stdout
    for text in (20_000 * "long ", "/load\n", "/load /dev/zero\n", f"/load {tmp_path}/no\n"):
        done = piped(text, "--url", server.url)
        assert done.returncode == 1, (text[:20], done.stdout)
    assert "does not exist" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seed", str(2**63)], "seed"),
        (["--top-p", "0"], "top_p"),
        (["--temperature", "nan"], "temperature"),
    ],
)
def test_what_no_answer_could_have(server: Server, args: list[str], message: str) -> None:
    done = piped("Hello\n", "--url", server.url, *args)
    assert done.returncode == 1 and message in done.stderr and done.stdout == ""


def test_a_server_of_another_model(start: Start, server: Server) -> None:
    terminal = start("org/other", "--url", server.url)
    terminal.wait_for("serves smollm2, not org/other")
    assert terminal.wait_end() == 1


def test_a_home_that_cannot_be_written(start: Start, server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    terminal = start("--url", server.url, XDG_CACHE_HOME=str(tmp_path / "file"))
    begun(terminal)
    terminal.write("Hello\r")
    answered(terminal)
    terminal.write(CTRL_D)
    assert terminal.wait_end() == 0
