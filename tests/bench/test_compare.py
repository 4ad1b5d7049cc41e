"""Our server and a peer in turns: the order, the processes, and the tables."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from bench import serving
from bench.compare import Launched, Turn, compare, comparison, take_turns
from bench.figures import figures_of
from bench.measure import Course, width_of
from bench.peers import __main__ as peers_main
from bench.peers.catalogue import NAMES, Srt, peers
from bench.peers.process import StartError, free_port, running
from srt.benchmark.load import PROBES, Record, Run
from srt.wire.messages import Finish
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S


class Here:
    """A contender in this process, which notes when it starts and stops."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.clients: list[FakeClient] = []
        self._events = events

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        self.clients.append(FakeClient(("x", " y")))
        self.clients[-1].finish = Finish("length")
        self._events.append(f"{self.name} starts")
        async with served(self.clients[-1]) as server:
            yield server.url
        self._events.append(f"{self.name} stops")


async def test_turns_alternate_on_the_same_text() -> None:
    events: list[str] = []
    ours, peer = Here("srt", events), Here("other", events)
    args = serving.parse_args(["--workload", "multiturn", "--scale", "0.0625"])
    turns = await take_turns([ours, peer], Course(args), 2)
    assert [turn.server for turn in turns] == ["srt", "other"] * 2
    once = ["srt starts", "srt stops", "other starts", "other stops"]
    assert events == once * 2
    assert all((turn.workload, turn.figures.requests) == ("multiturn", 4) for turn in turns)
    texts = [[request.text for request in c.requests] for c in ours.clients + peer.clients]
    assert len(texts[0]) == PROBES + 4 and all(text == texts[0] for text in texts)
    seeds = [[request.sampling.seed for request in c.requests] for c in ours.clients + peer.clients]
    assert len(set(seeds[0][PROBES:])) == 4 and all(each == seeds[0] for each in seeds)


async def test_workloads_come_after_one_another() -> None:
    args = serving.parse_args(["--workload", "all", "--scale", "0.01"])
    course = Course(args)
    course.names = ["single", "fewshot"]
    turns = await take_turns([Here("a", []), Here("b", [])], course, 1)
    assert [(t.workload, t.server) for t in turns] == [
        ("single", "a"),
        ("single", "b"),
        ("fewshot", "a"),
        ("fewshot", "b"),
    ]


async def test_the_cost_of_a_word_is_the_first_server_s() -> None:
    args = serving.parse_args(["--workload", "single", "--scale", "0.25", "--random-words"])
    course = Course(args)
    await take_turns([Here("a", [])], course, 1)
    assert course.tokens_per_word == 1.0
    course.tokens_per_word = 2.0
    contender = Here("b", [])
    await take_turns([contender], course, 1)
    assert len((contender.clients[0].requests[-1].text or "").split()) == 64


def turn(
    server: str, wall_s: float, ttft_s: float | None, cached: int | None = None, width: str = ""
) -> Turn:
    times = [] if ttft_s is None else [ttft_s, ttft_s + 0.02]
    record = Record(0.0, wall_s, times, "x", 1200, cached, 100)
    return Turn(server, "batch", figures_of(Run([record], wall_s, 0.25)), width)


def test_the_table() -> None:
    turns = [
        turn("srt", 2.0, 0.1, 600),
        turn("other", 4.0, 0.2),
        turn("srt", 1.0, 0.1, 600),
        turn("other", 4.0, 0.5),
        turn("srt", 5.0, 0.3, 600),
        turn("other", 5.0, 0.3),
    ]
    lines = comparison(turns).splitlines()
    rows = {line[:28].strip(): line[28:].split() for line in lines}
    assert lines[0].split() == ["batch", "srt", "other", "srt", "/", "other", "of", "the", "pairs"]
    assert rows["out tok/s (more is better)"] == ["50", "25", "2.00", "1.00", "to", "4.00"]
    assert rows["wall s (less)"] == ["2", "4", "0.50", "0.25", "to", "1.00"]
    assert rows["TTFT p50 ms (less)"] == ["100", "300", "0.33", "0.20", "to", "1.00"]
    assert rows["cached tokens"] == ["600", "-"]
    assert rows["prompt tokens"] == ["1200", "1200"]
    assert lines[-1] == "client cpu s of each run: srt 0.25 0.25 0.25; other 0.25 0.25 0.25"


def test_a_table_of_three() -> None:
    turns = [turn("guesses on", 2.0, 0.1), turn("guesses off", 4.0, 0.1), turn("other", 8.0, None)]
    turns[0].figures.accept_length, turns[0].figures.loop_share = 2.5, 1.0
    lines = comparison(turns).splitlines()
    rows = {line[:28].strip(): line[28:].split() for line in lines}
    assert lines[0].split("  ")[-4:] == [
        *("guesses on / other", "of the pairs", "guesses off / other", "of the pairs"),
    ]
    ratios = ["4.00", "4.00", "to", "4.00", "2.00", "2.00", "to", "2.00"]
    assert rows["out tok/s (more is better)"] == ["50", "25", "12.5", *ratios]
    assert rows["TTFT p50 ms (less)"] == ["100", "100", "-"]
    assert rows["loops (of the answers)"] == ["100.0", "%", "0.0", "%", "0.0", "%"]
    assert rows["accept length"] == ["2.5", "-", "-"]


async def test_the_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours with guesses and without take turns with the peer."""
    seen: list[tuple[str, list[str]]] = []

    async def noted(contenders: list[Launched], course: Course, repeat: int) -> list[Turn]:
        seen.extend((each.name, each.extra) for each in contenders)
        return []

    monkeypatch.setattr("bench.compare.take_turns", noted)
    for words, names in (
        (["--guesses", "both"], ["guesses on", "guesses off"]),
        (["--guesses", "on", "--peer", "vllm"], ["guesses on", "vllm"]),
        (["--peer", "openvino"], ["guesses on", "guesses off", "openvino"]),
    ):
        seen.clear()
        args = ["--workload", "single", "--logs", str(tmp_path), "--server-args=--threads 2"]
        await compare(serving.parse_args([*args, *words]))
        assert [name for name, _ in seen] == names
        assert seen[0][1] == ["--threads", "2"]
    assert seen[1][1] == ["--threads", "2", "--speculative", "off"] and seen[2][1] == []


def test_a_table_without_latencies() -> None:
    width = width_of({"resolved_activations": "16"})
    ours = turn("srt", 2.0, 0.1, width=width)
    rows = comparison([ours, turn("other", 4.0, None, width=width_of(None))]).splitlines()
    assert rows[-1] == "srt activations: 16 (bfloat16 at the level amx)"
    assert next(r for r in rows if r.startswith("TTFT p50")).split()[-2:] == ["100", "-"]


SERVER = """
import signal, subprocess, sys, http.server
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/up" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Tiny(Srt):
    """A server that starts at once and leaves a child running."""

    name = "tiny"
    ready_path = "/up"
    start_timeout_s = 20.0
    code = SERVER

    def command(self, model: Path, port: int) -> list[str]:
        return [sys.executable, "-c", self.code, str(port)]

    def environment(self) -> dict[str, str]:
        return {"TINY": "1"}


async def test_a_process_runs_for_a_while(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(Tiny(), tmp_path, log) as url:
        async with httpx2.AsyncClient() as http:
            assert (await http.get(f"{url}/up")).status_code == 200
        child = int(log.read_text().split()[1])
        assert Path(f"/proc/{child}").exists() or sys.platform != "linux"
    async with httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"{url}/up")
    async with asyncio.timeout(SOON_S):
        while _lives(child):
            await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    """Whether it runs. A killed orphan stays a zombie if no process collects it."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    peer = Tiny()
    peer.code = "import sys; sys.exit('no such model')"
    with pytest.raises(StartError, match=r"status 1:\nno such model"):
        async with running(peer, tmp_path, tmp_path / "log"):
            pass
    peer.code, peer.start_timeout_s = "import time; time.sleep(60)", 0.3
    with pytest.raises(StartError, match="not ready"):
        async with running(peer, tmp_path, tmp_path / "log2"):
            pass


def test_free_ports_differ_from_used_ones() -> None:
    assert 1024 <= free_port() <= 65535


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue(name: str, tmp_path: Path) -> None:
    peer = peers(tmp_path)[name]
    command = peer.command(Path("/m/model.gguf"), 1234)
    assert peer.name == name and "1234" in command
    assert command[0].startswith(str(tmp_path)), "each is installed below its home"
    script = peer.install() + peer.prepare(Path("/m/model.gguf"))
    assert str(tmp_path) in script and script.endswith("\n")
    assert "model" in " ".join(command)


def test_setup_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    peers_main.main(["vllm", "--setup", "--home", str(tmp_path), "--model", str(model)])
    script = capsys.readouterr().out
    assert script.startswith("set -e\n") and f"{model} {tmp_path}/vllm/m <<'END'" in script


def test_the_launcher_becomes_the_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    seen: list[list[str]] = []
    monkeypatch.setattr("os.execvpe", lambda file, command, env: seen.append(command))
    peers_main.main(["openvino", "--home", "h", "--model", str(model), "--threads", "1"])
    assert seen[0][0] == str(Path("h/openvino/bin/python").absolute())
    assert seen[0][-4:] == ["--port", "8000", "--threads", "1"]


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--url", "http://x"], ["--repeat", "0"], ["--api-key", "k"]):
        for starts in (["--peer", "openvino"], ["--guesses", "both"]):
            with pytest.raises(SystemExit):
                serving.parse_args(["--workload", "single", *starts, *wrong])
    assert serving.parse_args(["--workload", "single"]).url == serving.DEFAULT_URL
