"""A server of a model of the hub: brought, served by its name, and found again without the hub."""

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from srt.files.model_files import resolve_model
from tests.docs.blocks import blocks_of, commands_of
from tests.e2e.server import running_server
from tests.hub_server import Hub, Repo, running_hub

ROOT = Path(__file__).parents[2]
TOKEN = "hf_tokentokentoken"
# README's commands: those after the name of the program.
SERVE, RUN = (
    next(
        words[2:]
        for block in blocks_of(ROOT / "README.md")
        if block.tag == "sh"
        for words in commands_of(block.code)
        if words[0].endswith("/srt") and words[1] == command
    )
    for command in ("serve", "run")
)
NAME = SERVE[0]
REQUEST = {"model": NAME, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def content() -> bytes:
    return resolve_model("smollm2").path.read_bytes()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path


@pytest.mark.parametrize("is_again", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_server_of_a_model_of_the_hub(
    content: bytes, home: Path, monkeypatch: pytest.MonkeyPatch, is_again: bool
) -> None:
    """That of README's second step, where the hub has the embedded model under its name. And one
    more that has no hub."""
    name, _, quantisation = NAME.rpartition(":")
    stem = name.partition("/")[2].removesuffix("-GGUF").lower()
    files = {f"{stem}-{quantisation.lower()}.gguf": content, f"{stem}-q8_0.gguf": b""}
    with running_hub(Hub({name: Repo(files, needs=TOKEN)})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with running_server(home, *SERVE, launcher="srt serve") as server:
            models = httpx2.get(f"{server.url}/v1/models").json()["data"]
            assert [model["id"] for model in models] == [NAME]
            first = httpx2.post(f"{server.url}/v1/completions", json=REQUEST, timeout=60).json()
            info = httpx2.get(f"{server.url}/server_info").text
            assert "93.8 MiB" in server.log()
            assert TOKEN not in server.log() + info
            assert "HTTP Request" not in server.log()  # addresses may hold what gives access
            command = [sys.executable, "-m", "srt", "run", *RUN, "--url", server.url]
            done = subprocess.run(
                [*command, "--max-tokens", "8"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0 and done.stdout.strip(), done.stderr
    if not is_again:
        return
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with running_server(home, "--model", NAME) as server:
        again = httpx2.post(f"{server.url}/v1/completions", json=REQUEST, timeout=60).json()
    assert first["choices"] == again["choices"]


def test_a_model_that_cannot_be_had_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = Repo({"a-Q4_0.gguf": bytes(2048), "a-Q8_0.gguf": bytes(4096)})
    with running_hub(Hub({"org/some": repo})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        command = [sys.executable, "-m", "srt.launch", "--model"]
        for name, message in (
            ("org/some", "org/some:Q8_0"),
            ("org/none", "the hub has no model 'org/none'"),
        ):
            done = subprocess.run(
                [*command, name], capture_output=True, text=True, timeout=60, env=os.environ
            )
            assert done.returncode == 2 and message in done.stderr
            assert "Traceback" not in done.stderr and TOKEN not in done.stderr
