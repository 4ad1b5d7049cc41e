"""The answers of /v1/responses that may be fetched and continued later, as far as there is room.

Owned by the gateway; nothing is on disk. Each belongs to the caller it was made for, and no other
learns that it is there. Without room (the default) nothing is kept.
"""

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from srt.errors import NOT_FOUND, RequestError
from srt.gateway.wire_responses import (
    InputItem,
    InputPart,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseObject,
)

# Larger ones are not kept: to write and read them would hold up all other requests.
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_NAME = tuple[str, str]  # of the caller, and of the response


class _Stored(NamedTuple):
    """JSON: a response, and the items of the conversation up to and with its output."""

    response: bytes
    items: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items)


class StoredResponses:
    """At most `max_bytes` of them; those that were used least recently are forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._kept: OrderedDict[_NAME, _Stored] = OrderedDict()

    @property
    def is_on(self) -> bool:
        """Whether there is room for anything."""
        return self._max_bytes > 0

    def keep(self, owner: str, response: ResponseObject, given: list[InputItem]) -> None:
        """Keep what `owner` has got for the items `given`."""
        items = [*given, *map(_as_input, response.output)]
        stored = _Stored(msgspec.json.encode(response), msgspec.json.encode(items))
        self._forget((owner, response.id))
        if stored.size > min(MAX_RESPONSE_BYTES, self._max_bytes):
            return
        self._kept[owner, response.id] = stored
        self._size += stored.size
        while self._size > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def response(self, owner: str, response_id: str) -> bytes:
        """The JSON of a response. Raises RequestError (404) if there is none."""
        return self._found(owner, response_id).response

    def items(self, owner: str, response_id: str) -> list[InputItem]:
        """The conversation that a response has ended. Raises RequestError if there is none."""
        if not self.is_on:
            reason = "previous_response_id is not supported: this server stores no responses"
            raise RequestError(reason, param="previous_response_id")
        try:
            found = self._found(owner, response_id)
        except RequestError as error:
            raise RequestError(error.info.message, param="previous_response_id") from None
        return msgspec.json.decode(found.items, type=list[InputItem])

    def delete(self, owner: str, response_id: str) -> None:
        """Forget a response. Raises RequestError (404) if there is none."""
        self._found(owner, response_id)
        self._forget((owner, response_id))

    def _found(self, owner: str, response_id: str) -> _Stored:
        found = self._kept.get((owner, response_id))
        if found is None:
            raise RequestError(f"there is no stored response {response_id!r}", code=NOT_FOUND)
        self._kept.move_to_end((owner, response_id))
        return found

    def _forget(self, name: _NAME) -> None:
        stored = self._kept.pop(name, None)
        self._size -= 0 if stored is None else stored.size


def _as_input(item: OutputItem) -> InputItem:
    """An item of an answer as clients give it back."""
    if isinstance(item, MessageItem):
        texts = [InputPart(type=part.type, text=part.text) for part in item.content]
        return InputItem(type="message", role="assistant", content=texts)
    if isinstance(item, ReasoningItem):
        texts = [InputPart(type=part.type, text=part.text) for part in item.content]
        return InputItem(type="reasoning", content=texts)
    return InputItem(
        type="function_call", call_id=item.call_id, name=item.name, arguments=item.arguments
    )
