"""Writes the answers to chats: content, reasoning and tool calls, taken out of one text.

Whole answers are the sum of a stream's pieces: both come from the same `ChatReader`.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from srt.answers.reasoning import ReasoningSplitter
from srt.answers.tool_calls import answer_parser
from srt.answers.tool_events import CallStart, Content, EventParser, Reasoning, ToolEvent
from srt.client.generation import GenerateOutput, Request
from srt.files.vocab import Vocab
from srt.gateway.http.turns import slices
from srt.gateway.openai.answers import Face, NewTokens, captures_in, ended, steered
from srt.gateway.openai.chat import AnswerReading, Chat
from srt.gateway.openai.logprobs import (
    Position,
    TokenNames,
    chat_token,
    output_positions,
    prompt_positions,
    ranked_prompt,
)
from srt.gateway.wire.openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessageOut,
    ChatRequest,
    FinishWord,
)
from srt.gateway.wire.tools import FunctionCall, FunctionDelta, ToolCallDelta, ToolCallJson

_encode = msgspec.json.Encoder().encode


class ChatReader:
    """Reads one answer. `opened`: it begins inside the reasoning."""

    def __init__(self, reading: AnswerReading, opened: bool) -> None:
        self._hides = reading.hides_reasoning
        self._splitter: ReasoningSplitter | None = None
        has_channels = reading.form.in_channels and reading.reasoning
        if reading.reasoning and not has_channels:
            self._splitter = ReasoningSplitter(opened=opened, tags=reading.tags)
        self._parser: EventParser | None = None
        if reading.functions or reading.custom or has_channels:
            self._parser = answer_parser(
                reading.form,
                reading.functions,
                reading.custom,
                constrained=reading.constrained,
                is_first=reading.calls_first,
                forced=reading.forced,
            )

    def feed(self, text: str, final: bool) -> Iterator[list[ChatDelta]]:
        """The new part of the message, for each slice of `text`; `final` says that this is the last
        piece."""
        for piece in slices(text, final):
            yield self._deltas(*piece)

    def _deltas(self, text: str, final: bool) -> list[ChatDelta]:
        if self._splitter is None:
            return self._answer(text, final)
        deltas: list[ChatDelta] = []
        for part in self._splitter.feed(text, final):
            if part.is_reasoning:
                deltas += [] if self._hides else [ChatDelta(reasoning_content=part.text)]
            else:
                deltas += self._answer(part.text, False)
        return [*deltas, *self._answer("", True)] if final else deltas

    def finish_word(self, output: GenerateOutput) -> FinishWord:
        """Why the finished answer ended: to make calls, if it has any and nothing cut it short."""
        word = ended(output)
        parser = self._parser
        made_calls = parser is not None and parser.num_calls > 0 and not parser.in_call
        return "tool_calls" if word == "stop" and made_calls else word

    def _answer(self, text: str, final: bool) -> list[ChatDelta]:
        if self._parser is None:
            return [ChatDelta(content=text)] if text else []
        events = self._parser.feed(text, final)
        hides = self._hides
        return [_delta(e) for e in events if not (hides and isinstance(e, Reasoning))]


def _delta(event: ToolEvent) -> ChatDelta:
    if isinstance(event, Content):
        return ChatDelta(content=event.text)
    if isinstance(event, Reasoning):
        return ChatDelta(reasoning_content=event.text)
    if isinstance(event, CallStart):
        function = FunctionDelta(name=event.name)
        call = ToolCallDelta(index=event.call, id=_call_id(), type="function", function=function)
        return ChatDelta(tool_calls=[call])
    function = FunctionDelta(arguments=event.text)
    return ChatDelta(tool_calls=[ToolCallDelta(index=event.call, function=function)])


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class _Message:
    """The sum of deltas, added slice by slice, since calls may be many."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallJson] = []
        self._begun: ToolCallDelta | None = None
        self._arguments: list[str] = []  # of that call

    def add(self, deltas: list[ChatDelta]) -> None:
        for delta in deltas:
            self._content.append(delta.content or "")
            self._reasoning.append(delta.reasoning_content or "")
            for piece in delta.tool_calls or []:
                if piece.id:
                    self._end_call()
                    self._begun = piece
                self._arguments.append(piece.function.arguments)

    def _end_call(self) -> None:
        if self._begun is not None:
            name = self._begun.function.name or ""
            call = FunctionCall(name, "".join(self._arguments))
            self._calls.append(ToolCallJson(id=self._begun.id or "", function=call))
        self._arguments = []

    def whole(self) -> ChatMessageOut:
        """The message, when all has been added."""
        self._end_call()
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return ChatMessageOut(
            content=None if not content and (self._calls or reasoning) else content,
            reasoning_content=reasoning or UNSET,
            tool_calls=self._calls or UNSET,
        )


class ChatFace(Face):
    """Writes the choices of one chat, each read by its own reader. `opened`: they begin inside the
    reasoning; `prompt_ids` are in the answer if they are given."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatRequest,
        chat: Chat,
        vocab: Vocab,
        opened: bool,
        prompt_ids: list[int] | None,
    ) -> None:
        self._body = body
        self._names = TokenNames(vocab, body.return_tokens_as_token_ids)
        self.prompt_ids = UNSET if prompt_ids is None else prompt_ids
        self._writers = [
            _ChatWriter(body, ChatReader(chat.reading, opened), chat.request, self._names)
            for _ in range(body.n)
        ]

    def choices(self, outputs: Sequence[GenerateOutput]) -> Iterator[ChatChoice | None]:
        """One for each sample."""
        for i, output in enumerate(outputs):
            yield from self._writers[i].whole(msgspec.structs.replace(output, delta=output.text), i)

    def chunk_choices(self, index: int, output: GenerateOutput) -> Iterator[ChatChunkChoice | None]:
        """What a snapshot adds; the first one of a choice begins with its role."""
        return self._writers[index].feed(output, index)

    def prompt_logprobs(
        self, outputs: Sequence[GenerateOutput]
    ) -> Iterator[msgspec.Raw] | UnsetType:
        """The log-probabilities of the chat's tokens, which the samples share."""
        if self._body.prompt_logprobs is None:
            return UNSET
        positions = prompt_positions(outputs[0], self._body.prompt_logprobs)
        return ranked_prompt(positions, self._names)


class _ChatWriter:
    """Writes one choice piece by piece; whole answers are one piece.

    Log-probabilities and ids are those of every token that the model wrote, including reasoning
    and calls. They go with a snapshot's first delta, or an empty one if its text is held back.
    """

    def __init__(
        self, body: ChatRequest, reader: ChatReader, request: Request, names: TokenNames
    ) -> None:
        self._body = body
        self._reader = reader
        self._names = names
        self._new = NewTokens(request.sampling)
        self._begun = False
        self._content: list[str] = []

    def whole(self, output: GenerateOutput, index: int) -> Iterator[ChatChoice | None]:
        """The choice of a finished answer, after None for each token with a log-probability, and
        for each slice of the text."""
        positions, ids, origins = self._new_tokens(output)
        rows: list[Any] = []
        for position in positions or ():
            rows.append(msgspec.Raw(_encode(chat_token(position, self._names))))
            yield None
        logprobs = None if positions is None else ChatLogprobs(rows)
        message = _Message()
        for deltas in self._reader.feed(output.delta, final=True):
            message.add(deltas)
            yield None
        whole = message.whole()
        choice = ChatChoice(
            index=index,
            message=whole,
            logprobs=logprobs,
            finish_reason=self._reader.finish_word(output),
            matched_stop=None if output.finish is None else output.finish.matched,
            token_ids=ids,
            token_origins=origins,
            captures=captures_in(output, whole.content or ""),
        )
        yield steered(choice, output.finish)

    def feed(self, output: GenerateOutput, index: int) -> Iterator[ChatChunkChoice | None]:
        """What a snapshot of the choice `index` adds, and None after each slice of its text."""
        if not self._begun:
            self._begun = True
            yield ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
        # The new tokens go with what comes first.
        positions, ids, origins = self._new_tokens(output)
        logprobs = None
        if positions is not None:
            logprobs = ChatLogprobs([chat_token(each, self._names) for each in positions])

        def chunk(delta: ChatDelta) -> ChatChunkChoice:
            nonlocal logprobs, ids, origins
            made = ChatChunkChoice(
                index=index,
                delta=delta,
                logprobs=logprobs,
                token_ids=ids or UNSET,
                token_origins=origins,
            )
            logprobs, ids, origins = None, UNSET, UNSET
            return made

        for deltas in self._reader.feed(output.delta, final=output.finish is not None):
            for delta in deltas:
                self._content.append(delta.content or "")
                yield chunk(delta)
            yield None
        if output.finish is not None:
            last = msgspec.structs.replace(
                chunk(ChatDelta()),
                finish_reason=self._reader.finish_word(output),
                matched_stop=output.finish.matched,
                captures=captures_in(output, "".join(self._content)),
            )
            yield steered(last, output.finish)
        elif ids or origins or (logprobs and logprobs.content):
            yield chunk(ChatDelta(content=""))

    def _new_tokens(
        self, output: GenerateOutput
    ) -> tuple[list[Position] | None, list[int] | UnsetType, str | UnsetType]:
        start, end = self._new.take(output)
        ids = output.output_ids[start:end] if self._body.return_token_ids else UNSET
        origins = output.token_origins[start:end] or UNSET
        if not self._body.logprobs:
            return None, ids, origins
        return output_positions(output, start, end, self._body.top_logprobs), ids, origins
