"""What the scheduler core needs of those that guess how a request goes on.

A guess is never trusted: the step that extends it also samples at each of its tokens, and takes
over those that are what it would have sampled anyway. So guesses change how fast tokens come, and
not which.
"""

from typing import NamedTuple, Protocol

import numpy as np

from scheduler_proc.core.requests.request import Req


class Match(NamedTuple):
    """Where a req's known tokens have come before: their last `length` tokens are the same, and
    `tokens` (int32 [n], one at least) is what came then."""

    length: int
    tokens: np.ndarray


class Source(Protocol):
    """Guesses for the reqs of one core. No I/O, no clock, no randomness: a recorded trace replays.

    A small model, or heads that come with a model, would be another source; these may ask for the
    hidden states of accepted tokens.
    """

    name: str

    def match(self, req: Req, most: int) -> Match | None:
        """What may come after the known tokens of a running req, up to `most` tokens (1 at least);
        None if there is nothing to go by. Called again and again as they grow by a few tokens, or
        have some at their end replaced: then it costs O(1), whatever the req's length."""

    def ended(self, req: Req) -> None:
        """Forget what is kept for the req, which has ended, however it did. It still has its
        tokens."""
