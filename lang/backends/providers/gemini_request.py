"""Prompts and sampling in the form of Gemini's `generateContent`."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lang.backends.base import Prompt, Turn
from lang.backends.openai_request import call_in, mime_of
from lang.backends.providers.chat import Asked
from lang.backends.schemas.gemini import response_schema
from lang.backends.shown import in_order
from lang.errors import UnsupportedError

_AS_THEY_ARE = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
_ROLES = {"user": "user", "assistant": "model", "tool": "user"}


def contents_of(prompt: Prompt) -> tuple[str, list[dict[str, Any]]]:
    """The system's instruction, and the other turns. Raises UnsupportedError for a system's turn
    after others."""
    system: list[str] = []
    contents: list[dict[str, Any]] = []
    for i, turn in enumerate(prompt.messages):
        if turn.images and turn.role != "user":
            raise UnsupportedError("image", "Gemini takes images from users only")
        if turn.role == "system":
            if contents:
                raise UnsupportedError("system", "Gemini takes the system's turns first only")
            system.append(turn.content)
            continue
        if turn.role not in _ROLES:
            raise UnsupportedError("role", f"Gemini has no role {turn.role!r}")
        parts = [*_parts(prompt.messages, i)]
        if parts:
            contents.append({"role": _ROLES[turn.role], "parts": parts})
    return "\n\n".join(system), contents


def _parts(turns: Sequence[Turn], at: int) -> Iterator[dict[str, Any]]:
    turn = turns[at]
    if turn.role == "tool":
        call = call_in(turns[at - 1]) if at else None
        if call is None:
            reason = "a chat API takes what a tool returned only after its call, an assistant's "
            raise UnsupportedError("tool", reason + 'turn of {"tool": ..., "arguments": {...}}')
        response = {"name": call.tool, "response": {"result": turn.content}}
        yield {"function_response": response}
        return
    call = call_in(turn) if at + 1 < len(turns) and turns[at + 1].role == "tool" else None
    if call is not None:
        if call.thought:
            yield {"text": call.thought}
        yield {"function_call": {"name": call.tool, "args": msgspec.json.decode(call.arguments)}}
        return
    for part in in_order(turn.content, turn.images, turn.image_places):
        if isinstance(part, str):
            yield {"text": part}
        elif part.kind != "image":
            raise UnsupportedError(part.kind, "Gemini's back end sends images only")
        else:
            yield {"inline_data": {"mime_type": mime_of(part), "data": part.data}}


def config_of(asked: Asked, system: str) -> dict[str, Any]:
    """The package's `config`."""
    given = asked.given
    config: dict[str, Any] = {"max_output_tokens": asked.max_tokens}
    config |= {name: given[name] for name in _AS_THEY_ARE if name in given}
    if system:
        config["system_instruction"] = system
    if asked.stops:
        config["stop_sequences"] = list(asked.stops)
    if asked.schema is not None:
        config["response_mime_type"] = "application/json"
        config["response_schema"] = response_schema(asked.schema)
    if "reasoning_effort" in given:
        config["thinking_config"] = {"thinking_level": given["reasoning_effort"].upper()}
    if "service_tier" in given:
        config["service_tier"] = given["service_tier"]
    if "extra_body" in given:
        config["extra_body"] = given["extra_body"]
    return config
