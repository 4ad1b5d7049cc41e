"""Turns the input of /v1/responses into the messages of a chat. Refusals name the item."""

import base64
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from srt.gateway.media.given import Frames
from srt.gateway.openai.chat_messages import parts_text
from srt.gateway.responses.tools import flat_name
from srt.gateway.wire.chat import ContentPart, ImageUrl, Message
from srt.gateway.wire.fields import MAX_OBJECTS
from srt.gateway.wire.responses import InputItem, InputPart, ResponsesRequest
from srt.gateway.wire.tools import CustomCallJson, FunctionCall, ToolCallJson
from srt.wire.errors import RequestError, missing

_ROLES = ("system", "developer", "user", "assistant")
_TEXT_PARTS = ("input_text", "output_text", "reasoning_text", "text")
_PICTURE = "input_image"
_FIELDS = {  # for each type of item: the fields that it must have, and may have
    "message": (("role", "content"), ()),
    "function_call": (("call_id", "name"), ("arguments", "namespace")),
    "function_call_output": (("call_id",), ("output",)),
    "custom_tool_call": (("call_id", "name"), ("input", "namespace")),
    "custom_tool_call_output": (("call_id",), ("output",)),
    "reasoning": ((), ("content", "summary", "encrypted_content")),
}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_SEALED = "srt-reasoning:"  # what our `encrypted_content` begins with
_OWNED = tuple(dict.fromkeys(name for fields in _FIELDS.values() for name in chain(*fields)))
_NOT_GIVEN = {field.name: field.default for field in msgspec.structs.fields(InputItem)}


def input_items(body: ResponsesRequest) -> list[InputItem]:
    """The items of an input. Agents probe a server with none, beside instructions."""
    if isinstance(body.input, str):
        return [InputItem(role="user", content=body.input)]
    if not (body.input or body.instructions or body.previous_response_id):
        raise RequestError(" must not be empty", at="input")
    return body.input


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`: for clients that send back nothing else of it."""
    return _SEALED + base64.b64encode(text.encode()).decode()


def _unsealed(given: str) -> str:
    """The reasoning in an `encrypted_content`; "" in that of another server."""
    try:
        return base64.b64decode(given.removeprefix(_SEALED), validate=True).decode()
    except ValueError:
        return ""


def input_messages(
    items: list[InputItem],
    instructions: str | None,
    num_earlier: int,
    is_text: bool,
    files: Sequence[Frames] = (),
) -> tuple[list[Message], dict[str | None, str], dict[str, Frames]]:
    """The messages, and by the name of each, and of each call, the field that it came from: the
    first `num_earlier` from a stored response, then one for the text or those of the list. And,
    by their names, the pictures of the stored response, whose `files` are given in their order.

    Calls become part of the assistant's message before them, and reasoning of the one after it; it
    is one of its own where the answer had nothing else.
    """
    messages: list[Message] = []
    places: dict[str | None, str] = {}
    kept: dict[str, Frames] = {}
    rest = iter(files)
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
            reasoning += _reasoning(item, where)
            continue
        message = _message(item, where, reasoning)
        if reasoning and message.role != "assistant":
            messages.append(Message(role="assistant", reasoning_content=reasoning))
            places[f"messages[{len(messages) - 1}]"] = where
        reasoning = ""
        if item.type in _CALLS and messages and messages[-1].role == "assistant":
            messages[-1] = _joined(messages[-1], message)
        else:
            messages.append(message)
            at = f"messages[{len(messages) - 1}]"
            places |= {at: where, f"{at}.tool_call_id": f"{where}.call_id"}
            is_earlier = index < num_earlier
            content = where if is_earlier else f"{where}.{_content_field(item)}"
            places[f"{at}.content"] = content
            for i in _picture_places(message):
                name = f"{at}.content[{i}].image_url.url"
                places[name] = where if is_earlier else f"{content}[{i}].image_url"
                if is_earlier:
                    kept[name] = next(rest)
        last = messages[-1].tool_calls or []
        if item.type in _CALLS:
            at = f"messages[{len(messages) - 1}].tool_calls[{len(last) - 1}]"
            places |= {at: where, f"{at}.function": where}
    return messages, places, kept


def _check(item: InputItem, where: str) -> None:
    """Raise RequestError unless an item has the fields of its type."""
    needed, optional = _FIELDS[item.type]
    for name in _OWNED:
        value, param = getattr(item, name), f"{where}.{name}"
        if name in needed and value == _NOT_GIVEN[name]:
            raise missing(param)
        if name not in (*needed, *optional) and value != _NOT_GIVEN[name]:
            raise RequestError(f" is not for items of type {item.type!r}", at=param)
    if item.type == "message" and item.role not in _ROLES:
        raise RequestError(f" must be one of {', '.join(_ROLES)}", at=f"{where}.role")


def _message(item: InputItem, where: str, reasoning: str) -> Message:
    if item.type in _OUTPUTS:
        output = _parts(item.output or "", f"{where}.output")
        return Message(role="tool", tool_call_id=item.call_id, content=output)
    if item.type in _CALLS:
        name = flat_name(item.namespace, item.name)
        kind = CustomCallJson if item.type == "custom_tool_call" else ToolCallJson
        text = item.input if item.type == "custom_tool_call" else item.arguments
        call = kind(id=item.call_id, function=FunctionCall(name, text))
        return Message(role="assistant", tool_calls=[call], reasoning_content=reasoning)
    if item.role == "assistant":
        text = _text(item.content or "", f"{where}.content")
        return Message(role="assistant", content=text, reasoning_content=reasoning)
    parts = _parts(item.content or "", f"{where}.content")
    return Message(role=item.role, content=parts)  # type: ignore[arg-type]


def _parts(content: str | list[InputPart], where: str) -> list[ContentPart]:
    """The texts and pictures of a message or of a tool's result."""
    if isinstance(content, str):
        return [ContentPart("text", content)]
    parts = []
    for i, part in enumerate(content):
        if part.type == _PICTURE:
            parts.append(_picture(part, f"{where}[{i}]"))
        else:
            parts.append(ContentPart("text", parts_text([part], where, _TEXT_PARTS, i)))
    return parts


def _reasoning(item: InputItem, where: str) -> str:
    """The text of a reasoning item; without one, what stands for it."""
    text = _text(item.content or "", f"{where}.content")
    if not text and item.encrypted_content.startswith(_SEALED):
        text = _unsealed(item.encrypted_content)
    return text or "\n".join(part.text for part in item.summary or ())


def _picture(part: InputPart, where: str) -> ContentPart:
    if not isinstance(part.file_id, UnsetType):
        raise RequestError(" is not supported: send image_url", at=f"{where}.file_id")
    if isinstance(part.image_url, UnsetType):
        raise missing(f"{where}.image_url")
    return ContentPart("image_url", image_url=ImageUrl(part.image_url, part.detail))


def _picture_places(message: Message) -> Iterator[int]:
    """Which of a message's parts are pictures."""
    parts = message.content if isinstance(message.content, list) else []
    return (i for i, part in enumerate(parts) if part.type == "image_url")


def _content_field(item: InputItem) -> str:
    return "output" if item.type in _OUTPUTS else "content"


def without_files(items: list[InputItem]) -> list[InputItem]:
    """`items`, whose pictures have no addresses any more: these may be large."""
    return [
        replace(item, content=_stripped(item.content), output=_stripped(item.output))
        for item in items
    ]


def _stripped(content: str | list[InputPart] | None) -> str | list[InputPart] | None:
    if not isinstance(content, list):
        return content
    return [replace(part, image_url="") if part.type == _PICTURE else part for part in content]


def media_texts(body: ResponsesRequest) -> Iterator[str]:
    """The texts of a body that may be as long as files."""
    for item in body.input if isinstance(body.input, list) else []:
        for content in (item.content, item.output):
            for part in content if isinstance(content, list) else []:
                if not isinstance(part.image_url, UnsetType):
                    yield part.image_url


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
