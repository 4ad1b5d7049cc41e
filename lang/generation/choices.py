"""How select decides, given the log-probabilities of every choice's tokens after the prompt.

`Select` asks the back end for them and calls the method; a program may bring its own by a
subclass of `ChoicesSamplingMethod`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from msgspec import Struct

from lang.backends.base import Scored, Scores
from srt.client.generation import softmax


class ChoicesDecision(Struct, frozen=True):
    """The choice made, and what `get_meta_info` has about it."""

    decision: str
    meta_info: dict[str, Any] = {}


class ChoiceLogprobs(TypedDict):
    """The arguments of a method. Token log-probabilities are rows of [logprob, token id, text or
    None]."""

    choices: Sequence[str]
    normalized_prompt_logprobs: Sequence[float]
    input_token_logprobs: Sequence[list[Any]]
    output_token_logprobs: Sequence[list[Any]]
    unconditional_token_logprobs: NotRequired[Sequence[list[Any]] | None]


class ChoicesSamplingMethod(ABC):
    """Decides among scored choices. `requires_unconditional_logprobs`: those are needed too."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return False

    @abstractmethod
    def __call__(self, **given: Unpack[ChoiceLogprobs]) -> ChoicesDecision:
        """The decision. A method may as well name the arguments that it needs, and take the others
        as `**_`."""


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The choice with the highest mean log-probability of a token."""

    def __call__(self, **given: Unpack[ChoiceLogprobs]) -> ChoicesDecision:
        return ChoicesDecision(given["choices"][_argmax(given["normalized_prompt_logprobs"])])


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token: of the choices left, keep those whose next token is the likeliest.

    A choice that has ended is continued with its own mean log-probability.
    """

    def __call__(self, **given: Unpack[ChoiceLogprobs]) -> ChoicesDecision:
        rows = [[token[0] or 0.0 for token in row] for row in given["input_token_logprobs"]]
        width = max(map(len, rows), default=0)
        means = zip(rows, given["normalized_prompt_logprobs"], strict=True)
        matrix = [row + [mean] * (width - len(row)) for row, mean in means]
        left = list(range(len(rows)))
        for column in range(width):
            best = max(matrix[i][column] for i in left)
            left = [i for i in left if matrix[i][column] == best]
        return ChoicesDecision(given["choices"][left[0]], {"greedy_logprob_matrix": matrix})


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice whose tokens gain most from the prompt: the mean of their log-probabilities,
    minus the mean of those without any prompt."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, **given: Unpack[ChoiceLogprobs]) -> ChoicesDecision:
        unconditional = given.get("unconditional_token_logprobs")
        if unconditional is None:
            raise ValueError("choices_method needs unconditional log-probabilities")
        pairs = zip(given["input_token_logprobs"], unconditional, strict=True)
        gains = [_mean_gain(after_prompt, alone) for after_prompt, alone in pairs]
        return ChoicesDecision(
            given["choices"][_argmax(gains)],
            {
                "unconditional_token_logprobs": list(unconditional),
                "normalized_unconditional_prompt_logprobs": gains,
            },
        )


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def decide(method: ChoicesSamplingMethod, scores: Scores) -> ChoicesDecision:
    """Ask `method`, and add to its meta info what every method has: the log-probabilities, the
    tokens and, in `probabilities`, the distribution over the choices."""
    scored = scores.continuations
    rows = [_rows(one.token_ids, one.logprobs) for one in scored]
    alone = [_rows(one.token_ids, one.unconditional) for one in scored if one.unconditional]
    normalized = [one.mean for one in scored]
    decision = method(
        choices=[one.text for one in scored],
        normalized_prompt_logprobs=normalized,
        input_token_logprobs=rows,
        output_token_logprobs=[[] for _ in scored],
        unconditional_token_logprobs=alone if len(alone) == len(rows) else None,
    )
    meta = {
        "normalized_prompt_logprobs": normalized,
        "input_token_logprobs": rows,
        "output_token_logprobs": [[] for _ in scored],
        "probabilities": distribution(scored),
        **counts(scores, decision.decision),
    }
    return ChoicesDecision(decision.decision, meta | decision.meta_info)


def distribution(scored: Sequence[Scored]) -> dict[str, float]:
    """The probability of each text among these: the softmax of the sums over their tokens."""
    totals = {one.text: one.total for one in scored}
    return dict(zip(totals, softmax(list(totals.values())), strict=True))


def counts(scores: Scores, taken: str | None = None) -> dict[str, int]:
    """The tokens of the prompt, and those of the text that was `taken`, which no step sampled."""
    lengths = {one.text: len(one.token_ids) for one in scores.continuations}
    return {
        "prompt_tokens": scores.prompt_tokens,
        "cached_tokens": scores.cached_tokens,
        "completion_tokens": 0 if taken is None else lengths.get(taken, 0),
    }


def _rows(ids: Sequence[int], values: Sequence[float | None]) -> list[list[Any]]:
    return [[value, i, None] for value, i in zip(values, ids, strict=True)]


def _mean_gain(given: Sequence[list[Any]], alone: Sequence[list[Any]]) -> float:
    pairs = zip(given, alone, strict=True)
    gains = [(mine[0] or 0.0) - (other[0] or 0.0) for mine, other in pairs]
    return sum(gains) / max(1, len(gains))


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
