"""Guesses from the outputs of requests that have ended: answers to like questions are alike."""

import numpy as np

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.drafting.ngrams import GAP, NgramIndex, Trail
from scheduler_proc.core.requests.request import Req

LEAST = 3  # shorter matches are too often chance where nothing else is in common
MOST_TOKENS = 1 << 16
MOST_SALTS = 64


class _Text:
    """The outputs of one salt, a GAP after each, in a buffer that grows. `era` is another number
    whenever places have moved."""

    def __init__(self, tokens: np.ndarray, era: int) -> None:
        self._buffer = tokens
        self.length = len(tokens)
        self.era = era
        self.index = NgramIndex(LEAST)
        self.index.grow(tokens)

    @property
    def tokens(self) -> np.ndarray:
        """int32 [length], a view."""
        return self._buffer[: self.length]

    def add(self, output: np.ndarray) -> None:
        start, self.length = self.length, self.length + len(output) + 1
        if self.length > len(self._buffer):
            larger = np.empty(self.length + start, np.int32)
            larger[:start] = self._buffer[:start]
            self._buffer = larger
        self._buffer[start : self.length - 1] = output
        self._buffer[self.length - 1] = GAP
        self.index.grow(self.tokens)


class SeenOutputs:
    """The longest match of a req's last 3 to 8 tokens in outputs of the same salt, the latest
    first; it grows while it goes on. Other salts' outputs are never looked at: how soon tokens come
    would tell what is in them.

    Of all salts together the last `most_tokens` tokens are kept, up to 16 bytes for each, of at
    most `most_salts` salts: what is too much goes with the salt that was used least recently; if
    there is but one, with the older half of its outputs. Of a longer output than half of that the
    end is kept. Only outputs of reqs that were not aborted are kept."""

    name = "seen"

    def __init__(self, most_tokens: int = MOST_TOKENS, most_salts: int = MOST_SALTS) -> None:
        self._most_tokens, self._most_salts = most_tokens, most_salts
        self._texts: dict[str, _Text] = {}  # by salt, the most recently used last
        self._trails: dict[int, tuple[Trail, int]] = {}  # by handle, with the era of the text
        self._eras = 0
        self.num_tokens = 0  # in all texts, gaps included

    def match(self, req: Req, most: int) -> Match | None:
        text = self._texts.get(req.wish.salt)
        if text is None:
            return None
        trail, era = self._trails.get(req.handle) or (Trail(), -1)
        if era != text.era:
            self._texts[req.wish.salt] = self._texts.pop(req.wish.salt)
            trail.length = 0
            self._trails[req.handle] = trail, text.era
        trail.kept(req.tokens)
        if not trail.follow(text.index, text.tokens, req.tokens.known):
            return None
        tokens = text.tokens[trail.at : trail.at + most]
        listed = tokens.tolist()
        count = listed.index(GAP) if GAP in listed else most
        return Match(trail.length, tokens[:count].copy())

    def ended(self, req: Req) -> None:
        self._trails.pop(req.handle, None)
        # With its GAP no more than half of the bound, so that what is halved keeps all of it.
        output = req.tokens.outputs[1 - self._most_tokens // 2 :]
        is_aborted = req.finish is None or req.finish.type == "abort"
        if is_aborted or len(output) <= LEAST:
            return
        text = self._texts.pop(req.wish.salt, None) or self._text(np.empty(0, np.int32))
        self._texts[req.wish.salt] = text
        text.add(output)
        self.num_tokens += len(output) + 1
        while self.num_tokens > self._most_tokens or len(self._texts) > self._most_salts:
            self._forget_some()

    def clear(self) -> None:
        """Forget all outputs."""
        self._texts.clear()
        self.num_tokens = 0

    def _text(self, tokens: np.ndarray) -> _Text:
        self._eras += 1
        return _Text(tokens, self._eras)

    def _forget_some(self) -> None:
        salt, text = next(iter(self._texts.items()))
        del self._texts[salt]
        self.num_tokens -= text.length
        if not self._texts:
            kept = text.tokens[(text.length + 1) // 2 :].copy()
            self._texts[salt] = self._text(kept)
            self.num_tokens += len(kept)
