"""Refuses what h11 forgives in the framing of requests: lines that end with a bare LF, and header
fields that go on in the next line (obs-fold).

RFC 9112 allows both to be refused. A proxy in front of the server may read them otherwise, and
would then see another request than the server does.
"""

import re

import h11
from h11._receivebuffer import ReceiveBuffer

BARE_LF = "each line of a request's head and of its chunks must end with CRLF, not with a bare LF"
FOLDED = "a header field must not go on in a line that begins with a blank (obs-fold)"
BARE_CR = "the line with the size of a chunk must not have a bare CR"

# A line feed that is no ordinary end of a line: without a CR before it, with a CRLF behind it
# (which ends the head), or with a blank behind it.
_NOTABLE = re.compile(rb"\n(?:(?<!\r\n)|(?P<end>\r\n)|(?P<fold>[ \t]))")


class StrictBuffer(ReceiveBuffer):
    """The bytes that a connection has received, from which h11 takes heads, trailers and the lines
    between chunks. Bodies are taken by their lengths and may have any bytes. `refusal` is why the
    connection has to end, after a RemoteProtocolError."""

    refusal = ""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines up to the next blank one; None if that has not arrived."""
        data = self._data
        if data.startswith(b"\r\n"):
            self._extract(2)
            return []
        found = _NOTABLE.search(data, self._multiple_lines_search)
        if found is None:
            self._multiple_lines_search = max(0, len(data) - 2)  # `\n\r` may become an end
            return None
        if not found["end"]:
            raise self._refused(FOLDED if found["fold"] else BARE_LF)
        return self._extract(found.end())[:-4].split(b"\r\n")

    def maybe_extract_next_line(self) -> bytearray | None:
        """The next line, with its end; None if that has not arrived."""
        end = self._data.find(b"\n", self._next_line_search) + 1
        if not end:
            self._next_line_search = len(self._data)
            return None
        line = self._extract(end)
        if not line.endswith(b"\r\n"):
            raise self._refused(BARE_LF)
        if line.find(b"\r") != end - 2:
            raise self._refused(BARE_CR)
        return line

    def _refused(self, reason: str) -> h11.RemoteProtocolError:
        self.refusal = reason
        return h11.RemoteProtocolError(reason)
