"""From nothing to the first token: what is run, and what is counted."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import installs
from bench.peers.catalogue import Srt

SERVER = """
import http.server, os, sys, time
assert os.environ["HOME"].endswith("tiny") and os.environ["PIP_NO_CACHE_DIR"] == "1"
open(os.environ["HOME"] + "/compiled", "wb").write(b"x" * 2**20)
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b'{"data": [{"id": "small"}]}')
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"]))
        assert b'"small"' in asked
        time.sleep(0.2)
        self.answer(b'data: {"choices": [{"text": " Paris"}]}\\n\\n')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Tiny(Srt):
    """A package of 2 MiB, whose model takes 4 MiB and whose start writes one."""

    name = "tiny"
    ready_path = "/up"

    def __init__(self, home: Path) -> None:
        self._home = home

    def install(self) -> str:
        return f"sleep 0.1; echo installing; head -c 2097152 /dev/zero > {self._home}/package"

    def prepare(self, model: Path) -> str:
        return f"sleep 2; head -c 4194304 /dev/zero > {self._home}/{model.name}"

    def command(self, model: Path, port: int) -> list[str]:
        return [sys.executable, "-c", SERVER, str(port)]


def test_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "TMPDIR", "PIP_NO_CACHE_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    home = tmp_path / "tiny"
    figures = installs.measure(Tiny(home), Path("model"), home, tmp_path)
    assert (home / "model").exists() and "installing" in (tmp_path / "tiny.log").read_text()
    assert figures["disk, MiB"] == 3, "neither the model nor anything else is in it"
    assert figures["install, s"] >= 0.1 and figures["start to first token, s"] >= 0.2
    both = figures["install, s"] + figures["start to first token, s"]
    assert figures["both, s"] == pytest.approx(both, abs=0.11)


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        installs.main(["wheel", "sglang"])
    assert "sglang: not one of make-serve, wheel, openvino" in capsys.readouterr().err


def test_a_failed_install(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        installs.shell("false; true", tmp_path / "log")
