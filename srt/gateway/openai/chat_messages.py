"""Turns the messages of a chat request into those of the ring. Refusals name the message."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import UnsetType

from srt.gateway.wire.openai import ContentPart, Message
from srt.gateway.wire.responses import InputPart
from srt.gateway.wire.tools import ToolCallJson
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall


def chat_messages(messages: list[Message]) -> list[ChatMessage]:
    """The chat as plain text; "developer" is the newer word for "system".

    The result of a tool must follow the message that called it.
    """
    if not messages:
        raise RequestError(" must not be empty", at="messages")
    called: dict[str, str] = {}  # the function by the call's id
    converted = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_roles(message, where)
        calls = [_call(call, f"{where}.tool_calls[{j}]") for j, call in enumerate(_calls(message))]
        called |= {call.id: call.name for call in calls}
        converted.append(_converted(message, calls, called, where))
    return converted


def _converted(
    message: Message, calls: list[ToolCall], called: dict[str, str], where: str
) -> ChatMessage:
    name = message.name
    if message.role == "tool":
        if message.tool_call_id not in called:
            param = f"{where}.tool_call_id"
            reason = f" {message.tool_call_id!r} is no call of an earlier message"
            raise RequestError(reason, at=param)
        name = name or called[message.tool_call_id]
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=_text(message.content, where),
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=name,
        reasoning=message.reasoning_content,
    )


def _calls(message: Message) -> list[ToolCallJson]:
    return message.tool_calls or []


def _check_roles(message: Message, where: str) -> None:
    """Raise RequestError for a field that belongs to another role."""
    owners = {
        "tool_calls": ("assistant", bool(message.tool_calls)),
        "reasoning_content": ("assistant", bool(message.reasoning_content)),
        "tool_call_id": ("tool", bool(message.tool_call_id)),
    }
    for field, (role, is_given) in owners.items():
        if is_given and message.role != role:
            reason = f" is for messages of role {role!r} only"
            raise RequestError(reason, at=f"{where}.{field}")
    if message.role == "tool" and not message.tool_call_id:
        param = f"{where}.tool_call_id"
        raise RequestError(f"missing field {param!r}", param=param)
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        param = f"{where}.content"
        raise RequestError(f"missing field {param!r}", param=param)


def _call(call: ToolCallJson, where: str) -> ToolCall:
    param = f"{where}.function.arguments"
    arguments = call.function.arguments or "{}"
    try:
        value: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f" is not valid JSON: {error}", at=param) from None
    if not isinstance(value, dict):
        raise RequestError(" must be the text of a JSON object", at=param)
    return ToolCall(call.id, call.function.name, arguments)


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return parts_text(content, f"{where}.content", ("text",))


def parts_text(
    parts: Sequence[ContentPart | InputPart], where: str, text_types: Collection[str]
) -> str:
    """The text of parts, which must be of `text_types` and have one; `where` is their field."""
    text = ""
    for i, part in enumerate(parts):
        if part.type not in text_types:
            param = f"{where}[{i}].type"
            raise RequestError(f" {part.type!r} is not supported: text only", at=param)
        if isinstance(part.text, UnsetType):
            param = f"{where}[{i}].text"
            raise RequestError(f"missing field {param!r}", param=param)
        text += part.text
    return text
