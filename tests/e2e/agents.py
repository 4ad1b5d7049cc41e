"""What the tests of agents from npm share: their installation, and their requests sent again."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from srt import AsyncClient
from srt.client.generation import GenerateOutput, Request
from srt.wire.sampling import SamplingParams
from tests.e2e.server import Server

INSTALL_S = 300


def npm_install(folder: Path, *packages: str) -> Path:
    """The folder of the programs of npm's packages, installed in `folder`. Skips the test, with the
    reason, where they cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "install", "--no-fund", "--no-audit", "--prefix", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"npm does not install {', '.join(packages)}: {done.stderr[-400:]}")
    return folder / "node_modules" / ".bin"


async def outputs_of(server: Server, requests: Sequence[Request]) -> list[GenerateOutput]:
    """The outputs, of one token each, of the requests one after the other."""
    outputs = []
    async with AsyncClient(server.ring) as ring:
        for request in requests:
            asked = replace(request, rid=None, sampling=SamplingParams(max_new_tokens=1))
            generation = await ring.transport.submit(replace(asked, stream=False, tenant=""))
            outputs.append(await generation.result())
            await generation.aclose()
    return outputs
