"""Where the last tokens of a req have come before in a text, and what came then.

A text is an int32 array that grows at its end: a req's own tokens, or outputs of others one after
the other with a `GAP` after each. A place is a position in it, seen as the token that comes next.

The index has places in sorted runs, whose lengths grow geometrically as those of a log-structured
merge tree (O'Neil et al., "The Log-Structured Merge-Tree", 1996), 8 bytes per token; the newest
places are in no run yet and are scanned. So a token costs O(log n) amortised, and a search a few
calls of numpy. A place is sorted by a hash of the tokens before it, which says where to look and
nothing else: the tokens themselves are compared.
"""

from dataclasses import dataclass

import numpy as np

from scheduler_proc.tokens import Tokens

GAP = -1  # in a text; no token
LONGEST = 8  # tokens that a search compares
MOST_SCANNED = 512  # places: about as dear as a look into one more run
MOST_PLACES = 256  # that a search takes from each run
FEW = 4  # places that are compared one by one

HASH_FACTOR = 1_640_531_527  # 2^32 over the golden ratio's square: odd, below 2^31
HASH_MASK = (1 << 31) - 1
PLACE_MASK = (1 << 32) - 1
NO_PLACES = np.empty(0, np.int64)


@dataclass(slots=True)
class _Run:
    """Places in [start, stop): int64 [n], hash * 2^32 + place, sorted. After a cut there may be
    others beyond `stop`."""

    start: int
    stop: int
    entries: np.ndarray

    def places(self, code: int) -> np.ndarray:
        """The last places of this hash, int64 [m], ascending."""
        code <<= 32
        low, high = self.entries.searchsorted((code, code | self.stop)).tolist()
        return self.entries[max(low, high - MOST_PLACES) : high] & PLACE_MASK


class NgramIndex:
    """The places of one text by the `least` tokens before them. Of these tokens' places in a run it
    compares the last `MOST_PLACES`; with more, a longer match further back may be missed."""

    def __init__(self, least: int) -> None:
        self.least = least
        self._runs: list[_Run] = []  # one after the other

    @property
    def _stop(self) -> int:
        """Where the places begin that are in no run."""
        return self._runs[-1].stop if self._runs else self.least

    def grow(self, text: np.ndarray) -> None:
        """Take in what is new at the text's end, once it is too much to be scanned."""
        start, stop = self._stop, len(text)
        if stop - start <= MOST_SCANNED:
            return
        while self._runs and self._runs[-1].stop - self._runs[-1].start <= stop - start:
            start = self._runs.pop().start
        codes = np.zeros(stop - start, np.int64)
        for back in range(self.least, 0, -1):
            codes *= HASH_FACTOR
            codes += text[start - back : stop - back]
            codes &= HASH_MASK
        codes <<= 32
        codes |= np.arange(start, stop)
        entries = codes[text[start:] != GAP]
        entries.sort()
        self._runs.append(_Run(start, stop, entries))

    def cut(self, length: int) -> None:
        """The text's tokens are others now after the first `length`."""
        while self._runs and self._runs[-1].start >= length:
            self._runs.pop()
        if self._runs:
            self._runs[-1].stop = min(self._runs[-1].stop, length)

    def find(self, text: np.ndarray, last: np.ndarray) -> tuple[int, int] | None:
        """The longest match of the tokens `last` (int32 [n], the newest first, at most `LONGEST`)
        as (length, place), the latest of those as long; None if it is shorter than `least`."""
        if len(last) < self.least:
            return None
        longest, at = self.least - 1, 0
        recent = last.tolist()
        for place in reversed(self._places(text, recent)):
            length = 0
            for token in text[max(0, place - len(recent)) : place][::-1].tolist():
                if token != recent[length]:
                    break
                length += 1
            if length > longest:
                longest, at = length, place
        return (longest, at) if longest >= self.least else None

    def _places(self, text: np.ndarray, recent: list[int]) -> list[int]:
        """A few places, ascending, among them that of the longest match, if there is any (and no
        other tokens have the same hash)."""
        code = 0
        for token in recent[self.least - 1 :: -1]:
            code = (code * HASH_FACTOR + token) & HASH_MASK
        parts = [run.places(code) for run in self._runs]
        start, stop = self._stop, len(text)
        if start < stop:
            hits = text[start - 1 : stop - 1] == recent[0]
            for back in range(1, self.least):
                hits &= text[start - 1 - back : stop - 1 - back] == recent[back]
            hits &= text[start:] != GAP
            parts.append(hits.nonzero()[0][-MOST_PLACES:] + start)
        places = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_PLACES
        depth = self.least
        while len(places) > FEW and depth < len(recent):
            longer = text.take(places - (depth + 1), mode="clip") == recent[depth]
            if places[0] <= depth:
                longer &= places > depth
            if not longer.any():
                break
            places = places[longer]
            depth += 1
        few: list[int] = places[-FEW:].tolist()
        return few


class Trail:
    """A req's match in a text, followed without a search as long as it goes on."""

    __slots__ = ("at", "length", "num_replaced", "seen")

    def __init__(self) -> None:
        self.length = 0  # of the match, 0 if there is none; it may have grown beyond `LONGEST`
        self.at = 0  # the place where it ends in the text
        self.seen = 0  # known tokens of the req at the last look
        self.num_replaced = 0  # as `Tokens` has it, then

    def kept(self, tokens: Tokens) -> int:
        """How many of the req's tokens are those of the last look; if some are not, the match is
        forgotten."""
        if tokens.num_replaced == self.num_replaced:
            return self.seen
        kept = min(self.seen, tokens.kept_since(self.num_replaced))
        self.num_replaced = tokens.num_replaced
        if kept < self.seen:
            self.length, self.seen = 0, kept
        return kept

    def follow(self, index: NgramIndex, text: np.ndarray, known: np.ndarray) -> bool:
        """Match the tokens that are `known` now, at least those that are `kept`; returns whether
        there is a match."""
        if self.length == 0 or not self._goes_on(text, known):
            found = index.find(text, known[: -LONGEST - 1 : -1])
            self.length, self.at = found or (0, 0)
        self.seen = len(known)
        return self.length > 0

    def _goes_on(self, text: np.ndarray, known: np.ndarray) -> bool:
        for token in known[self.seen :].tolist():
            if text[self.at] != token:
                return False
            self.at += 1
            self.length += 1
        return bool(text[self.at] != GAP)
