"""A source of guesses for tests: it knows what comes, and is wrong as often as it is told."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.requests.request import Req


class Knowing:
    """`truth(rid)` is the whole output of a req. Of the tokens that it guesses, the share `right`
    is right; some guesses go on behind the output's end."""

    name = "own"

    def __init__(
        self, truth: Callable[[str], Sequence[int]], right: float, seed: int, vocab: int
    ) -> None:
        self._truth, self._right, self._vocab = truth, right, vocab
        self._rng = random.Random(seed)
        self.ended_rids: set[str] = set()

    def match(self, req: Req, most: int) -> Match | None:
        rng, first = self._rng, req.tokens.known_len - req.tokens.prompt_len
        after = [rng.randrange(self._vocab) for _ in range(most)]
        tokens = [*self._truth(req.wish.rid)[first : first + most], *after][:most]
        wrong = [rng.random() >= self._right for _ in tokens]
        tokens = [
            rng.randrange(self._vocab) if w else t for t, w in zip(tokens, wrong, strict=True)
        ]
        count = rng.randint(0, most)
        return Match(rng.randint(2, 8), np.array(tokens[:count], np.int32)) if count else None

    def ended(self, req: Req) -> None:
        self.ended_rids.add(req.wish.rid)
