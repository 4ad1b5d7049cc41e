"""Writes the answers of /v1/messages: content blocks, and the events of a stream.

Whole answers are the sum of a stream's events: both come from one `MessageWriter`.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from srt.client.generation import GenerateOutput, Generation
from srt.gateway.anthropic.chat import in_their_words
from srt.gateway.anthropic.inputs_cut import input_of
from srt.gateway.batch import Batch
from srt.gateway.errors import anthropics_body
from srt.gateway.http.turns import PING_S, in_turns, next_turn, with_pauses
from srt.gateway.openai.chat import AnswerReading
from srt.gateway.openai.chat_answers import ChatReader
from srt.gateway.wire.anthropic import (
    BlockOut,
    MessageOut,
    MessagesUsage,
    StopReason,
    TextOut,
    ThinkingOut,
    ToolUseOut,
)
from srt.gateway.wire.openai import ChatDelta

Event = dict[str, Any]
SIGNATURE = "srt"  # of thinking: any is taken back
_PING: Event = {"type": "ping"}
_T = TypeVar("_T")


class MessageWriter:
    """Writes one message. Only the last of its blocks can be open; new text goes there.

    `is_bounded`: the answer may be as long as the context has room, which is less than the request
    would take. `name` is the id that the request gave, if it gave one.
    """

    def __init__(
        self,
        model: str,
        reading: AnswerReading,
        generation: Generation,
        name: str | None = None,
        is_bounded: bool = False,
    ) -> None:
        self._reader = ChatReader(reading, reading.begins_inside(generation))
        self._is_bounded = is_bounded
        self._blocks: list[BlockOut] = []
        self._is_open = False
        self._pieces: list[str] = []  # of the open block
        self._state = MessageOut(
            id=name or f"msg_{generation.rid}",
            model=model,
            content=[],
            usage=MessagesUsage(
                input_tokens=generation.meta.prompt_tokens,
                cache_read_input_tokens=0,
                output_tokens=0,
            ),
        )

    @property
    def id(self) -> str:
        """The message's id."""
        return self._state.id

    async def whole(self, output: GenerateOutput) -> MessageOut:
        """The answer to a request that does not stream."""
        await in_turns(self.feed(replace(output, delta=output.text)))
        return self._state

    def begin(self, output: GenerateOutput | None) -> Iterator[Event]:
        """The first events; without an `output` yet it is not known what was cached."""
        if output is not None:
            self._state = replace(self._state, usage=_usage(output))
        yield {"type": "message_start", "message": self._state}
        yield _PING

    def feed(self, output: GenerateOutput) -> Iterator[Event]:
        """The events of a snapshot; those of the last one end the message."""
        for deltas in self._reader.feed(output.delta, final=output.finish is not None):
            for delta in deltas:
                yield from self._take(delta)
        if output.finish is None:
            return
        if self._is_open:
            yield from self._close(is_cut=output.finish.type != "stop")
        elif not self._blocks:  # an empty list breaks Anthropic's clients
            yield from self._open(TextOut(text=""))
            yield from self._close()
        reason, sequence = self._ending(output)
        self._state = replace(
            self._state,
            content=self._blocks,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(output),
        )
        ending = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}
        yield {"type": "message_delta", "delta": ending, "usage": self._state.usage}
        yield {"type": "message_stop"}

    def _ending(self, output: GenerateOutput) -> tuple[StopReason, str | None]:
        """Why the finished answer ended, and the stop sequence that ended it."""
        word = self._reader.finish_word(output)
        if word == "tool_calls":
            return "tool_use", None
        assert output.finish is not None
        if word == "stop":
            matched = output.finish.matched
            is_text = isinstance(matched, str)
            return ("stop_sequence", str(matched)) if is_text else ("end_turn", None)
        is_full = self._is_bounded and output.finish.type == "length"
        return "model_context_window_exceeded" if is_full else "max_tokens", None

    def _take(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.reasoning_content:
            yield from self._add(ThinkingOut, delta.reasoning_content)
        if delta.content:
            yield from self._add(TextOut, delta.content)
        for call in delta.tool_calls or []:
            if call.id:
                name = "toolu_" + call.id.removeprefix("call_")
                block = ToolUseOut(id=name, name=call.function.name or "", input={})
                yield from self._open(block)
            if call.function.arguments:
                yield from self._add(ToolUseOut, call.function.arguments)

    def _add(self, kind: type[BlockOut], text: str) -> Iterator[Event]:
        """Add text to the open block, which is of this kind; otherwise one is opened."""
        if not (self._is_open and isinstance(self._blocks[-1], kind)):
            is_text = kind is TextOut
            yield from self._open(
                TextOut(text="") if is_text else ThinkingOut(thinking="", signature="")
            )
        self._pieces.append(text)
        if kind is TextOut:
            yield self._delta("text_delta", text=text)
        elif kind is ThinkingOut:
            yield self._delta("thinking_delta", thinking=text)
        else:
            yield self._delta("input_json_delta", partial_json=text)

    def _open(self, block: BlockOut) -> Iterator[Event]:
        if self._is_open:
            yield from self._close()
        self._blocks.append(block)
        self._is_open = True
        index = len(self._blocks) - 1
        yield {"type": "content_block_start", "index": index, "content_block": block}

    def _close(self, is_cut: bool = False) -> Iterator[Event]:
        """End the open block. `is_cut`: the answer ended in it, which may be too early."""
        block, text = self._blocks[-1], "".join(self._pieces)
        if isinstance(block, ThinkingOut):
            yield self._delta("signature_delta", signature=SIGNATURE)
            block = replace(block, thinking=text, signature=SIGNATURE)
        elif isinstance(block, TextOut):
            block = replace(block, text=text)
        else:
            if not text and not is_cut:
                text = "{}"
                yield self._delta("input_json_delta", partial_json=text)
            block = replace(block, input=input_of(text))
        self._blocks[-1], self._pieces, self._is_open = block, [], False
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, kind: str, **fields: str) -> Event:
        index = len(self._blocks) - 1
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def _usage(output: GenerateOutput) -> MessagesUsage:
    return MessagesUsage(
        input_tokens=output.prompt_tokens - output.cached_tokens,
        cache_read_input_tokens=output.cached_tokens,
        output_tokens=output.completion_tokens,
        prefix=output.prefix or UNSET,
    )


async def message_events(
    batch: Batch, writer: MessageWriter, ping_s: float = PING_S
) -> AsyncGenerator[Event, None]:
    """The events of a stream. A failure is the last one; one before the first event is raised.

    The message begins with the first token, when it is known what was cached; if that takes longer
    than `ping_s`, it begins without, and there is a ping in each such time.
    """
    has_begun = False
    try:
        async with (
            aclosing(batch.snapshots()) as snapshots,
            aclosing(with_pauses(snapshots, ping_s)) as paced,
        ):
            async for item in paced:
                if not has_begun:
                    has_begun = True
                    for event in writer.begin(None if item is None else item[1]):
                        yield event
                elif item is None:
                    yield _PING
                if item is None:
                    continue
                began = time.monotonic()
                for event in writer.feed(item[1]):
                    yield event
                    began = await next_turn(began)
    except Exception as error:
        theirs = in_their_words(error)
        if not has_begun:
            raise theirs from error
        yield msgspec.to_builtins(anthropics_body(theirs))
