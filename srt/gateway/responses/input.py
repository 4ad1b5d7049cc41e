"""Turns the input of /v1/responses into the messages of a chat. Refusals name the item."""

import msgspec

from srt.gateway.openai.chat_messages import parts_text
from srt.gateway.wire.fields import MAX_OBJECTS
from srt.gateway.wire.openai import ContentPart, Message
from srt.gateway.wire.responses import InputItem, InputPart
from srt.gateway.wire.tools import FunctionCall, ToolCallJson
from srt.wire.errors import RequestError

_ROLES = ("system", "developer", "user", "assistant")
_TEXT_PARTS = ("input_text", "output_text", "reasoning_text", "text")
_FIELDS = {  # for each type of item: the fields that it must have, and may have
    "message": (("role", "content"), ()),
    "function_call": (("call_id", "name"), ("arguments",)),
    "function_call_output": (("call_id", "output"), ()),
    "reasoning": ((), ("content",)),
}
_NOT_GIVEN = {field.name: field.default for field in msgspec.structs.fields(InputItem)}


def input_items(given: str | list[InputItem]) -> list[InputItem]:
    """The items of an input."""
    if isinstance(given, str):
        return [InputItem(role="user", content=given)]
    if not given:
        raise RequestError(" must not be empty", at="input")
    return given


def input_messages(
    items: list[InputItem], instructions: str | None, num_earlier: int, is_text: bool
) -> tuple[list[Message], dict[str | None, str]]:
    """The messages, and by the name of each, and of each call, the field that it came from: the
    first `num_earlier` from a stored response, then one for the text or those of the list.

    Calls become part of the assistant's message before them, and reasoning of the one after it.
    """
    messages: list[Message] = []
    places: dict[str | None, str] = {}
    if instructions:
        messages.append(Message(role="system", content=instructions))
        places["messages[0]"] = "instructions"
    if len(items) > MAX_OBJECTS:
        reason = f" takes at most {MAX_OBJECTS} items, with those of previous_response_id"
        raise RequestError(reason, at="input")
    reasoning = ""
    for index, item in enumerate(items):
        where = "input" if is_text else f"input[{index - num_earlier}]"
        if index < num_earlier:
            where = "previous_response_id"
        _check(item, where)
        if item.type == "reasoning":
            reasoning += _text(item.content or "", f"{where}.content")
            continue
        message = _message(item, where, reasoning)
        reasoning = "" if message.role == "assistant" else reasoning
        if item.type == "function_call" and messages and messages[-1].role == "assistant":
            messages[-1] = _joined(messages[-1], message)
        else:
            messages.append(message)
            at = f"messages[{len(messages) - 1}]"
            places |= {at: where, f"{at}.tool_call_id": f"{where}.call_id"}
        last = messages[-1].tool_calls or []
        if item.type == "function_call":
            at = f"messages[{len(messages) - 1}].tool_calls[{len(last) - 1}]"
            places |= {at: where, f"{at}.function": where}
    return messages, places


def _check(item: InputItem, where: str) -> None:
    """Raise RequestError unless an item has the fields of its type."""
    needed, optional = _FIELDS[item.type]
    for name in ("role", "content", "call_id", "name", "arguments", "output"):
        value, param = getattr(item, name), f"{where}.{name}"
        if name in needed and value == _NOT_GIVEN[name]:
            raise RequestError(f"missing field {param!r}", param=param)
        if name not in (*needed, *optional) and value != _NOT_GIVEN[name]:
            raise RequestError(f" is not for items of type {item.type!r}", at=param)
    if item.type == "message" and item.role not in _ROLES:
        reason = f" must be one of {', '.join(_ROLES)}"
        raise RequestError(reason, at=f"{where}.role")


def _message(item: InputItem, where: str, reasoning: str) -> Message:
    if item.type == "function_call_output":
        output = _text(item.output or "", f"{where}.output")
        return Message(role="tool", tool_call_id=item.call_id, content=output)
    if item.type == "function_call":
        call = ToolCallJson(id=item.call_id, function=FunctionCall(item.name, item.arguments))
        return Message(role="assistant", tool_calls=[call], reasoning_content=reasoning)
    text = _text(item.content or "", f"{where}.content")
    if item.role == "assistant":
        return Message(role="assistant", content=text, reasoning_content=reasoning)
    return Message(role=item.role, content=[ContentPart("text", text)])  # type: ignore[arg-type]


def _joined(message: Message, calls: Message) -> Message:
    return Message(
        role="assistant",
        content=message.content,
        tool_calls=[*(message.tool_calls or []), *(calls.tool_calls or [])],
        reasoning_content=message.reasoning_content + calls.reasoning_content,
    )


def _text(content: str | list[InputPart], where: str) -> str:
    if isinstance(content, str):
        return content
    return parts_text(content, where, _TEXT_PARTS)
