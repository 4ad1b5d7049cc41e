"""Turns the messages of a chat request into those of the ring. Refusals name the message."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UnsetType

from srt.gateway.media.given import NO_MEDIA, NOUNS, GivenMedia, MediaList
from srt.gateway.wire.chat import ChatFields, ContentPart, Message
from srt.gateway.wire.openai import ChatRequest
from srt.gateway.wire.responses import InputPart
from srt.gateway.wire.tools import CustomCallJson
from srt.wire.errors import RequestError, missing, quoted
from srt.wire.messages import ChatMessage, ToolCall

_MEDIA_PARTS = {"image_url": "image", "video_url": "video"}  # their kinds by the parts' types


def chat_messages(
    messages: list[Message], media: MediaList | None = None, media_roles: Collection[str] = ()
) -> list[ChatMessage]:
    """The chat as the ring has it; "developer" is the newer word for "system". Pictures and videos
    are added to `media`; those of `media_roles` may show them.

    The result of a tool must follow the message that called it.
    """
    media = MediaList(NO_MEDIA) if media is None else media
    if not messages:
        raise RequestError(" must not be empty", at="messages")
    called: dict[str, str] = {}  # the function by the call's id
    converted = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_roles(message, where)
        # A limit may have cut arguments: the prompt shows what is no JSON object as a text.
        calls = [
            ToolCall(call.id, call.function.name, call.function.arguments, is_raw=True)
            if isinstance(call, CustomCallJson)
            else ToolCall(call.id, call.function.name, call.function.arguments or "{}")
            for call in message.tool_calls or []
        ]
        called |= {call.id: call.name for call in calls}
        shown = list(_media(message, where))
        if shown and message.role not in media_roles:
            reason = f": messages of role {message.role!r} show no {NOUNS[shown[0].kind]} here"
            raise RequestError(reason, at=shown[0].path)
        numbers = [media.add(each) for each in shown]
        converted.append(_converted(message, calls, called, where, numbers))
    return converted


def chat_media_texts(body: ChatRequest | ChatFields) -> Iterator[str]:
    """The texts of a body that may be as long as files."""
    for message in body.messages or []:
        for part in _listed(message):
            for media in (part.image_url, part.video_url):
                if not isinstance(media, UnsetType):
                    yield media.url


def _converted(
    message: Message,
    calls: list[ToolCall],
    called: dict[str, str],
    where: str,
    numbers: list[int],
) -> ChatMessage:
    """A message whose pictures and videos have these `numbers` in the request."""
    name = message.name
    if message.role == "tool":
        if message.tool_call_id not in called:
            param = f"{where}.tool_call_id"
            reason = f" {quoted(message.tool_call_id)} is no call of an earlier message"
            raise RequestError(reason, at=param)
        name = name or called[message.tool_call_id]
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content="" if numbers else _text(message.content, where),
        parts=_parts(_listed(message), where, numbers) if numbers else [],
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=name,
        reasoning=message.reasoning_content or message.reasoning,
    )


def _check_roles(message: Message, where: str) -> None:
    """Raise RequestError for a field that belongs to another role."""
    owners = {
        "tool_calls": ("assistant", bool(message.tool_calls)),
        "reasoning_content": ("assistant", bool(message.reasoning_content)),
        "reasoning": ("assistant", bool(message.reasoning)),
        "tool_call_id": ("tool", bool(message.tool_call_id)),
    }
    for field, (role, is_given) in owners.items():
        if is_given and message.role != role:
            raise RequestError(f" is for messages of role {role!r} only", at=f"{where}.{field}")
    if message.role == "tool" and not message.tool_call_id:
        raise missing(f"{where}.tool_call_id")
    if message.content is None and message.role not in ("assistant", "tool"):
        raise missing(f"{where}.content")


def decoded_json(text: str, path: str) -> Any:
    """The value of the JSON that the field `path` has as a text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f" is not valid JSON: {error}", at=path) from None


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return parts_text(content, f"{where}.content", ("text",))


def _listed(message: Message) -> list[ContentPart]:
    """The parts of a message that has any."""
    return message.content if isinstance(message.content, list) else []


def _media(message: Message, where: str) -> Iterator[GivenMedia]:
    """The pictures and videos of a message, in their order."""
    for i, part in enumerate(_listed(message)):
        if part.type in _MEDIA_PARTS:
            kind, path = _MEDIA_PARTS[part.type], f"{where}.content[{i}].{part.type}"
            image, video = part.image_url, part.video_url
            if kind == "image" and not isinstance(image, UnsetType):
                yield GivenMedia(kind, image.url, f"{path}.url", image.detail)
            elif kind == "video" and not isinstance(video, UnsetType):
                yield GivenMedia(kind, video.url, f"{path}.url", num_frames=video.num_frames)
            else:
                raise missing(path)


def _parts(parts: list[ContentPart], where: str, numbers: list[int]) -> list[str | int]:
    """The texts and, in the place of each picture and video, its number. Texts between two of
    these are one."""
    found: list[str | int] = []
    rest = iter(numbers)
    for shows, group in groupby(enumerate(parts), lambda each: each[1].type in _MEDIA_PARTS):
        members = list(group)
        if shows:
            found += [next(rest) for _ in members]
        else:
            texts, first = [part for _, part in members], members[0][0]
            found.append(parts_text(texts, f"{where}.content", ("text",), first))
    return [part for part in found if part != ""]


def parts_text(
    parts: Sequence[ContentPart | InputPart],
    where: str,
    text_types: Collection[str],
    first: int = 0,
) -> str:
    """The text of parts, which must be of `text_types` and have one; `where` is their field, and
    `first` the index of the first in it."""
    text = ""
    for i, part in enumerate(parts, first):
        if part.type not in text_types:
            param = f"{where}[{i}].type"
            raise RequestError(f" {quoted(part.type)} is not supported here", at=param)
        if isinstance(part.text, UnsetType):
            raise missing(f"{where}[{i}].text")
        text += part.text
    return text
