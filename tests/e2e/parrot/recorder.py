"""Parrot's package, run against a server through a proxy that records what its client sends.

`python -m tests.e2e.parrot.recorder FOLDER URL` writes `recorded.json` anew: FOLDER has the source
of microsoft/ParrotServe, URL is that of a server.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx2

from tests.e2e.parrot.exchanges import RECORDED, Exchange, named

PROGRAMS = Path(__file__).with_name("programs.py")
NAMES = ("chain", "map_reduce", "variables", "outputs", "asynchronous", "eager", "refused")
OWN_URL = "http://localhost:9000"  # of the examples
RUN_S = 600
# Its client half names torch's types, and psutil, and computes with neither.
_TYPES = "float64 double float32 float float16 half int64 long int32 int int16 short uint8 int8"
_STUBS = {"torch": "".join(f"{name} = object()\n" for name in _TYPES.split()), "psutil": ""}


class Run(NamedTuple):
    """What a program has printed, and its requests with their answers."""

    output: str
    errors: str
    exchanges: list[Exchange]


@contextmanager
def recording(url: str) -> Iterator[tuple[str, list[Exchange]]]:
    """The address of a proxy for `url`, and what passes it."""
    exchanges: list[Exchange] = []
    http = httpx2.Client(base_url=url, timeout=RUN_S)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            answer = http.request(
                self.command,
                self.path,
                content=body,
                headers={"content-type": self.headers["content-type"]},
            )
            exchange = Exchange(
                self.command, self.path, json.loads(body), answer.status_code, answer.json()
            )
            exchanges.append(exchange)
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = _pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", exchanges
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        http.close()


def run_program(package: Path, url: str, name: str, tmp: Path) -> Run:
    """Run a program of `programs.py` with the package."""
    with recording(url) as (proxy, exchanges):
        return _run(package, tmp, [str(PROGRAMS), proxy, name], tmp, exchanges)


def run_example(
    package: Path,
    url: str,
    name: str,
    tmp: Path,
    keys: str = "",
    changed: tuple[str, str] = ("", ""),
) -> Run:
    """Run one of the package's examples, a copy that has the address of a server in place of its
    own, and the second of the texts `changed` in place of the first. `keys` are what is typed."""
    examples = tmp / "examples"
    shutil.copytree(package / "examples", examples)
    with recording(url) as (proxy, exchanges):
        program = examples / f"{name}.py"
        text = program.read_text().replace(OWN_URL, proxy)
        program.write_text(text.replace(*changed) if changed[0] else text)
        (examples / "data").mkdir()
        (examples / "data" / "state_of_the_union.txt").write_text(_document())
        return _run(package, tmp, [program.name], examples, exchanges, keys)


def _document() -> str:
    """A text of paragraphs, for the examples that read one which their package does not have."""
    line = "The roads of our country have grown, and so has what travels on them. "
    return "\n\n".join(f"{line * 4}{i}." for i in range(16))


def _run(
    package: Path,
    tmp: Path,
    command: list[str],
    folder: Path,
    exchanges: list[Exchange],
    keys: str = "",
) -> Run:
    stubs = tmp / "stubs"
    stubs.mkdir()
    for module, text in _STUBS.items():
        (stubs / f"{module}.py").write_text(text)
    # The examples import from themselves and from codelib.
    places = (stubs, package, folder, folder / "codelib")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env,
        input=keys,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    return Run(done.stdout, done.stderr, exchanges)


def main() -> None:
    package, url = Path(sys.argv[1]), sys.argv[2]
    lines = []
    for name in NAMES:
        with tempfile.TemporaryDirectory() as tmp:
            requests = named(run_program(package, url, name, Path(tmp)).exchanges)
        rows = ",\n  ".join(json.dumps(request) for request in requests)
        lines.append(f'"{name}": [\n  {rows}\n]')
    RECORDED.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
