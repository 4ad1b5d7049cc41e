"""Claude Code from npm, unmodified and without its terminal: it asks the gateway, whose answers are
a script's, for a file; then a server with a real cache gets the same requests."""

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from srt.client.generation import Request
from tests.e2e.agents import npm_install, outputs_of
from tests.e2e.server import running_server
from tests.fakes import FakeClient, FakeGeneration
from tests.model_files import write_json
from tests.running.late import late
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.srt.gateway.setup import served

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

pytestmark = pytest.mark.slow

PACKAGE = "@anthropic-ai/claude-code"
CONTEXT = 65536
RUN_S = 200
# Nothing but requests for messages leaves it.
SETTINGS = {
    "ANTHROPIC_API_KEY": "any",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
TEMPLATE = """\
{% for m in messages %}
    {{- "<|im_start|>" + m.role + "\\n" + m.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
CONTENT = "print('hello')\n"
# The first line of its system text changes with each turn, unless a variable says that it is not to
# be there; or the server moves it.
LINE = "x-anthropic-billing-header"
WAYS = {"variable": ("0", ()), "server": ("1", ("--system-line-last", f"^{LINE}"))}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of Claude Code."""
    return str(npm_install(tmp_path_factory.mktemp("npm"), PACKAGE) / "claude")


class ScriptedClient(FakeClient):
    """Has a file written, and then says so."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        arguments = {"file_path": str(file), "content": CONTENT}
        call = json.dumps({"name": "Write", "arguments": arguments})
        self._calls = ("I write. ", "<tool_call>\n", call[:20], call[20:], "\n</tool_call>")
        self.cached_tokens = 0

    async def submit_samples(self, request: Request) -> list[FakeGeneration]:
        assert request.messages is not None
        is_done = not request.tools or request.messages[-1].role == "tool"
        self.pieces = ("It is ", "written.") if is_done else self._calls
        return await super().submit_samples(request)


async def run(program: str, url: str, folder: Path, prompt: str, attribution: str) -> Any:
    """What the program prints at its end, in JSON."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": url}
    process = await asyncio.create_subprocess_exec(
        *(program, "-p", prompt, "--allowedTools", "Write", "--output-format", "json"),
        cwd=work,
        env=environment | SETTINGS | {"CLAUDE_CODE_ATTRIBUTION_HEADER": attribution},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), RUN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out, err)
    return json.loads(out)


async def requests_of(program: str, tmp_path: Path, attribution: str) -> list[Request]:
    """Those of one task: its file is written by a call of a tool."""
    file = tmp_path / "work" / "hello.py"
    client = ScriptedClient(file)
    async with served(client, context_len=CONTEXT, max_total_tokens=CONTEXT) as server:
        result = await run(program, server.url, tmp_path, "Write hello.py.", attribution)
    assert (result["is_error"], result["num_turns"]) == (False, 2), result
    assert result["result"] == "It is written." and file.read_text() == CONTENT
    return [request for request in client.requests if request.tools]


def save_model(path: Path, text: str) -> None:
    """A random Llama with a large context, and a tokenizer that has learned from `text`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    size = tokenizer.get_vocab_size()
    shape = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    made = random_llama(
        vocab_size=size, max_position_embeddings=CONTEXT, num_hidden_layers=1, **shape
    )
    save_directory(made, path)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    write_json(path / "tokenizer_config.json", config)


@pytest.mark.parametrize("way", WAYS)
async def test_the_second_turn_finds_the_first_in_the_cache(
    program: str, tmp_path: Path, way: str
) -> None:
    attribution, options = WAYS[way]
    first, second = requests = await requests_of(program, tmp_path, attribution)
    assert first.messages is not None and second.messages is not None
    assert (LINE in first.messages[0].content) == (way == "server")
    if way == "variable":
        assert second.messages[: len(first.messages)] == first.messages
    assert second.tools == first.tools and len(first.tools) > 10
    text = "\n".join([m.content for m in first.messages] + [t.description for t in first.tools])
    model = tmp_path / "model"
    save_model(model, text)
    sizes = ("--max-total-tokens", str(CONTEXT), "--executor", "native")
    with running_server(tmp_path, "--model", str(model), *sizes, *options) as server:
        outputs = await outputs_of(server, requests)
        server.wait_idle()
    tokens = outputs[0].prompt_tokens
    assert tokens > 4000 and outputs[1].cached_tokens >= 0.99 * tokens
