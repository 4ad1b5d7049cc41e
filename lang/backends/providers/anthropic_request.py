"""Prompts as bodies of Anthropic's messages API: the system apart, blocks, tools, cache marks."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lang.backends.base import Image, Prompt, Turn
from lang.backends.openai_request import call_in, mime_of
from lang.backends.providers.chat import Asked
from lang.backends.shown import in_order
from lang.chat_template import ChatTemplate
from lang.errors import UnsupportedError

MAX_MARKS = 4  # of the prompt cache in a request
_MARK = {"type": "ephemeral"}
_SAMPLING = ("temperature", "top_p", "top_k")  # that the package has no arguments for


def body_of(asked: Asked, template: ChatTemplate, prefixes: Iterable[str] | None) -> dict[str, Any]:
    """The arguments of the package's `messages.create`, without the model. Marks stand at forks,
    and at the end of each constant beginning in `prefixes`; None is for no marks. Raises
    UnsupportedError for turns that the API has no form for."""
    prompt, given = asked.prompt, asked.given
    rows = [list(_blocks(prompt.messages, i)) for i in range(len(prompt.messages))]
    if prefixes is not None:
        _mark(rows, _ends(prompt, template, prefixes))
    num_system = sum(1 for _ in _leading_system(prompt.messages))
    messages: list[dict[str, Any]] = []
    for turn, blocks in zip(prompt.messages[num_system:], rows[num_system:], strict=True):
        if turn.role == "system":
            raise UnsupportedError("system", "Anthropic takes the system's turns first only")
        if blocks:
            role = "user" if turn.role == "tool" else turn.role
            messages.append({"role": role, "content": blocks})
    if asked.begun:
        messages.append({"role": "assistant", "content": asked.begun})
    body: dict[str, Any] = {"max_tokens": asked.max_tokens, "messages": messages}
    system = [block for blocks in rows[:num_system] for block in blocks]
    if system:
        body["system"] = system
    if asked.stops:
        body["stop_sequences"] = list(asked.stops)
    if tools := _tools(rows):
        # An agent's calls are texts of a schema: the API only wants to know the names in them.
        body |= {"tools": tools, "tool_choice": {"type": "none"}}
    output = {} if asked.schema is None else {"format": _format(asked.schema)}
    if "reasoning_effort" in given:
        output["effort"] = given["reasoning_effort"]
    if output:
        body["output_config"] = output
    if "service_tier" in given:
        body["service_tier"] = given["service_tier"]
    extra = {name: given[name] for name in _SAMPLING if name in given}
    extra |= given.get("extra_body", {})
    return body | ({"extra_body": extra} if extra else {})


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def _leading_system(turns: Sequence[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if turn.role != "system":
            return
        yield turn


def _blocks(turns: Sequence[Turn], at: int) -> Iterator[dict[str, Any]]:
    """The content of turn number `at`. Empty texts are left out: the API refuses them."""
    turn = turns[at]
    if turn.images and turn.role != "user":
        raise UnsupportedError("image", "Anthropic's back end sends images of users only")
    if turn.role == "tool":
        yield {"type": "tool_result", "tool_use_id": f"call_{at}", "content": _result(turns, at)}
        return
    is_called = at + 1 < len(turns) and turns[at + 1].role == "tool"
    call = call_in(turn) if is_called else None
    if call is not None:
        if call.thought:
            yield {"type": "text", "text": call.thought}
        arguments = msgspec.json.decode(call.arguments)
        yield {"type": "tool_use", "id": f"call_{at + 1}", "name": call.tool, "input": arguments}
        return
    for part in in_order(turn.content, turn.images, turn.image_places):
        if isinstance(part, Image):
            yield _image(part)
        elif part.strip():
            yield {"type": "text", "text": part}


def _result(turns: Sequence[Turn], at: int) -> str:
    if not at or call_in(turns[at - 1]) is None:
        reason = "a chat API takes what a tool returned only after its call, an assistant's turn "
        raise UnsupportedError("tool", reason + 'of {"tool": ..., "arguments": {...}}')
    return turns[at].content


def _image(image: Image) -> dict[str, Any]:
    if image.kind != "image":
        raise UnsupportedError(image.kind, "Anthropic takes images only")
    data = base64.b64encode(image.data).decode()
    source = {"type": "base64", "media_type": mime_of(image), "data": data}
    return {"type": "image", "source": source}


def _tools(rows: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The tools that the messages call, by their names."""
    names = dict.fromkeys(b["name"] for row in rows for b in row if b["type"] == "tool_use")
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def _ends(prompt: Prompt, template: ChatTemplate, prefixes: Iterable[str]) -> list[int]:
    """The numbers of turns that others share: those at forks, and those of constant beginnings."""
    found = set(prompt.fork_turns)
    last = 0
    starting = [prefix for prefix in prefixes if prompt.text.startswith(prefix)]
    if starting:
        longest, length = max(map(len, starting)), 0
        for number, turn in enumerate(prompt.messages, start=1):
            prefix, suffix = template.prefix(turn.role), template.suffix(turn.role)
            length += len(prefix) + len(turn.content) + len(suffix.rstrip())
            if length > longest:
                break
            last = number
            length += len(suffix) - len(suffix.rstrip())
    return sorted(found | ({last} if last else set()))


def _mark(rows: Sequence[list[dict[str, Any]]], ends: Sequence[int]) -> None:
    """Mark the last block of the turns before each end; the last ones count if there are many."""
    for end in ends[-MAX_MARKS:]:
        row = next((row for row in reversed(rows[:end]) if row), None)
        if row is not None:
            row[-1] = row[-1] | {"cache_control": _MARK}
