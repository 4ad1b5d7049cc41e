"""The coding agent Codex, from npm and unmodified, at the gateway: it has a file patched.

The ring's answers are scripted, so that any model does. Then a server with a real cache gets the
same requests: the second prompt is mostly cached.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from srt.answers.custom_tools import call_text
from srt.client.generation import Request
from srt.wire.messages import ToolCall
from tests.e2e.agents import npm_install, outputs_of
from tests.e2e.server import Server
from tests.fakes import FakeClient, FakeGeneration
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S

PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-hello\n+goodbye\n*** End Patch"
BLOCK = call_text(ToolCall("", "apply_patch", PATCH))
TURNS = (("I edit it.\n", *(BLOCK[i : i + 7] for i in range(0, len(BLOCK), 7))), ("Done.",))
# Codex sends `apply_patch` only for models whose entry says so.
MODEL = {
    "slug": "tiny",
    "display_name": "tiny",
    "description": "A model of the tests.",
    "base_instructions": "You are a coding agent. Be brief. " * 20,
    "apply_patch_tool_type": "freeform",
    "shell_type": "shell_command",
    "context_window": 64000,
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "default_reasoning_level": "medium",
    "supported_reasoning_levels": [],
    "supports_reasoning_summaries": False,
    "supports_parallel_tool_calls": False,
    "support_verbosity": False,
    "supported_in_api": True,
    "experimental_supported_tools": [],
    "input_modalities": ["text"],
    "visibility": "list",
    "priority": 1,
}
CONFIG = """\
model = "tiny"
model_provider = "local"
model_catalog_json = "{home}/catalog.json"

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
"""


class ScriptedClient(FakeClient):
    """Answers the requests with `TURNS`, in their order."""

    async def submit_samples(self, request: Request) -> list[FakeGeneration]:
        self.pieces = TURNS[min(len(self.requests), len(TURNS) - 1)]
        return await super().submit_samples(request)


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return npm_install(tmp_path_factory.mktemp("codex"), "@openai/codex") / "codex"


async def run(codex: Path, home: Path, folder: Path, url: str) -> list[dict[str, Any]]:
    """The events of one run of Codex, which is told to change a file of `folder`."""
    (home / "catalog.json").write_text(json.dumps({"models": [MODEL]}))
    (home / "config.toml").write_text(CONFIG.format(home=home, url=url))
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    process = await asyncio.create_subprocess_exec(
        *(str(codex), "exec", *flags, "Change a.txt"),
        cwd=folder,
        env={**os.environ, "CODEX_HOME": str(home), "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 2 * SOON_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]


@pytest.mark.slow
async def test_codex_has_a_file_patched(codex: Path, server: Server, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    client = ScriptedClient()
    async with served(client, allowed_hosts=("127.0.0.1",)) as gateway:
        events = await run(codex, home, folder, gateway.url)
    assert (folder / "a.txt").read_text() == "goodbye\n", events
    kinds = [event["item"]["type"] for event in events if event["type"] == "item.completed"]
    assert kinds == ["agent_message", "file_change", "agent_message"]
    assert events[-1]["type"] == "turn.completed"
    first, second = client.requests[:2]
    edit = next(tool for tool in first.tools if tool.name == "apply_patch")
    assert edit.input is not None and edit.input.kind == "lark"
    before, after = await outputs_of(server, [first, second])
    assert before.prompt_tokens > 3000
    assert after.cached_tokens >= 0.99 * before.prompt_tokens
