"""Vercel's AI SDK from npm, unmodified, on `/v1/messages`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import npm_install
from tests.e2e.server import Server

pytestmark = pytest.mark.slow

PACKAGES = ("ai", "@ai-sdk/anthropic")
RUN_S = 120
SCRIPT = """
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, streamText, tool } from "ai";

const provider = createAnthropic({ baseURL: process.argv[2] + "/v1", apiKey: "any" });
const prompt = "What is the weather in Paris?";
const asked = { model: provider("smollm2"), temperature: 0, prompt };
const whole = await generateText({ ...asked, maxOutputTokens: 12 });
const stream = streamText({ ...asked, maxOutputTokens: 12 });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 } },
  required: ["city"],
  additionalProperties: false,
};
const weather = tool({ description: "The weather of a city.", inputSchema: jsonSchema(schema) });
const called = await generateText({
  ...asked,
  maxOutputTokens: 80,
  tools: { weather },
  toolChoice: "required",
});
const calls = called.toolCalls.map(({ toolName, input }) => ({ toolName, input }));
console.log(JSON.stringify({
  whole: whole.text,
  streamed,
  reason: whole.finishReason,
  tokens: whole.usage.outputTokens,
  calls,
  callReason: called.finishReason,
}));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages are installed."""
    folder = tmp_path_factory.mktemp("npm")
    npm_install(folder, *PACKAGES)
    (folder / "ask.mjs").write_text(SCRIPT)
    return folder


def test_texts_streams_and_tools(server: Server, folder: Path) -> None:
    command = ["node", "ask.mjs", server.url]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["whole"] == found["streamed"] != ""
    assert (found["reason"], found["tokens"]) == ("length", 12)
    (call,) = found["calls"]
    assert call["toolName"] == "weather" and isinstance(call["input"]["city"], str)
    assert found["callReason"] == "tool-calls"
