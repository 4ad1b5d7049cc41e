"""What of a model's text belongs to an output: of a chat's answer all but its reasoning."""

from srt.answers.channels import ChannelReader
from srt.answers.reasoning import (
    CHANNELS,
    ReasoningSplitter,
    has_reasoning,
    reasoning_tags,
    reasons,
)
from srt.answers.tool_events import Content
from srt.answers.tool_format import HARMONY_FINAL
from srt.client.generation import Generation

SLICE_CHARS = 4096  # a reader's time grows with the square of a piece's length


class ChatAnswers:
    """How the answers of the served model's chats are read. `parser` is the server's choice, see
    `has_reasoning`."""

    def __init__(self, parser: str, template: str | None) -> None:
        self._tags = reasoning_tags(template)
        self._reasons = has_reasoning(parser, template)

    def end_of_reasoning(self, begun: str) -> str:
        """The text after which a constraint holds in an answer that goes on `begun`; "" if there
        is no reasoning in it."""
        is_answer = begun.strip() != "" and not reasons(begun, self._tags)
        if is_answer or not self._reasons:
            return ""
        return HARMONY_FINAL if self._tags == CHANNELS else self._tags.end

    def reader(self, generation: Generation, after: str) -> "AnswerReader":
        """For one answer, whose constraint holds after that text; "" without one."""
        if not self._reasons:
            return AnswerReader()
        if self._tags == CHANNELS:
            return _ChannelAnswer()
        waits = after == self._tags.end
        opened = generation.opens_reasoning or (waits and not generation.closes_reasoning)
        return _ReasonedAnswer(ReasoningSplitter(opened=opened, tags=self._tags))


class AnswerReader:
    """Reads an answer piece by piece: all of it is the output's."""

    def feed(self, text: str, final: bool) -> str:
        """What of the next piece belongs to the output; `final` says that it is the last one."""
        return text


class _ReasonedAnswer(AnswerReader):
    def __init__(self, splitter: ReasoningSplitter) -> None:
        self._splitter = splitter

    def feed(self, text: str, final: bool) -> str:
        parts = self._splitter.feed(text, final)
        return "".join(part.text for part in parts if not part.is_reasoning)


class _ChannelAnswer(AnswerReader):
    def __init__(self) -> None:
        self._reader = ChannelReader({}, constrained=False)

    def feed(self, text: str, final: bool) -> str:
        content = []
        for start in range(0, len(text) or 1, SLICE_CHARS):
            piece, is_last = text[start : start + SLICE_CHARS], start + SLICE_CHARS >= len(text)
            events = self._reader.feed(piece, final and is_last)
            content += [event.text for event in events if isinstance(event, Content)]
        return "".join(content)
