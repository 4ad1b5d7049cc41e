"""A server with OpenAI's routes whose model is a function of the text, character by character.

Where its tokens end follows from the text as well. So an answer in two calls is that of one call,
and all that API speculation changes is how many requests there are.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from zlib import crc32

import httpx2

import lang as sgl

LABELS = ("A:", "B:", "C:")
TEMPLATE = sgl.ChatTemplate()

Next = Callable[[str], str]  # the next character; "" ends the text


def lines_of_labels(text: str) -> str:
    """Lines such as "B:xzy", whose labels and contents follow from what is before."""
    before, _, line = text.rpartition("\n")
    draw = crc32(text.encode())
    label = LABELS[crc32(before[-9:].encode()) % len(LABELS)]
    if line != label and label.startswith(line):
        return label[len(line)]
    if draw % 41 == 0:
        return ""
    return "xyz. \n"[draw // 41 % 6]


def script(whole: str) -> Next:
    """Goes on with the rest of a text; nothing comes after anything else."""
    return lambda text: whole[len(text) : len(text) + 1] if whole.startswith(text) else ""


def ends_token(text: str) -> bool:
    """Whether a token ends where this text does."""
    return crc32(text[-5:].encode()) % 3 == 0


class ScriptedServer:
    """`bodies` are the requests, `sent` the tokens that it wrote, `left` the streams that were
    closed before their end. More than `refuses_above` tokens are a 400."""

    def __init__(self, model: Next, *, refuses_above: int = 10**6) -> None:
        self.model = model
        self.refuses_above = refuses_above
        self.bodies: list[Any] = []
        self.sent = 0
        self.left = 0

    def backend(self, is_chat: bool = False, **options: Any) -> sgl.OpenAI:
        options = {"base_url": "http://fake/v1", "dialect": "sglang"} | options
        return sgl.OpenAI("m", is_chat, transport=httpx2.MockTransport(self), **options)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if _limit(body) > self.refuses_above:
            error = {"message": "max_tokens is too large", "code": None}
            return httpx2.Response(400, json={"error": error})
        if body.get("stream"):
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, content=self._events(body), headers=headers)
        tokens, finish = self._answer(body)
        self.sent += len(tokens)
        choice = _choice(body, "message", "".join(tokens), tokens, finish)
        return httpx2.Response(200, json={"id": "c", **_rest(body, choice, len(tokens))})

    def _answer(self, body: Any) -> tuple[list[str], str]:
        """The tokens without a stop, and why they end."""
        prompt = prompt_of(body)
        tokens: list[str] = []
        token = text = ""
        while True:
            char = self.model(prompt + text)
            text, token = text + char, token + char
            stop = next((each for each in body.get("stop", []) if text.endswith(each)), None)
            if stop is not None or not char:
                return _cut([*tokens, token], len(text.removesuffix(stop or ""))), "stop"
            if ends_token(prompt + text):
                tokens.append(token)
                token = ""
                if len(tokens) == _limit(body):
                    return tokens, "length"

    async def _events(self, body: Any) -> AsyncIterator[bytes]:
        tokens, finish = self._answer(body)
        counts = body["stream_options"].get("continuous_usage_stats")
        self.left += 1
        for number, token in enumerate(tokens, 1):
            self.sent += 1
            choice = _choice(body, "delta", token, [token], None)
            yield _event(_rest(body, choice, number if counts else 0))
            await asyncio.sleep(0)
        yield _event({"choices": [_choice(body, "delta", "", [], finish)]})
        self.left -= 1
        yield _event(_rest(body, None, len(tokens))) + b"data: [DONE]\n\n"


def _limit(body: Any) -> int:
    return int(body.get("max_tokens") or body["max_completion_tokens"])


def _cut(tokens: list[str], size: int) -> list[str]:
    """The tokens of the first `size` characters."""
    ends = itertools.accumulate(map(len, tokens))
    pairs = zip(tokens, ends, strict=True)
    return [token[: max(0, size - end + len(token))] for token, end in pairs]


def prompt_of(body: Any) -> str:
    """The text that the model goes on with."""
    if "prompt" in body:
        return str(body["prompt"])
    prefix, suffix = TEMPLATE.prefix, TEMPLATE.suffix
    messages = body["messages"]
    said = [prefix(each["role"]) + each["content"] + suffix(each["role"]) for each in messages]
    if body.get("continue_final_message"):
        return "".join(said).removesuffix(suffix("assistant"))
    return "".join(said) + prefix("assistant")


def _choice(body: Any, key: str, text: str, tokens: list[str], finish: str | None) -> Any:
    is_chat = "messages" in body
    choice: Any = {"index": 0, "finish_reason": finish}
    choice |= {key: {"content": text}} if is_chat else {"text": text}
    if "logprobs" in body and is_chat:
        choice["logprobs"] = {"content": [{"token": each, "logprob": -1.0} for each in tokens]}
    elif "logprobs" in body:
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}
    return choice


def _rest(body: Any, choice: Any, num_tokens: int) -> Any:
    made: Any = {"choices": [] if choice is None else [choice]}
    if num_tokens:
        usage = {"prompt_tokens": len(prompt_of(body)), "completion_tokens": num_tokens}
        made["usage"] = usage
    return made


def _event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"
