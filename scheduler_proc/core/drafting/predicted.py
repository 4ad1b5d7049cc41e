"""Guesses from the text that a request expects as its answer, its `prediction`: an edited file is
mostly what it was before."""

import numpy as np

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.drafting.ngrams import GAP, LONGEST, NgramIndex, Trail
from scheduler_proc.core.requests.request import Req

LEAST = 2


class PredictedTokens:
    """What comes next in the prediction: from its beginning on while the output is the same, and
    where it differs, after the longest match of the last 2 to 8 tokens. Costs 12 bytes per token of
    the prediction of a req that has asked. Other reqs are never told."""

    name = "prediction"

    def __init__(self) -> None:
        self._reqs: dict[int, tuple[np.ndarray, NgramIndex, Trail]] = {}  # by handle

    def match(self, req: Req, most: int) -> Match | None:
        if len(req.wish.prediction) == 0:
            return None
        if req.handle not in self._reqs:
            self._reqs[req.handle] = _begun(req)
        text, index, trail = self._reqs[req.handle]
        trail.kept(req.tokens)
        if not trail.follow(index, text, req.tokens.known):
            return None
        tokens = text[trail.at : min(trail.at + most, len(text) - 1)]
        return Match(trail.length, tokens.copy()) if len(tokens) else None

    def ended(self, req: Req) -> None:
        self._reqs.pop(req.handle, None)


def _begun(req: Req) -> tuple[np.ndarray, NgramIndex, Trail]:
    """The prediction with a GAP after it, and a match of what is before the output."""
    text = np.append(req.wish.prediction, np.int32(GAP))
    index = NgramIndex(LEAST)
    index.grow(text)
    trail = Trail()
    trail.num_replaced = req.tokens.num_replaced
    trail.seen, trail.length = req.tokens.prompt_len, LONGEST
    return text, index, trail
