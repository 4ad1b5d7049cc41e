"""What a decoder has come to, in the log of the run around it: one entry, above those of its runs.

So a replay comes to the same, whatever the decoder's own functions and the order of its answers.
"""

from typing import Any

import msgspec

from lang.functions.prepared import Prepared
from lang.logs.address import Address
from lang.logs.entries import Entry, arguments_of, plain, request_of_effect
from lang.logs.journal import Journal


class Outcome:
    """The entry of one use of a decoder, `what`, whose `settings` decide what it comes to."""

    def __init__(self, prepared: Prepared, what: str, settings: Any, source: str) -> None:
        place = prepared.place
        self._journal: Journal | None = place.journal
        self._prepared, self._what, self._source = prepared, what, source
        self._settings = plain(settings)
        self._request = ""
        if self._journal is not None:
            self._address = Address(place.row, place.path[:-1], place.path[-1].index)

    async def value(self, kind: Any) -> Any:
        """What the log has, as a `kind`; None if there is none that fits."""
        if self._journal is None:
            return None
        given = self._prepared
        model = await self._journal.models.fingerprint(given.backend)
        said = [self._settings, plain(given.defaults), arguments_of(given.args, given.kwargs)]
        request = request_of_effect(self._what, said, model)
        self._request = str(request)
        found = self._journal.found(_Around(), self._address, request, self._source)
        return None if found is None else msgspec.json.decode(found.value, type=kind)

    def drop(self) -> None:
        """What the log has does not fit after all."""
        if self._journal is not None:
            self._journal.left(self._address, also=[str(self._address)])

    def record(self, value: Any) -> None:
        """The decoder has come to an end."""
        if self._journal is not None:
            made = msgspec.Raw(msgspec.json.encode(value))
            name, source = self._what, self._source
            at = str(self._address)
            self._journal.record(Entry(at, self._request, "search", name, source, value=made))


class _Around:
    """Stands for the state that the decoder's run belongs to."""

    has_left = False
