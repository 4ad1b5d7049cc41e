"""Turns the messages of Anthropic's routes into those of a chat. Refusals name the block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from msgspec import UnsetType

from srt.gateway.constraint.fields import json_text
from srt.gateway.wire.anthropic import (
    ContentBlock,
    InputMessage,
    MessagesPrompt,
    ResultBlock,
    Source,
    SystemBlock,
)
from srt.gateway.wire.chat import ContentPart, ImageUrl, Message
from srt.gateway.wire.tools import FunctionCall, ToolCallJson
from srt.wire.errors import RequestError, missing, quoted

_FAILED = "Error: "  # begins the result of a call that failed
# The types of blocks that a message of each role may have, each with the fields that it must have.
_TYPES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "system": {"text": ("text",)},
    "user": {"text": ("text",), "image": ("source",), "tool_result": ("tool_use_id",)},
    "assistant": {
        "text": ("text",),
        "thinking": ("thinking",),
        "redacted_thinking": (),
        "tool_use": ("id", "name", "input"),
    },
}
_RESULT_TYPES = {"text": ("text",), "image": ("source",)}
_OPTIONAL = {  # the fields that a block of a type may have
    "thinking": ("signature",),
    "redacted_thinking": ("data",),
    "tool_result": ("content", "is_error"),
}
_EMPTY = {kind: kind(type="") for kind in (ContentBlock, ResultBlock)}


class ChatInput:
    """The messages of a chat, and by the path of each thing in them the field that it came from.
    `unused` are the fields of blocks that have no use for them, as answers name them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: dict[str | None, str] = {}
        self.unused: dict[str, None] = {}

    def add(
        self, message: Message, where: str, content: str = "", parts: Sequence[str] = ()
    ) -> None:
        """Add a message that came from the field `where`, its content from `content`, and the
        parts of that, if it has any, from the fields `parts`."""
        at = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.places |= {at: where, f"{at}.content": content or where}
        self.places |= {f"{at}.tool_call_id": f"{where}.tool_use_id"}
        for i, place in enumerate(parts):
            self.places |= {
                f"{at}.content[{i}]": place,
                f"{at}.content[{i}].image_url": f"{place}.source",
            }


def chat_input(body: MessagesPrompt) -> ChatInput:
    """The chat that a body describes. Raises RequestError naming the block that is wrong.

    The result of a tool is a message of its own, as chats have it. What an assistant's message has
    of text, thinking and calls is one message, whatever their order.
    """
    if not body.messages:
        raise RequestError(" must not be empty", at="messages")
    chat = ChatInput()
    if body.system:
        chat.add(Message(role="system", content=_lines(body.system)), "system")
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        if isinstance(message.content, str):
            made = Message(role=message.role, content=message.content)
            chat.add(made, where, f"{where}.content")
            continue
        for i, block in enumerate(message.content):
            unused = _check(block, _TYPES[message.role], f"{where}.content[{i}]")
            chat.unused.update((f"messages[].content[].{name}", None) for name in unused)
        if message.role == "user":
            _add_users(chat, message.content, where)
        elif message.role == "assistant":
            _add_assistants(chat, message.content, where)
        else:
            chat.add(Message(role="system", content=_lines(message.content)), where)
    return chat


def image_texts(body: MessagesPrompt) -> Iterator[str]:
    """The texts of a body that may be as long as files."""
    for message in body.messages:
        for block in message.content if isinstance(message.content, list) else []:
            results = block.content if isinstance(block.content, list) else []
            for source in (block.source, *(result.source for result in results)):
                if isinstance(source, Source):
                    yield from (source.data, source.url)


def _check(
    block: ContentBlock | ResultBlock, types: Mapping[str, tuple[str, ...]], where: str
) -> Sequence[str]:
    """The fields of a block that its type has no use for. Raises RequestError unless it is of one
    of these types, and has the fields that it must have."""
    if block.type not in types:
        raise RequestError(f" {quoted(block.type)} is not supported here", at=f"{where}.type")
    needed = types[block.type]
    for name in needed:
        value = getattr(block, name)
        if isinstance(value, UnsetType) or (value == "" and name in ("id", "name", "tool_use_id")):
            raise missing(f"{where}.{name}")
    empty, own = _EMPTY[type(block)], (*needed, *_OPTIONAL.get(block.type, ()))
    names, values = _others(type(block), own)
    if values(block) == values(empty):  # of most blocks, of which there may be many
        return ()
    return [name for name in names if getattr(block, name) != getattr(empty, name)]


@cache
def _others(
    struct: type[ContentBlock | ResultBlock], own: tuple[str, ...]
) -> tuple[Sequence[str], Callable[[Any], Any]]:
    """The fields of the struct besides the type and its `own`, and what gets all their values."""
    names = [name for name in struct.__struct_fields__ if name not in ("type", *own)]
    return names, attrgetter(*names)


def _lines(blocks: str | Sequence[SystemBlock] | Sequence[ContentBlock]) -> str:
    """A system prompt: each of its blocks begins a line."""
    if isinstance(blocks, str):
        return blocks
    return "\n".join(text for block in blocks if isinstance(text := block.text, str))


def _add_users(chat: ChatInput, blocks: list[ContentBlock], where: str) -> None:
    """Add a user's message, and one of each tool's result in it, in their order."""
    parts: list[ContentPart] = []
    places: list[str] = []

    def add_parts() -> None:
        message = Message(role="user", content=[*parts])
        chat.add(message, where, f"{where}.content", places)
        parts.clear()
        places.clear()

    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        if block.type == "tool_result":
            if parts:
                add_parts()
            _add_result(chat, block, place)
        else:
            parts.append(_part(block, place))
            places.append(place)
    if parts or not blocks:
        add_parts()


def _add_result(chat: ChatInput, block: ContentBlock, where: str) -> None:
    content, places = block.content, [f"{where}.content"]
    if isinstance(content, str):
        parts = [ContentPart("text", content)]
    else:
        places = [f"{where}.content[{i}]" for i in range(len(content))]
        for part, place in zip(content, places, strict=True):
            unused = _check(part, _RESULT_TYPES, place)
            chat.unused.update((f"messages[].content[].content[].{name}", None) for name in unused)
        parts = [_part(part, place) for part, place in zip(content, places, strict=True)]
    if block.is_error:
        parts.insert(0, ContentPart("text", _FAILED))
        places.insert(0, f"{where}.is_error")
    message = Message(role="tool", tool_call_id=block.tool_use_id, content=parts)
    chat.add(message, where, f"{where}.content", places)


def _part(block: ContentBlock | ResultBlock, where: str) -> ContentPart:
    """The text or picture of a block that has been checked."""
    if block.type == "text":
        return ContentPart("text", block.text)
    source, at = block.source, f"{where}.source"
    if not isinstance(source, Source):
        raise RequestError(" must be an object", at=at)
    if source.type == "url" and source.url:
        return ContentPart("image_url", image_url=ImageUrl(source.url))
    if source.type == "base64" and source.data:
        url = f"data:{source.media_type};base64,{source.data}"
        return ContentPart("image_url", image_url=ImageUrl(url))
    if source.type in ("url", "base64"):
        raise missing(f"{at}.{'url' if source.type == 'url' else 'data'}")
    raise RequestError(f" {quoted(source.type)} is not supported here", at=f"{at}.type")


def _add_assistants(chat: ChatInput, blocks: list[ContentBlock], where: str) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallJson] = []
    at = f"messages[{len(chat.messages)}].tool_calls"
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        if block.type == "tool_use":
            call = f"{at}[{len(calls)}]"
            chat.places |= {call: place, f"{call}.function": place}
            chat.places[f"{call}.function.arguments"] = f"{place}.input"
            function = FunctionCall(block.name, json_text(block.input))
            calls.append(ToolCallJson(id=block.id, function=function))
        elif block.type == "text":
            texts.append(str(block.text))
        elif block.type == "thinking":
            thoughts.append(str(block.thinking))
    message = Message(
        role="assistant",
        content="".join(texts),
        tool_calls=calls or None,
        reasoning_content="".join(thoughts),
    )
    chat.add(message, where, f"{where}.content")


def continues(messages: Sequence[InputMessage]) -> bool:
    """Whether the answer continues the last message."""
    return bool(messages) and messages[-1].role == "assistant"
