"""The answers of /v1/responses that can be fetched and continued later, as far as there is room.

Owned by the gateway; nothing is on disk. Each belongs to the caller it was made for. No other
caller learns of it, or pushes it out while its owner takes no more than an equal share. Without
room (the default) nothing is kept.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
from cachetools import LRUCache
from msgspec.structs import replace

from srt.gateway.media.given import Frames
from srt.gateway.wire.responses import (
    CallItem,
    CustomCallItem,
    InputItem,
    InputPart,
    MessageItem,
    OutputItem,
    ResponseObject,
)
from srt.wire.errors import NOT_FOUND, RequestError, quoted

# Larger ones are not kept: reading one of many small parts holds the loop for 14 ms.
MAX_RESPONSE_BYTES = 1024 * 1024
ENTRY_BYTES = 1024  # about the memory that Python takes for one, besides its JSON


class StoredItems(NamedTuple):
    """The items of a conversation, and the files of its pictures in their order, as frames of the
    ring: the items have no addresses of them."""

    items: list[InputItem]
    files: Sequence[Frames] = ()


NO_ITEMS = StoredItems([])


class _Stored(NamedTuple):
    """JSON: a response, and the items of the conversation up to and including its output; and the
    files of its pictures."""

    response: bytes
    items: bytes
    files: tuple[Frames, ...]

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items) + size_of(self.files) + ENTRY_BYTES


def size_of(files: Sequence[Frames]) -> int:
    """The bytes of the files of pictures."""
    return sum(len(frame) for frames in files for frame in frames)


def _owned() -> LRUCache[str, _Stored]:
    """The responses of one owner, by id. What all owners have together bounds them."""
    return LRUCache(inf, getsizeof=lambda stored: stored.size)


class _Run(NamedTuple):
    task: asyncio.Task[None]
    state: Callable[[], ResponseObject]


class RunningResponses:
    """Responses that are made in the background. Each has been admitted as any other request."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}

    async def start(
        self,
        owner: str,
        response_id: str,
        work: Coroutine[Any, Any, None],
        state: Callable[[], ResponseObject],
    ) -> None:
        """Begin `work`, which stores the response at its end; `state` is what there is of it."""
        name = (owner, response_id)
        run = self._runs[name] = _Run(asyncio.create_task(work), state)

        def forget(_: object) -> None:
            if self._runs.get(name) is run:
                del self._runs[name]

        run.task.add_done_callback(forget)
        await asyncio.sleep(0)  # it runs: a cancel finds it where it takes one

    def state(self, owner: str, response_id: str) -> ResponseObject | None:
        """What there is of a response so far; None if it is none of these."""
        run = self._runs.get((owner, response_id))
        return None if run is None or run.task.done() else run.state()

    async def cancel(self, owner: str, response_id: str) -> None:
        """End a response, if it is one of these: it is stored with what there is of it."""
        run = self._runs.get((owner, response_id))
        if run is None:
            return
        if not run.task.cancelling():  # a second one would end the work of the first
            run.task.cancel()
        await asyncio.wait([run.task])


class StoredResponses:
    """At most `max_bytes` of them. Above that, owners of more than an equal share lose those that
    they used least recently; the owner of the newest one loses first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._owners: dict[str, LRUCache[str, _Stored]] = {}
        self.running = RunningResponses()

    @property
    def is_on(self) -> bool:
        """Whether there is room for anything."""
        return self._max_bytes > 0

    def takes(self, files: Sequence[Frames]) -> bool:
        """Whether a response about pictures with these files can be kept."""
        return self.is_on and size_of(files) <= self._max_bytes // 2

    def keep(
        self,
        owner: str,
        response: ResponseObject,
        given: list[InputItem],
        files: Sequence[Frames] = (),
    ) -> bool:
        """Keep the response that `owner` got for the items `given`, whose pictures are `files`,
        unless it is too large; whether it is kept."""
        self._forget(owner, response.id)
        most = min(MAX_RESPONSE_BYTES, self._max_bytes)
        encoded = msgspec.json.encode(response)
        items = [*given, *map(_as_input, response.output)]
        if len(encoded) + sum(map(_num_chars, items)) > most:
            return False
        stored = _Stored(encoded, msgspec.json.encode(items), tuple(files))
        if stored.size - size_of(files) > most or stored.size > self._max_bytes:
            return False
        self._owners.setdefault(owner, _owned())[response.id] = stored
        self._size += stored.size
        if self._size > self._max_bytes:
            self._make_room([owner, *self._owners])
        return True

    def response(self, owner: str, response_id: str) -> bytes:
        """The JSON of a response. Raises RequestError (404) if there is none."""
        return self._found(owner, response_id).response

    def items(self, owner: str, response_id: str) -> StoredItems:
        """The conversation up to a response's end. Raises RequestError if there is none."""
        if not self.is_on:
            reason = " is not supported: this server stores no responses"
            raise RequestError(reason, at="previous_response_id")
        try:
            found = self._found(owner, response_id)
        except RequestError as error:
            raise RequestError(error.info.message, param="previous_response_id") from None
        return StoredItems(msgspec.json.decode(found.items, type=list[InputItem]), found.files)

    def delete(self, owner: str, response_id: str) -> None:
        """Forget a response. Raises RequestError (404) if there is none."""
        self._found(owner, response_id)
        self._forget(owner, response_id)

    def _found(self, owner: str, response_id: str) -> _Stored:
        owned = self._owners.get(owner)
        if owned is None or response_id not in owned:
            raise RequestError(f"there is no stored response {quoted(response_id)}", code=NOT_FOUND)
        return owned[response_id]

    def _forget(self, owner: str, response_id: str) -> None:
        owned = self._owners.get(owner)
        if owned is not None and response_id in owned:
            self._forgotten(owner, owned.pop(response_id))

    def _forgotten(self, owner: str, stored: _Stored) -> None:
        """One that `owner` had is removed."""
        self._size -= stored.size
        if not self._owners[owner]:
            del self._owners[owner]

    def _make_room(self, owners: Sequence[str]) -> None:
        """Remove what `owners`, in this order, have above an equal share."""
        share = self._max_bytes / len(self._owners)
        for owner in owners:
            while self._size > self._max_bytes:
                owned = self._owners.get(owner)
                if owned is None or owned.currsize <= share:
                    break
                self._forgotten(owner, owned.popitem()[1])


def _num_chars(item: InputItem) -> int:
    """A lower bound of the number of characters of the item's JSON."""
    num = len(item.arguments) + len(item.input)
    for content in (item.content or "", item.output or ""):
        parts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        num += sum(map(len, parts))
    return num


def _as_input(item: OutputItem) -> InputItem:
    """An item of an answer, as clients send it back."""
    if isinstance(item, CallItem | CustomCallItem):
        called = InputItem(
            type="function_call",
            call_id=item.call_id,
            name=item.name,
            namespace=item.namespace or "",
        )
        if isinstance(item, CallItem):
            return replace(called, arguments=item.arguments)
        return replace(called, type="custom_tool_call", input=item.input)
    texts = [InputPart(type=part.type, text=part.text) for part in item.content]
    if isinstance(item, MessageItem):
        return InputItem(type="message", role="assistant", content=texts)
    return InputItem(type="reasoning", content=texts)
