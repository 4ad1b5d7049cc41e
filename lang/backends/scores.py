"""What a back end reports of texts after a prompt: their tokens' log-probabilities."""

from msgspec import Struct

from srt.client.generation import Likelihood


class Scored(Likelihood, Struct, frozen=True):
    """One continuation's log-probabilities after a prompt, token by token. `unconditional` are
    those of the same tokens with no prompt before them; it is empty unless it was asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    unconditional: tuple[float | None, ...] = ()


class Scores(Struct, frozen=True):
    """All continuations of one prompt, in the order asked for, and the tokens that took."""

    continuations: tuple[Scored, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0
