"""Words the answers to chats: content, reasoning and tool calls, taken out of one text.

Whole answers are what the pieces of a stream add up to: both come from the same `ChatReader`.
"""

import uuid
from collections.abc import Iterator

from msgspec import UNSET, Struct

from srt.gateway.openai_answers import Face, ended, matched
from srt.gateway.wire_openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessageOut,
    FinishWord,
)
from srt.gateway.wire_tools import FunctionCall, FunctionDelta, ToolCallDelta, ToolCallJson
from srt.generation import GenerateOutput
from srt.reasoning import ReasoningSplitter
from srt.tools.format import HERMES
from srt.tools.parser import CallArguments, CallStart, Content, ToolCallParser


class Reading(Struct, frozen=True, kw_only=True):
    """What to look for in an answer.

    `functions` are the names of the tools that may be called (empty: look for none), and
    `constrained` says that calls are known to be valid. `reasoning` says to split it off;
    `opened` that the answer begins inside it, whatever the prompt says.
    """

    functions: frozenset[str] = frozenset()
    constrained: bool = False
    reasoning: bool = False
    opened: bool = False


class ChatReader:
    """Reads one answer. `prompt_opens`: the prompt has opened the reasoning."""

    def __init__(self, reading: Reading, prompt_opens: bool) -> None:
        self._splitter: ReasoningSplitter | None = None
        if reading.reasoning:
            self._splitter = ReasoningSplitter(opened=reading.opened or prompt_opens)
        self._parser: ToolCallParser | None = None
        if reading.functions:
            self._parser = ToolCallParser(
                HERMES, reading.functions, constrained=reading.constrained
            )

    def feed(self, text: str, final: bool) -> list[ChatDelta]:
        """What is new of the message; `final` says that `text` is the last piece."""
        if self._splitter is None:
            return self._answer(text, final)
        deltas = []
        for part in self._splitter.feed(text, final):
            if part.is_reasoning:
                deltas.append(ChatDelta(reasoning_content=part.text))
            else:
                deltas += self._answer(part.text, False)
        return [*deltas, *self._answer("", True)] if final else deltas

    def finish_word(self, output: GenerateOutput) -> FinishWord:
        """Why the finished answer ended: for its calls, if it has any and nothing cut it short."""
        word = ended(output)
        parser = self._parser
        made_calls = parser is not None and parser.num_calls > 0 and not parser.in_call
        return "tool_calls" if word == "stop" and made_calls else word

    def _answer(self, text: str, final: bool) -> list[ChatDelta]:
        if self._parser is None:
            return [ChatDelta(content=text)] if text else []
        return [_delta(event) for event in self._parser.feed(text, final)]


def _delta(event: Content | CallStart | CallArguments) -> ChatDelta:
    if isinstance(event, Content):
        return ChatDelta(content=event.text)
    if isinstance(event, CallStart):
        function = FunctionDelta(name=event.name)
        call = ToolCallDelta(index=event.call, id=_call_id(), type="function", function=function)
        return ChatDelta(tool_calls=[call])
    function = FunctionDelta(arguments=event.text)
    return ChatDelta(tool_calls=[ToolCallDelta(index=event.call, function=function)])


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def message_of(deltas: list[ChatDelta]) -> ChatMessageOut:
    """The message that the deltas add up to."""
    content = "".join(d.content for d in deltas if d.content)
    reasoning = "".join(d.reasoning_content for d in deltas if d.reasoning_content)
    calls = _calls_of([call for delta in deltas for call in delta.tool_calls or []])
    return ChatMessageOut(
        content=None if not content and (calls or reasoning) else content,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _calls_of(pieces: list[ToolCallDelta]) -> list[ToolCallJson]:
    starts = [piece for piece in pieces if piece.id]
    arguments = [
        "".join(p.function.arguments for p in pieces if p.index == s.index) for s in starts
    ]
    return [
        ToolCallJson(id=s.id or "", function=FunctionCall(s.function.name or "", text))
        for s, text in zip(starts, arguments, strict=True)
    ]


def chat_face(reading: Reading, prompt_opens: bool) -> Face:
    """The words for one chat. Its reader has a state: the face is good for one answer."""
    reader = ChatReader(reading, prompt_opens)

    def choice(index: int, output: GenerateOutput) -> ChatChoice:
        message = message_of(reader.feed(output.text, final=True))
        return ChatChoice(
            index=index,
            message=message,
            finish_reason=reader.finish_word(output),
            matched_stop=matched(output),
        )

    def chunk_choices(
        index: int, output: GenerateOutput, is_first: bool
    ) -> Iterator[ChatChunkChoice]:
        if is_first:
            yield ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
        for delta in reader.feed(output.delta, final=output.finish is not None):
            yield ChatChunkChoice(index=index, delta=delta)
        if output.finish is not None:
            yield ChatChunkChoice(
                index=index,
                delta=ChatDelta(),
                finish_reason=reader.finish_word(output),
                matched_stop=matched(output),
            )

    return Face("chatcmpl-", "chat.completion", "chat.completion.chunk", choice, chunk_choices)
