"""A conversation is the same request of the ring by way of Messages as by way of chats."""

import json
import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.running.profiles import seeds
from tests.srt.gateway.anthropic.setup import ROUTE
from tests.srt.gateway.media.setup import CAT, DOG, RULES, SeeingClient, data_url
from tests.srt.gateway.setup import in_process

CHAT_ROUTE = "/v1/chat/completions"
TEXTS = ["", "hi", "a\nb", "wörld 🙂", "<|im_end|>", '{"x": 1}', " blank "]
INPUTS: list[dict[str, Any]] = [{}, {"city": "Rome"}, {"n": [1, 2.5, None, {"a": "ü"}]}]
NAMES = ("weather", "a-b_c")
THINKS = {"reasoning": True, "template": "<think> enable_thinking reasoning_effort"}


class Conversation:
    """A random one, in both forms."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.ours: list[dict[str, Any]] = []
        self.theirs: list[dict[str, Any]] = []
        self._num_calls = 0
        for _ in range(rng.randrange(1, 5)):
            self._user([])
            if rng.random() < 0.7:
                self._assistant()
        if rng.random() < 0.2:
            self.ours.append({"role": "assistant", "content": "So"})
            self.theirs.append({"role": "assistant", "content": "So"})
        if self.ours[-1]["role"] == "assistant" and self.theirs[-1].get("tool_calls"):
            self._user([])

    def _text(self) -> str:
        return self._rng.choice(TEXTS)

    def _parts(self, images: float = 0.3) -> tuple[list[Any], list[Any]]:
        """Texts and images, which chats have in users' messages only."""
        ours: list[Any] = []
        theirs: list[Any] = []
        for _ in range(self._rng.randrange(1, 4)):
            if self._rng.random() < images:
                url = data_url(self._rng.choice((CAT, DOG)))
                kind, data = url.removeprefix("data:").split(";base64,")
                source: dict[str, Any] = {"type": "base64", "media_type": kind, "data": data}
                if self._rng.random() < 0.5:
                    source = {"type": "url", "url": url}
                ours.append({"type": "image", "source": source})
                theirs.append({"type": "image_url", "image_url": {"url": url}})
            else:
                text = self._text()
                ours.append({"type": "text", "text": text})
                theirs.append({"type": "text", "text": text})
        return ours, theirs

    def _user(self, results: list[Any]) -> None:
        if self._rng.random() < 0.5 and not results:
            text = self._text()
            self.ours.append({"role": "user", "content": text})
            self.theirs.append({"role": "user", "content": text})
            return
        ours, theirs = self._parts()
        self.ours.append({"role": "user", "content": [*results, *ours]})
        self.theirs.append({"role": "user", "content": theirs})

    def _assistant(self) -> None:
        rng, text = self._rng, self._text()
        thought = rng.choice(["", "hm"])
        blocks: list[Any] = [{"type": "text", "text": text}]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": "x"})
            message["reasoning_content"] = thought
        ours: list[Any] = []
        results: list[Any] = []
        for _ in range(rng.choice((0, 0, 1, 2))):
            self._num_calls += 1
            name, given, i = rng.choice(NAMES), rng.choice(INPUTS), f"toolu_{self._num_calls}"
            blocks.append({"type": "tool_use", "id": i, "name": name, "input": given})
            arguments = json.dumps(given, separators=(",", ":"), ensure_ascii=False)
            call = {"id": i, "function": {"name": name, "arguments": arguments}}
            message.setdefault("tool_calls", []).append(call)
            parts, their_parts = self._parts(images=0)
            if rng.random() < 0.5:
                parts = their_parts = self._text()  # type: ignore[assignment]
            ours.append({"type": "tool_result", "tool_use_id": i, "content": parts})
            results.append({"role": "tool", "tool_call_id": i, "content": their_parts})
        self.ours.append({"role": "assistant", "content": blocks})
        self.theirs.append(message)
        if ours:
            self.theirs += results
            self._user(ours)


def bodies(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request in both forms."""
    chat = Conversation(rng)
    ours: dict[str, Any] = {"messages": chat.ours, "max_tokens": 9, "rid": "r"}
    theirs: dict[str, Any] = {"messages": chat.theirs, "max_tokens": 9, "rid": "r"}
    if chat.theirs[-1]["role"] == "assistant":
        theirs["continue_final_message"] = True
    if rng.random() < 0.5:
        ours["system"] = text = rng.choice(TEXTS[1:])
        theirs["messages"] = [{"role": "system", "content": text}, *chat.theirs]
    if rng.random() < 0.7:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        made = [{"name": name, "description": "d", "input_schema": schema} for name in NAMES]
        ours["tools"] = made
        function = {"description": "d", "parameters": schema}
        theirs["tools"] = [
            {"type": "function", "function": {**function, "name": name}} for name in NAMES
        ]
        kind, choice = rng.choice([("auto", "auto"), ("any", "required"), ("none", "none")])
        single = rng.random() < 0.5
        ours["tool_choice"] = {"type": kind}
        theirs["tool_choice"] = choice
        if kind != "none":
            ours["tool_choice"]["disable_parallel_tool_use"] = single
            theirs["parallel_tool_calls"] = not single
    if rng.random() < 0.5:
        kind = rng.choice(("adaptive", "disabled"))
        ours["thinking"] = theirs["thinking"] = {"type": kind}
    if rng.random() < 0.5:
        ours["output_config"] = {"effort": "low"}
        theirs["reasoning_effort"] = "low"
    return ours, theirs


@pytest.mark.parametrize("seed", seeds(5))
async def test_the_same_conversation_is_the_same_request(seed: int) -> None:
    rng = random.Random(seed)
    client = SeeingClient()
    async with in_process(client, media=replace(RULES, limit=64), **THINKS) as http:
        for _ in range(40):
            ours, theirs = bodies(rng)
            client.requests.clear()
            by_messages = await http.post(ROUTE, json=ours)
            by_chat = await http.post(CHAT_ROUTE, json=theirs)
            for response in (by_messages, by_chat):
                assert response.status_code == 200, (ours, response.text)
            one, other = client.requests
            assert one == other, ours
