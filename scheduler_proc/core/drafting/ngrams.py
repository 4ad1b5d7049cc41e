"""Where the last tokens of a req have come before in a text, and what came then.

A text is an int32 array that grows at its end: a req's own tokens, or outputs of others one after
the other with a `GAP` after each. A place is a position in it, seen as the token that comes next.

The index has places in sorted runs, whose lengths grow geometrically as those of a log-structured
merge tree (O'Neil et al., "The Log-Structured Merge-Tree", 1996), 8 bytes per token; the newest
places are in no run yet and are scanned. So a token costs O(log n) amortised. A place is sorted by
a code of the tokens before it, the nearest first: those with the longest match are neighbours of
the place that is asked for, as in a suffix array. A code has few bits of each token. It says where
to look and nothing else: the tokens themselves are compared.
"""

from bisect import bisect_left

import numpy as np

from scheduler_proc.core.requests.tokens import Tokens

GAP = -1  # in a text; no token
LONGEST = 8  # tokens that a search compares
MOST_SCANNED = 512  # places: about as dear as a look into one more run
MERGED = 4  # a new run takes in older ones up to as many times as long
MOST_PLACES = 512  # that a search takes from each run
FEW = 16  # of these are compared, the latest

# Of each token, the nearest first, a code has as many bits of a mix (Fibonacci hashing, Knuth,
# "The Art of Computer Programming"), since ids may be alike in some bits. Two tokens tell most
# places apart: few are left for which those further back matter.
WIDTHS = (9, 9, 7, 7, 6, 5, 4, 3)
FACTOR, WORD = 2_654_435_769, 1 << 32
BELOW = [sum(WIDTHS[length:]) for length in range(LONGEST + 1)]  # bits of tokens further back
HALF = LONGEST // 2
# By how many of their lowest bits two codes may differ: how many tokens seem to be the same.
SAME = [max(n for n in range(LONGEST + 1) if BELOW[n] >= bits) for bits in range(BELOW[0] + 1)]
LEAST_PLACE_BITS = 63 - BELOW[0]


class _Run:
    """Places in [start, stop), as int64 [n], sorted: a code, and in its lowest `_bits` bits a place
    from `start` on. If these need many bits, the code has lost some of its lowest."""

    def __init__(self, text: np.ndarray, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._bits = max(LEAST_PLACE_BITS, (stop - start).bit_length())
        self._lost = self._bits - LEAST_PLACE_BITS
        first = start - LONGEST
        part = text[max(0, first) : stop].view(np.uint32)
        if first < 0:  # before the text
            part = np.concatenate((np.zeros(-first, np.uint32), part))
        entries = _half_codes(part, 0)
        entries <<= BELOW[HALF]
        entries |= _half_codes(part, HALF)
        entries >>= self._lost
        entries <<= self._bits
        entries |= np.arange(stop - start)
        if (gaps := text[start:stop] == GAP).any():
            entries = entries[~gaps]
        entries.sort()
        self._take(entries)

    def _take(self, entries: np.ndarray) -> None:
        self._entries = entries
        self._view = entries.data  # faster where there are few

    def cut(self, stop: int) -> None:
        self._take(self._entries[(self._entries & ((1 << self._bits) - 1)) < stop - self.start])
        self.stop = stop

    def seems(self, code: int) -> int:
        """Of how many tokens the longest match is, or fewer."""
        code >>= self._lost
        view, bits = self._view, self._bits
        at = bisect_left(view, code << bits)
        differing = (1 << BELOW[0] - self._lost) - 1
        if at < len(view):
            differing = (view[at] >> bits) ^ code
        if at > 0:
            differing = min(differing, (view[at - 1] >> bits) ^ code)
        return SAME[differing.bit_length() + self._lost] if differing else LONGEST

    def places(self, code: int, length: int) -> list[int]:
        """The latest places before which as many tokens seem to match, the latest first."""
        below = max(BELOW[length], self._lost)
        shift = below - self._lost + self._bits
        code >>= below
        low = bisect_left(self._view, code << shift)
        high = bisect_left(self._view, (code + 1) << shift, low)
        mask = (1 << self._bits) - 1
        if high - low <= FEW:
            return sorted((self.start + (e & mask) for e in self._view[low:high]), reverse=True)
        places = self._entries[max(low, high - MOST_PLACES) : high] & mask
        places.sort()
        return [self.start + place for place in places[: -FEW - 1 : -1].tolist()]


def _half_codes(text: np.ndarray, first: int) -> np.ndarray:
    """Of each place but the first `LONGEST`, the bits of `HALF` of the tokens before it, without
    the nearest `first`: int64 [n - LONGEST]."""
    codes = np.zeros(len(text) - LONGEST, np.uint32)
    mixed = text * np.uint32(FACTOR)
    for back, width in enumerate(WIDTHS[first : first + HALF], first + 1):
        codes <<= np.uint32(width)
        codes |= mixed[LONGEST - back : -back] >> np.uint32(32 - width)
    return codes.astype(np.int64)


class NgramIndex:
    """The places of one text. Where too many of a run seem to match, a later or longer match there
    may be missed."""

    def __init__(self, least: int) -> None:
        """`least` tokens make a match."""
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
        while self._runs and self._runs[-1].stop - self._runs[-1].start <= MERGED * (stop - start):
            start = self._runs.pop().start
        self._runs.append(_Run(text, start, stop))

    def cut(self, length: int) -> None:
        """The text's tokens are others now after the first `length`."""
        while self._runs and self._runs[-1].start >= length:
            self._runs.pop()
        if self._runs and self._runs[-1].stop > length:
            self._runs[-1].cut(length)

    def find(self, text: np.ndarray, known: np.ndarray) -> tuple[int, int] | None:
        """The longest match of the last of the tokens `known` (int32 [n]), of at most `LONGEST` of
        them, as (length, place), the latest of those as long; None if it is shorter than `least`.
        """
        last = known[-LONGEST:]
        recent: list[int] = last[::-1].tolist()
        if len(recent) < self.least:
            return None
        longest, at = self._scanned(text, last.tobytes(), recent)
        code = 0
        if longest < len(recent) and self._runs:
            for token, width in zip(recent, WIDTHS, strict=False):
                code = code << width | token * FACTOR % WORD >> 32 - width
            code <<= BELOW[len(recent)]
        for run in reversed(self._runs):
            if longest == len(recent):
                break
            seeming = min(len(recent), run.seems(code))
            while seeming > longest:
                for place in run.places(code, seeming):
                    length = _common(text, place, recent)
                    if length >= seeming:
                        longest, at = length, place
                        break
                seeming -= 1
        return (longest, at) if longest >= self.least else None

    def _scanned(self, text: np.ndarray, last: bytes, recent: list[int]) -> tuple[int, int]:
        """`find` among the places that are in no run; a length below `least` if there is none. A
        search for bytes is far faster than one for tokens."""
        size = text.itemsize
        first = max(0, self._stop - LONGEST)
        part = text[first:].tobytes()
        stop = len(part) - size  # something must come after a match
        longest, at = self.least - 1, 0
        while longest < len(recent):
            pattern = last[-size * (longest + 1) :]
            found = part.rfind(pattern, 0, max(0, stop))
            if found < 0:
                break
            stop = found + len(pattern)
            place = first + stop // size
            if found % size or text[place] == GAP:
                stop -= 1
                continue
            longest, at = _common(text, place, recent), place
            stop -= size
        return longest, at


def _common(text: np.ndarray, place: int, recent: list[int]) -> int:
    """How many tokens before a place are the same as the `recent` ones, the newest first."""
    length = 0
    for token in text[max(0, place - len(recent)) : place][::-1].tolist():
        if token != recent[length]:
            break
        length += 1
    return length


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
            found = index.find(text, known)
            self.length, self.at = found or (0, 0)
        self.seen = len(known)
        return self.length > 0

    def _goes_on(self, text: np.ndarray, known: np.ndarray) -> bool:
        new = known[self.seen :]
        stop = self.at + len(new)
        if text[self.at : stop].tobytes() != new.tobytes():
            return False
        self.at = stop
        self.length += len(new)
        return bool(text[stop] != GAP)
