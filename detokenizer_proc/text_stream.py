"""Turns one request's ids into text, increment by increment, up to what stops it.

Called by the detokenizer core for every token. Invariants: the returned pieces joined are the
text of all ids (without the bytes to skip, and cut at the stop string or pattern, if one was
found); no piece is ever taken back; the work per token does not grow with the text.
"""

from collections.abc import Sequence
from typing import NamedTuple

from srt.files.vocab import text_decoder
from srt.patterns.stop_search import Found, PatternSearch, StopSearch, StringSearch


class Stops(NamedTuple):
    """What ends a request's text: strings, and patterns, whose shortest match counts.

    They count only if they are complete at token `min_new_tokens` or later. The text ends before
    the match, or with `kept` after it.
    """

    strings: Sequence[str] = ()
    patterns: Sequence[str] = ()
    min_new_tokens: int = 0
    kept: bool = False


NO_STOPS = Stops()


class StopMatch(NamedTuple):
    """A stop string or pattern that was found, and the number of tokens it was complete at."""

    matched: str
    num_tokens: int


class TextStream:
    """Decodes one request. `pieces[i]` are the bytes of id i (none for a hidden special token).

    Text is held back while its bytes are an incomplete character, or while its end may be the
    beginning of a stop. The first `skip_bytes` bytes are not part of the text. The prompt ends with
    `begun`, the first bytes of a character: with the rest of it, the text begins with all of it.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        stops: Stops = NO_STOPS,
        skip_bytes: int = 0,
        begun: bytes = b"",
    ) -> None:
        self._pieces = pieces
        self._decode = text_decoder(begun)
        self._stops = stops
        self._searches: list[StopSearch] = [
            StringSearch(text) for text in dict.fromkeys(stops.strings)
        ]
        if stops.patterns:
            self._searches.append(PatternSearch(tuple(stops.patterns)))
        self._held = ""
        self._stop_token = ""  # its text, if it is shown
        self._skip = skip_bytes
        self.num_tokens = 0
        self._num_text_tokens = 0  # up to the last one that added text
        self.stopped: StopMatch | None = None

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; returns the text that is safe to send: nothing after a stop."""
        if not self._searches:
            self.num_tokens += len(ids)
            data = b"".join(map(self._pieces.__getitem__, ids))
            return self._decode(self._unskipped(data) if self._skip else data)
        sent = []
        for token_id in ids:
            if self.stopped:
                break
            self.num_tokens += 1
            sent.append(self._release(self._decode(self._unskipped(self._pieces[token_id]))))
        return "".join(sent)

    def replace(self, drop: int, skip: int) -> None:
        """The next ids replace the last `drop` ones, and begin with the `skip` bytes of those."""
        self.num_tokens -= drop
        self._skip += skip

    def _unskipped(self, data: bytes) -> bytes:
        if not self._skip:
            return data
        skip = min(self._skip, len(data))
        self._skip -= skip
        return data[skip:]

    def push_stop_token(self, token_id: int) -> None:
        """Take the stop token that ended the request: its text is shown if stops are kept, and is
        not searched for stops."""
        if self.stopped:
            return
        self.num_tokens += 1
        if self._stops.kept:
            self._stop_token = self._decode(self._unskipped(self._pieces[token_id]))

    def finish(self, is_complete: bool = True, is_cut: bool = False) -> str:
        """The text still held back. An incomplete character at the end becomes U+FFFD, but nothing
        if the text `is_cut` by a limit: who goes on with it gets all of that character. What is a
        stop only at the end counts if the text `is_complete`, not cut off by an abort."""
        if self.stopped:
            return ""
        rest = self._stop_token + self._decode(b"", True)
        if is_complete and (found := self._counting(self._found_at_end(rest))):
            return self._cut(found, self._held)
        text, self._held = self._held + ("" if is_cut else rest), ""
        return text

    def _found_at_end(self, rest: str) -> list[Found]:
        """The match that waited for `rest`, which is not itself searched, or for the end."""
        if not rest:
            return [find for search in self._searches for find in search.at_end()]
        found = [find for search in self._searches for find in search.feed(rest[0])]
        return [find for find in found if find.end <= 0]

    def _release(self, new: str) -> str:
        """Search `new`, the text of one token; returns what can no longer belong to a stop.

        Of several matches in one token's text, the one that begins first counts.
        """
        text = self._held + new
        found = [find for search in self._searches for find in search.feed(new)]
        if counting := self._counting(found):
            return self._cut(counting, text)
        if new:
            self._num_text_tokens = self.num_tokens
        safe = len(text) - max(search.held for search in self._searches)
        self._held = text[safe:]
        return text[:safe]

    def _complete_at(self, find: Found) -> int:
        """At how many tokens a match is complete: the last may only have shown that it ended."""
        return self.num_tokens if find.end > 0 else min(self._num_text_tokens, self.num_tokens)

    def _counting(self, found: Sequence[Found]) -> list[Found]:
        return [f for f in found if self._complete_at(f) >= self._stops.min_new_tokens]

    def _cut(self, found: Sequence[Found], text: str) -> str:
        """`text`, which begins with what is held, up to the first match."""
        first = min(found)
        self.stopped = StopMatch(first.matched, self._complete_at(first))
        cut = len(self._held) + (first.end if self._stops.kept else first.start)
        self._held = ""
        return text[:cut]
