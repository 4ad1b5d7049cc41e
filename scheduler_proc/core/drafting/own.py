"""Guesses from a req's own tokens: edits, quotes and lists repeat what is in the prompt or in the
output so far.

Source: Saxena, "Prompt Lookup Decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding.
"""

import numpy as np

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.drafting.ngrams import NgramIndex, Trail
from scheduler_proc.core.requests.request import Req

LEAST = 2  # a match of one token accepts little


class OwnTokens:
    """The longest match of the last 2 to 8 tokens within the tokens before, the latest first; it
    grows while it goes on. Costs 8 bytes per token of a req that has asked."""

    name = "own"

    def __init__(self) -> None:
        self._reqs: dict[int, tuple[NgramIndex, Trail]] = {}  # by handle

    def match(self, req: Req, most: int) -> Match | None:
        if req.handle not in self._reqs:
            self._reqs[req.handle] = NgramIndex(LEAST), Trail()
        index, trail = self._reqs[req.handle]
        seen = trail.seen
        if (kept := trail.kept(req.tokens)) < seen:
            index.cut(kept)
        known = req.tokens.known
        index.grow(known)
        if not trail.follow(index, known, known):
            return None
        tokens = _going_on(req, trail.at, most)
        return Match(trail.length, tokens) if len(tokens) else None

    def ended(self, req: Req) -> None:
        self._reqs.pop(req.handle, None)


def _going_on(req: Req, at: int, most: int) -> np.ndarray:
    """The req's tokens from position `at` on, up to a picture. After the last known one comes what
    would if the text went on as it did since `at`: it has a period."""
    known = req.tokens.known
    stop = at + most
    if req.spans and (pictures := req.spans.within(at, stop)):
        stop = max(at, pictures[0].start)
    if stop <= len(known):
        return known[at:stop].copy()
    return known[at + np.arange(most) % (len(known) - at)]
