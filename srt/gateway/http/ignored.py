"""Tells of the fields of requests that were ignored: to the client in a header, to the owner in the
log. Both have names only, never values, and of names that a client makes up no more than some."""

import logging
import urllib.parse
from collections.abc import Collection
from itertools import islice

from starlette.types import Message, Send

log = logging.getLogger(__name__)

IGNORED_HEADER = "x-ignored-fields"
MAX_NAMES = 16  # of a header
MAX_NAME_CHARS = 64
MAX_LOGGED = 100  # names, each once


class IgnoredNames:
    """Those of one server."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def telling(self, names: Collection[str], send: Send) -> Send:
        """`send` for an answer whose head has the first of these names, which are logged."""
        shown = [_escaped(name) for name in islice(names, MAX_NAMES)]
        for name in shown:
            self._log(name)
        field = IGNORED_HEADER.encode(), ", ".join(shown).encode()

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], field]}
            await send(message)

        return told

    def _log(self, name: str) -> None:
        if name in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add(name)
        is_last = len(self._logged) == MAX_LOGGED
        further = "; of further names nothing is logged" if is_last else ""
        log.warning("requests have the field %s, which is ignored%s", name, further)


def _escaped(name: str) -> str:
    """A name in ASCII, without blanks, commas and control characters, cut if it is long, and two
    quotes if it has no characters."""
    name = name or '""'
    return urllib.parse.quote(name[:MAX_NAME_CHARS], safe="[].", errors="replace")[:MAX_NAME_CHARS]
