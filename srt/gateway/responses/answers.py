"""Writes the answers of /v1/responses: output items, and the events of a stream.

Whole answers are the sum of a stream's events: both come from one `ResponseWriter`.
"""

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET

from srt.client.generation import GenerateOutput, Generation
from srt.files.vocab import Vocab
from srt.gateway.batch import Batch
from srt.gateway.errors import body_of
from srt.gateway.http.turns import PING_S, in_turns, next_turn, with_pauses
from srt.gateway.openai.answers import ended
from srt.gateway.openai.chat import AnswerReading
from srt.gateway.openai.chat_answers import ChatReader
from srt.gateway.responses.input import sealed
from srt.gateway.responses.tools import Origin
from srt.gateway.wire.openai import ChatDelta, used_tier
from srt.gateway.wire.responses import (
    CallItem,
    CustomCallItem,
    IncompleteDetails,
    InputTokensDetails,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseObject,
    ResponsesRequest,
    ResponseStatus,
    ResponseUsage,
)
from srt.wire.answer_meta import USAGE, meta_of
from srt.wire.errors import INTERNAL

log = logging.getLogger(__name__)
Event = dict[str, Any]
# What a response repeats of its request.
_ECHOED = {*ResponseObject.__struct_fields__} & {*ResponsesRequest.__struct_fields__} - {
    "model",
    "service_tier",
    "store",
}
_STATUS: dict[str, ResponseStatus] = {"length": "incomplete", "abort": "cancelled"}


class ResponseWriter:
    """Writes one response. Only the last of its items can be open; new text goes there."""

    def __init__(
        self,
        body: ResponsesRequest,
        model: str,
        reading: AnswerReading,
        vocab: Vocab,
        generation: Generation,
        is_stored: bool = False,
        origins: Mapping[str, Origin] = MappingProxyType({}),
    ) -> None:
        opened = reading.begins_inside(generation)
        self._vocab = vocab
        self._reader = ChatReader(reading, opened)
        self._reading, self._origins = reading, origins
        self._seals = "reasoning.encrypted_content" in body.include
        self._opened = opened
        self._items: list[OutputItem] = []
        self._is_open = False
        self._sequence = 0
        self._state = ResponseObject(
            id=body.rid or f"resp_{generation.rid}",
            created_at=int(time.time()),
            status="in_progress",
            model=model,
            output=[],
            service_tier=used_tier(body.service_tier, body.priority),
            store=is_stored,
            **{name: getattr(body, name) for name in _ECHOED},
        )

    @property
    def stored(self) -> ResponseObject | None:
        """The response, if it has ended and is to be kept; one that failed only where nobody has
        been told of it."""
        ends = ["completed", "incomplete"]
        if self._state.background:
            ends += ["cancelled", "failed"]
        return self._state if self._state.store and self._state.status in ends else None

    @property
    def state(self) -> ResponseObject:
        """The response with what there is of it."""
        return msgspec.structs.replace(self._state, output=[*self._items])

    def cancel(self) -> None:
        """Its client has given it up."""
        self._cut_short(status="cancelled")

    async def whole(self, output: GenerateOutput) -> ResponseObject:
        """The response to a request that does not stream."""
        await in_turns(self.feed(msgspec.structs.replace(output, delta=output.text)))
        return self._state

    def begin(self) -> Iterator[Event]:
        """The first events."""
        yield self._event("response.created", response=self._state)
        yield self._event("response.in_progress", response=self._state)

    def feed(self, output: GenerateOutput) -> Iterator[Event]:
        """The events of a snapshot; those of the last one end the response."""
        for deltas in self._reader.feed(output.delta, final=output.finish is not None):
            for delta in deltas:
                yield from self._take(delta)
        if output.finish is None:
            return
        status = _STATUS.get(ended(output), "completed")
        if not self._items:
            yield from self._open(MessageItem(id=_id("msg"), status="in_progress", content=[]))
        yield from self._close("completed" if status == "completed" else "incomplete")
        cut = IncompleteDetails("max_output_tokens") if status == "incomplete" else None
        self._state = msgspec.structs.replace(
            self._state,
            status=status,
            incomplete_details=cut,
            output=self._items,
            usage=self._usage(output),
        )
        last = "incomplete" if status == "incomplete" else "completed"
        yield self._event(f"response.{last}", response=self._state)

    def failed(self, error: BaseException) -> Event:
        """The event that ends a failed response."""
        detail = body_of(error).error
        code = "server_error" if detail.code == INTERNAL else detail.code
        failure = ResponseFailure(code, detail.message)
        self._cut_short(status="failed", error=failure)
        return self._event("response.failed", response=self._state)

    def _cut_short(self, **fields: Any) -> None:
        """Its end is not the model's: what there is of it is given with these fields."""
        if self._is_open:
            self._items[-1] = msgspec.structs.replace(self._items[-1], status="incomplete")
            self._is_open = False
        self._state = msgspec.structs.replace(self._state, output=[*self._items], **fields)

    # ---- items ---------------------------------------------------------------------------------

    def _take(self, delta: ChatDelta) -> Iterator[Event]:
        if delta.reasoning_content:
            yield from self._add_text(ReasoningItem, delta.reasoning_content)
        if delta.content:
            yield from self._add_text(MessageItem, delta.content)
        for call in delta.tool_calls or []:
            if call.id:
                yield from self._open(self._call(call.id, call.function.name or ""))
            if call.function.arguments:
                yield from self._add_arguments(call.function.arguments)

    def _add_text(
        self, kind: type[MessageItem] | type[ReasoningItem], text: str
    ) -> Iterator[Event]:
        if not (self._is_open and isinstance(self._items[-1], kind)):
            prefix = "msg" if kind is MessageItem else "rs"
            yield from self._open(kind(id=_id(prefix), status="in_progress", content=[]))
        item = self._items[-1]
        assert isinstance(item, MessageItem | ReasoningItem)
        part = item.content[0]
        part = msgspec.structs.replace(part, text=part.text + text)
        self._items[-1] = msgspec.structs.replace(item, content=[part])
        yield self._text_event("delta", delta=text)

    def _call(self, call_id: str, name: str) -> CallItem | CustomCallItem:
        """The item of a call that begins, with the client's name of the tool."""
        origin = self._origins.get(name)
        given: dict[str, Any] = {"call_id": call_id, "name": name, "status": "in_progress"}
        if origin is not None:
            given |= {"name": origin.name, "namespace": origin.namespace or UNSET}
        if name in self._reading.custom:
            return CustomCallItem(id=_id("ctc"), input="", **given)
        return CallItem(id=_id("fc"), arguments="", **given)

    def _add_arguments(self, text: str) -> Iterator[Event]:
        call = self._items[-1]
        if isinstance(call, CustomCallItem):
            self._items[-1] = msgspec.structs.replace(call, input=call.input + text)
            yield self._item_event("response.custom_tool_call_input.delta", delta=text)
            return
        assert isinstance(call, CallItem)
        self._items[-1] = msgspec.structs.replace(call, arguments=call.arguments + text)
        yield self._item_event("response.function_call_arguments.delta", delta=text)

    def _open(self, item: OutputItem) -> Iterator[Event]:
        if self._is_open:
            yield from self._close("completed")
        self._items.append(item)
        self._is_open = True
        place = len(self._items) - 1
        yield self._event("response.output_item.added", output_index=place, item=item)
        if isinstance(item, CallItem | CustomCallItem):
            return
        part: Any = OutputText(text="") if isinstance(item, MessageItem) else ReasoningText(text="")
        self._items[-1] = msgspec.structs.replace(item, content=[part])
        yield self._part_event("response.content_part.added", part=part)

    def _close(self, status: ResponseStatus) -> Iterator[Event]:
        item = self._items[-1]
        if isinstance(item, CallItem):
            done, call = "response.function_call_arguments.done", item
            yield self._item_event(done, name=call.name, arguments=call.arguments)
        elif isinstance(item, CustomCallItem):
            yield self._item_event("response.custom_tool_call_input.done", input=item.input)
        else:
            part = item.content[0]
            yield self._text_event("done", text=part.text)
            yield self._part_event("response.content_part.done", part=part)
        if isinstance(item, ReasoningItem) and self._seals:
            item = msgspec.structs.replace(item, encrypted_content=sealed(item.content[0].text))
        self._items[-1] = item = msgspec.structs.replace(item, status=status)
        self._is_open = False
        place = len(self._items) - 1
        yield self._event("response.output_item.done", output_index=place, item=item)

    # ---- events --------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **fields}

    def _item_event(self, kind: str, **fields: Any) -> Event:
        """An event of the open item."""
        place = len(self._items) - 1
        return self._event(kind, item_id=self._items[-1].id, output_index=place, **fields)

    def _part_event(self, kind: str, **fields: Any) -> Event:
        """An event of the open item's only part."""
        return self._item_event(kind, content_index=0, **fields)

    def _text_event(self, name: str, **fields: Any) -> Event:
        """An event of the open item's text."""
        if isinstance(self._items[-1], MessageItem):
            return self._part_event(f"response.output_text.{name}", logprobs=[], **fields)
        return self._part_event(f"response.reasoning_text.{name}", **fields)

    def _usage(self, output: GenerateOutput) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=output.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                output.cached_tokens, output.media_tokens or UNSET, output.prefix or UNSET
            ),
            output_tokens=output.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self._reasoning_tokens(output), **meta_of(output, USAGE)
            ),
            total_tokens=output.prompt_tokens + output.completion_tokens,
        )

    def _reasoning_tokens(self, output: GenerateOutput) -> int:
        """The tokens that begin before the end of the reasoning."""
        text = output.text.lstrip()
        begins = self._opened or text.startswith(self._reading.tags.begin)
        if not (self._reading.reasoning and begins):
            return 0
        head, tag, _ = output.text.partition(self._reading.tags.end)
        size, count = len((head + tag).encode()), 0
        for token in output.output_ids:
            if size <= 0:
                break
            size -= len(self._vocab.token_bytes[token])
            count += 1
        return count


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


async def response_events(
    batch: Batch,
    writer: ResponseWriter,
    keep: Callable[[ResponseWriter], None],
    begin_s: float = PING_S,
) -> AsyncGenerator[Event, None]:
    """The events of a stream. A failure is the last one, and one before the first event is raised;
    otherwise the response is passed to `keep` before its end is sent. The response begins with the
    first token, or after `begin_s` without one."""
    has_begun = False
    try:
        async with (
            aclosing(batch.snapshots()) as snapshots,
            aclosing(with_pauses(snapshots, begin_s)) as paced,
        ):
            async for item in paced:
                if not has_begun:
                    has_begun = True
                    for event in writer.begin():
                        yield event
                if item is None:
                    continue
                began = time.monotonic()
                for event in writer.feed(item[1]):
                    keep(writer)
                    yield event
                    began = await next_turn(began)
    except Exception as error:
        if not has_begun:
            raise
        yield writer.failed(error)
