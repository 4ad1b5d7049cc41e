"""Messages whose contents are lists of parts, as OpenAI's and vLLM's are, as the ring has them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from srt.client.media import Media, MediaFile, Picture, Video, opened
from srt.wire.errors import Names, RequestError

Fields = Mapping[str, Any]

# Of the types of parts that show something, the kind.
_SHOWN = {
    "image": "image",
    "image_pil": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
}


class Shown(NamedTuple):
    """The arguments of a request, with its media as files; and the caller's names for these."""

    request: Fields
    names: Names


async def with_media(request: Fields) -> Shown:
    """The arguments of a request with its `media` opened, and the parts of its messages as their
    `parts` and more media. Raises RequestError naming the field."""
    files = await opened(request["media"]) if request.get("media") else []
    if not has_parts(request.get("messages")):
        return Shown({**request, "media": files} if files else request, {})
    reader = _Reader(len(files))
    messages = reader.messages(request["messages"])
    if reader.given:
        files += await opened(reader.given, reader.names)
    names: Names = {f"media[{i}]": name for i, name in enumerate(reader.names, reader.first)}
    return Shown({**request, "messages": messages, "media": files}, names)


def has_parts(messages: Any) -> bool:
    """Whether one of these has a list as its content."""
    if not isinstance(messages, Sequence):
        return False
    return any(isinstance(_content(each), list | tuple) for each in messages)


def without_media(messages: Any) -> Any:
    """The messages with texts in place of their parts. Raises RequestError if they show any."""
    if not has_parts(messages):
        return messages
    reader = _Reader(0)
    made = reader.messages(messages)
    if reader.names:
        raise RequestError(": only texts can be tokenized here", at=reader.names[0])
    return made


def _content(message: Any) -> Any:
    return message.get("content") if isinstance(message, Mapping) else None


class _Reader:
    """Reads the messages of a request that shows `first` media besides theirs, which are `given`
    under these `names`."""

    def __init__(self, first: int) -> None:
        self.given: list[Any] = []
        self.names: list[str] = []
        self.first = first

    def messages(self, messages: Sequence[Any]) -> list[Any]:
        """The same messages, as fields of ChatMessages."""
        return [
            self._message(each, f"messages[{i}].content")
            if isinstance(_content(each), list | tuple)
            else each
            for i, each in enumerate(messages)
        ]

    def _message(self, message: Fields, where: str) -> Fields:
        parts: list[str | int] = []
        for i, part in enumerate(message["content"]):
            made = self._part(part, f"{where}[{i}]")
            if isinstance(made, str) and parts and isinstance(parts[-1], str):
                parts[-1] += made
            else:
                parts.append(made)
        if all(isinstance(part, str) for part in parts):
            return {**message, "content": "".join(map(str, parts))}
        return {**message, "content": "", "parts": [part for part in parts if part != ""]}

    def _part(self, part: Any, at: str) -> str | int:
        if isinstance(part, str):
            return part
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            if not isinstance(part.get("text"), str):
                raise RequestError(" must be a text", at=f"{at}.text")
            text: str = part["text"]
            return text
        if kind not in _SHOWN:
            raise RequestError(" must be a part of type text, image or video", at=at)
        return self._shown(part, str(kind), f"{at}.{kind}")

    def _shown(self, part: Fields, kind: str, at: str) -> int:
        if part.get(kind) is None:
            raise RequestError(" is missing", at=at)
        given, options = part[kind], part
        if kind.endswith("_url") and isinstance(given, Mapping):
            options, given, at = given, given.get("url"), f"{at}.url"
        if kind.endswith("_url") and not _is_data_url(given):
            raise RequestError(" must be a data: URL: a client fetches no addresses", at=at)
        self.given.append(_medium(given, _SHOWN[kind], options))
        self.names.append(at)
        return self.first + len(self.given) - 1


def _medium(given: Any, kind: str, options: Fields) -> Media:
    """What a part shows, with what the part says of it."""
    if isinstance(given, Picture | Video | MediaFile):
        return given
    if kind == "video":
        return Video(given, options.get("num_frames", 0))
    return Picture(given, options.get("detail", "auto"))


def _is_data_url(given: Any) -> bool:
    return isinstance(given, str) and given[:5].lower() == "data:"
