"""What chat templates get as a message's content: a text, or a list of its parts.

Templates of models that see take lists, `[{"type": "image"}, {"type": "text", "text": "..."}]`, and
write a placeholder for each picture. Some write nothing of a content that is a text, and those of
older models know no lists. Which of these a template does is found by rendering two short chats.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.wire.messages import ChatMessage

_PROBE = "qXj7 probe"


class ContentForm(NamedTuple):
    """Whether a template writes contents that are texts, and those that are lists."""

    takes_text: bool = True
    takes_lists: bool = False


class Contents(NamedTuple):
    """The kinds of a request's media, by number, and what stands for each kind in a text; no
    placeholders if the model sees nothing."""

    kinds: Sequence[str]
    placeholders: Mapping[str, str]

    def of(self, message: ChatMessage, form: ContentForm) -> Any:
        """The content of a message for a template of this form."""
        if form.takes_lists and (message.parts or not form.takes_text):
            return [self._part(part) for part in message.parts or [message.content]]
        if not message.parts:
            return message.content
        texts = (self._text(part) for part in message.parts)
        return "\n".join(texts)

    def _part(self, part: str | int) -> dict[str, str]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        return {"type": self.kinds[part]}

    def _text(self, part: str | int) -> str:
        return part if isinstance(part, str) else self.placeholders[self.kinds[part]]


TEXTS = Contents((), {})


def text_of(message: ChatMessage) -> str:
    """The text of a message, all parts of it."""
    if not message.parts:
        return message.content
    return "".join(part for part in message.parts if isinstance(part, str))


def joined(first: ChatMessage, second: ChatMessage, between: str) -> ChatMessage:
    """Two messages as one of the first's role, with `between` their contents if both have some."""
    if not (first.parts or second.parts):
        texts = (text for text in (first.content, second.content) if text)
        return replace(first, content=between.join(texts))
    head, tail = (
        [part for part in one.parts or [one.content] if part != ""] for one in (first, second)
    )
    if head and tail:
        before = head.pop() if isinstance(head[-1], str) else ""
        after = tail.pop(0) if isinstance(tail[0], str) else ""
        head.append(f"{before}{between}{after}")
    return replace(first, content="", parts=[*head, *tail])


def form_of(render: Callable[[Any], str], placeholders: Mapping[str, str]) -> ContentForm:
    """The form of a template; `render` writes a user's message with the given content, and may
    raise anything."""

    def written(content: Any) -> str:
        try:
            return render(content)
        except Exception:
            return ""

    kind, placeholder = next(iter(sorted(placeholders.items())))
    text = written([{"type": kind}, {"type": "text", "text": _PROBE}])
    # Other templates write the list itself.
    takes_lists = text.count(_PROBE) == text.count(placeholder) == 1 and "'text':" not in text
    return ContentForm(_PROBE in written(_PROBE), takes_lists)
