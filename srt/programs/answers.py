"""What of a model's text belongs to an output: of a chat's answer all but its reasoning."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from srt.answers.channels import ChannelReader
from srt.answers.reasoning import (
    CHANNELS,
    ReasoningSplitter,
    Tags,
    has_reasoning,
    may_reason,
    reasoning_tags,
)
from srt.answers.tool_events import Content
from srt.answers.tool_format import HARMONY_FINAL
from srt.client.generation import Generation
from srt.wire.messages import ChatOptions

SLICE_CHARS = 4096  # a reader's time grows with the square of a piece's length

# Takes the pieces of an answer, and whether each is the last one; what of it is the output's.
AnswerReader = Callable[[str, bool], str]


class ChatAnswers:
    """How the answers of the served model's chats are read. `parser` is the server's choice, see
    `has_reasoning`."""

    def __init__(self, parser: str, template: str | None) -> None:
        self._tags = reasoning_tags(template)
        self._reasons = has_reasoning(parser, template)

    def before_answer(self, begun: str, chat: ChatOptions) -> Tags | None:
        """What a constraint holds after in an answer that goes on `begun`: the text `end`, if the
        answer begins with `begin`. None if there is no reasoning in it."""
        args = {}
        with suppress(msgspec.DecodeError):  # where the prompt is made, it is refused
            args = msgspec.json.decode(chat.template_args or "{}", type=dict[str, Any])
        if not self._reasons or not may_reason(begun, self._tags, args):
            return None
        return Tags("", HARMONY_FINAL) if self._tags == CHANNELS else self._tags

    def reader(self, generation: Generation, after: str) -> AnswerReader:
        """For one answer, which is free up to the end of that text; "" if it need not be."""
        if not self._reasons:
            return all_of
        if self._tags == CHANNELS:
            return partial(_of_channels, ChannelReader({}, constrained=False))
        waits = after == self._tags.end
        opened = generation.opens_reasoning or (waits and not generation.closes_reasoning)
        return partial(_of_reasoned, ReasoningSplitter(opened=opened, tags=self._tags))


def all_of(text: str, final: bool) -> str:
    """Of an answer that is the output's as it is."""
    return text


def _of_reasoned(splitter: ReasoningSplitter, text: str, final: bool) -> str:
    parts = splitter.feed(text, final)
    return "".join(part.text for part in parts if not part.is_reasoning)


def _of_channels(reader: ChannelReader, text: str, final: bool) -> str:
    content = []
    for start in range(0, len(text) or 1, SLICE_CHARS):
        piece, is_last = text[start : start + SLICE_CHARS], start + SLICE_CHARS >= len(text)
        events = reader.feed(piece, final and is_last)
        content += [event.text for event in events if isinstance(event, Content)]
    return "".join(content)
