"""Chats changed for templates that refuse, or leave out, what clients may send.

What a template leaves out is found once, by rendering short chats (`has_one_call`, `lost_systems`).
Otherwise it gets each chat as it is first, and only if it refuses this, the other views of `views`,
those with the fewest changes first. So the same history always gives the same prompt.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product, takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.answers.tool_format import arguments_of
from srt.wire.messages import ChatMessage, ToolCall
from tokenizer_proc.prompt.chat_contents import joined

_PARAGRAPHS = "\n\n"
_PROBES = ("qXj7a", "qXj7b", "qXj7c")
Messages = Sequence[ChatMessage]


class View(NamedTuple):
    """What a template is given: messages, and tools as OpenAI's JSON."""

    messages: Messages
    tools: Sequence[dict[str, Any]]


def has_one_call(render: Callable[[View], str]) -> bool:
    """Whether a template writes, of several calls in one message, the first only, or refuses
    them; `render` may raise anything."""
    one, two = (_writes(render, count, *_probe_calls(count)) for count in (1, 2))
    return one and not two


def lost_systems(render: Callable[[View], str]) -> int:
    """Which system messages a template does not write, or refuses: none (0), those but the first
    (1), or all (2)."""
    first, later, middle = (ChatMessage("system", mark) for mark in _PROBES)
    user, assistant = ChatMessage("user", "probe"), ChatMessage("assistant", "probe")
    if _writes(render, 3, [first, later, user, assistant, middle, user]):
        return 0
    return 1 if _writes(render, 1, [first, user]) else 2


def _writes(
    render: Callable[[View], str],
    marks: int,
    messages: Messages,
    tools: Sequence[dict[str, Any]] = (),
) -> bool:
    """Whether the first `marks` of `_PROBES` are in what is rendered."""
    try:
        text = render(View(messages, tools))
    except Exception:
        return False
    return all(mark in text for mark in _PROBES[:marks])


def _probe_calls(count: int) -> tuple[Messages, Sequence[dict[str, Any]]]:
    """A chat with so many calls in one message, and its tools."""
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": ""}}}
    function = {"name": "probe", "description": "", "parameters": parameters}
    calls = [
        ToolCall(f"probe{i:04}", "probe", json.dumps({"text": mark}))
        for i, mark in enumerate(_PROBES[:count])
    ]
    results = [ChatMessage("tool", "ok", tool_call_id=call.id, name="probe") for call in calls]
    turn = ChatMessage("assistant", "", tool_calls=calls)
    tools = [{"type": "function", "function": function}]
    return [ChatMessage("user", "probe"), turn, *results], tools


def views(chat: View, systems: int) -> Iterator[View]:
    """`chat` itself, then what else says the same: optional fields of tools filled in; arguments
    that are no JSON object inside of one; no system message but the first, or none at all; turns
    of one role joined, and an empty one of the assistant between results and the user's next.

    `systems` is what `lost_systems` says of the template.
    """
    systems_to_users = (list, _first_system, _without_systems)
    seen: list[View] = []
    changes = product((0, 1), (0, 1), range(systems, 3), (0, 1, 2))
    for fills, wraps, fewer, joins in sorted(changes, key=sum):
        messages = systems_to_users[fewer](chat.messages)
        messages = _wrapped(messages) if wraps else messages
        messages = _in_turns(messages) if joins else messages
        messages = _answered(messages) if joins == 2 else messages
        view = View(messages, [_filled(tool) for tool in chat.tools] if fills else chat.tools)
        if view not in seen:
            seen.append(view)
            yield view


def one_call_each(messages: Messages) -> list[ChatMessage]:
    """The same chat where no message has several calls: those of one become messages of one call
    each, each with its own result behind it."""
    made: list[ChatMessage] = []
    results: dict[str, list[ChatMessage]] = {}  # those behind a message with several calls, by call
    for i, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in results:
            continue
        results = {}
        if len(message.tool_calls) < 2:
            made.append(message)
            continue
        results = {call.id: [] for call in message.tool_calls}
        for result in takewhile(lambda m: m.role == "tool", islice(messages, i + 1, None)):
            results.get(result.tool_call_id, []).append(result)
        for j, call in enumerate(message.tool_calls):
            text = {} if j == 0 else {"content": "", "parts": [], "reasoning": ""}
            made += [replace(message, tool_calls=[call], **text), *results[call.id]]
    return made


def _filled(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the fields that OpenAI's API lets out."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}} | function.get("parameters", {})
    filled = {"description": ""} | function | {"parameters": parameters}
    return tool | {"function": filled}


def _wrapped(messages: Messages) -> list[ChatMessage]:
    def of_object(call: ToolCall) -> ToolCall:
        if isinstance(arguments_of(call), dict):
            return call
        return replace(call, arguments=json.dumps({"raw": call.arguments}, ensure_ascii=False))

    return [replace(m, tool_calls=[of_object(call) for call in m.tool_calls]) for m in messages]


def _first_system(messages: Messages) -> list[ChatMessage]:
    """The system messages at the head as one; each other begins the user's message behind it."""
    count = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    head, rest = messages[:count], _without_systems(messages[count:])
    return [*_in_turns(head, ("system",)), *rest]


def _without_systems(messages: Messages) -> list[ChatMessage]:
    """Each system message begins the user's message behind it; without one, it is one itself."""
    made: list[ChatMessage] = []
    waiting: ChatMessage | None = None
    for message in messages:
        if message.role == "system":
            own = replace(message, role="user")
            waiting = joined(waiting, own, _PARAGRAPHS) if waiting else own
        elif message.role == "user" and waiting:
            made.append(joined(replace(waiting, name=message.name), message, _PARAGRAPHS))
            waiting = None
        else:
            made.append(message)
    return [*made, waiting] if waiting else made


def _answered(messages: Messages) -> list[ChatMessage]:
    made: list[ChatMessage] = []
    for message in messages:
        if message.role == "user" and made and made[-1].role == "tool":
            made.append(ChatMessage("assistant", ""))
        made.append(message)
    return made


def _in_turns(
    messages: Messages, roles: Sequence[str] = ("user", "assistant")
) -> list[ChatMessage]:
    """Messages of one role in a row as one, with a blank line between their texts."""
    made: list[ChatMessage] = []
    for message in messages:
        last = made[-1] if made else None
        if last and last.role == message.role in roles and not last.tool_calls:
            whole = joined(last, message, _PARAGRAPHS)
            reasoning = joined(
                ChatMessage("", last.reasoning), ChatMessage("", message.reasoning), _PARAGRAPHS
            ).content
            made[-1] = replace(whole, tool_calls=message.tool_calls, reasoning=reasoning)
        else:
            made.append(message)
    return made
