"""One request's ids to text, increment by increment, with stop strings.

Called by the detokenizer core for every token. Invariants: the returned pieces joined are the
text of all ids (without the bytes to skip, and cut before the stop string, if one was found); no
piece is ever taken back; the work per token does not grow with the text.
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string that was found, and the number of tokens at which it was complete."""

    text: str
    num_tokens: int


class TextStream:
    """Decodes one request. `pieces[i]` are the bytes of id i (none for a hidden special token).

    Text is held back while its bytes are an incomplete character, or while its end may be the
    beginning of a stop string. Stop strings count only if they complete at token
    `min_new_tokens` or later. The first `skip_bytes` bytes are no part of the text.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        stop: Sequence[str] = (),
        min_new_tokens: int = 0,
        skip_bytes: int = 0,
    ) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._searches = [_StopSearch(text) for text in dict.fromkeys(stop)]
        self._min_new_tokens = min_new_tokens
        self._held = ""
        self._skip = skip_bytes
        self.num_tokens = 0
        self.stopped: StopMatch | None = None

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is safe to send. Nothing after a stop."""
        if not self._searches:
            self.num_tokens += len(ids)
            return self._decode(self._unskipped(b"".join([self._pieces[i] for i in ids])))
        sent = []
        for token_id in ids:
            if self.stopped:
                break
            self.num_tokens += 1
            sent.append(self._release(self._decode(self._unskipped(self._pieces[token_id]))))
        return "".join(sent)

    def replace(self, drop: int, skip: int) -> None:
        """The next ids take the place of the last `drop` ones, with whose `skip` bytes they
        begin."""
        self.num_tokens -= drop
        self._skip += skip

    def _unskipped(self, data: bytes) -> bytes:
        if not self._skip:
            return data
        skip = min(self._skip, len(data))
        self._skip -= skip
        return data[skip:]

    def push_hidden(self) -> None:
        """Count a token whose text is not to be shown: the stop token that ended the request."""
        if not self.stopped:
            self.num_tokens += 1

    def finish(self) -> str:
        """The text still held back; an incomplete character at the end becomes U+FFFD."""
        if self.stopped:
            return ""
        rest = self._held + self._decode(b"", True)
        self._held = ""
        return rest

    def _release(self, new: str) -> str:
        """Search `new`, the text of one token; return what can no longer become a stop string."""
        text = self._held + new
        found = [
            (len(self._held) + end - len(search.text), end, search.text)
            for search in self._searches
            for end in search.feed(new)
        ]
        if found and self.num_tokens >= self._min_new_tokens:
            start, _, stop = min(found)
            self.stopped = StopMatch(stop, self.num_tokens)
            self._held = ""
            return text[:start]
        safe = len(text) - max(search.matched for search in self._searches)
        self._held = text[safe:]
        return text[:safe]


class _StopSearch:
    """Knuth-Morris-Pratt for one stop string over a text that comes in pieces.

    `matched` is the length of the longest proper prefix of the stop string that the text ends
    with: exactly what must be held back for it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def feed(self, piece: str) -> Iterator[int]:
        """Read `piece` to its end; yield the offset in it just behind each occurrence."""
        text, borders, matched = self.text, self._borders, self.matched
        if not matched and text[0] not in piece:
            return
        for end, char in enumerate(piece, start=1):
            while matched and char != text[matched]:
                matched = borders[matched]
            matched += char == text[matched]
            if matched == len(text):
                yield end
                matched = borders[matched]
        self.matched = matched


def _borders(text: str) -> list[int]:
    """For each length n: the longest proper prefix of `text[:n]` that is also its suffix."""
    borders = [0, 0]
    for char in text[1:]:
        border = borders[-1]
        while border and char != text[border]:
            border = borders[border]
        borders.append(border + (char == text[border]))
    return borders
