"""What a back end reports of texts after a prompt: their tokens' log-probabilities."""

import math

from msgspec import Struct


class Scored(Struct, frozen=True):
    """One continuation's log-probabilities (natural) after a prompt, token by token.

    A token at the very start of everything has none (None). `unconditional` are those of the same
    tokens with no prompt before them; it is empty unless it was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    unconditional: tuple[float | None, ...] = ()

    @property
    def total(self) -> float:
        """The log-probability of the whole text."""
        return math.fsum(value for value in self.logprobs if value is not None)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0.0 where none has one."""
        count = sum(value is not None for value in self.logprobs)
        return self.total / count if count else 0.0


class Scores(Struct, frozen=True):
    """All continuations of one prompt, in the order asked for, and the tokens that took."""

    continuations: tuple[Scored, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0
