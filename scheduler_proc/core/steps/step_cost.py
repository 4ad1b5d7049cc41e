"""What a step takes by its size, measured: `base + n * each` seconds.

Both come from a least-squares fit, so that what was measured at low load holds at high load. What
guessed tokens add is fitted on its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

MEMORY_S = 20.0  # of busy time, after which a step counts 1/e of what it did
MAX_SURPRISE = 8.0  # a step counts as at most this many times what it was expected to take
FIRST_STEP = 0.05  # of a step is what one counts before which nothing is known: it may be cold
DRAFTING_STEPS = 64  # after which one that drafts counts 1/e of what it did
PRIOR_STEPS = 8.0  # that draft, as many count what is expected before there are any
PRIOR_SUMS = 1.0, 3.75, 21.25  # of 1, drafted, drafted², by step: they draft 1, 2, 4 and 8 tokens
SIMPLER = 0.02  # what drafting costs at all has to explain more than chance would


class StepSize(NamedTuple):
    """The tokens of a step: one of each row that decodes, guesses, and those of prompts and jumps,
    the others."""

    decodes: int = 0
    others: int = 0
    drafted: int = 0

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.decodes + self.others + self.drafted


NOTHING = StepSize()
TimedSteps = Sequence[tuple[StepSize, float]]  # with their seconds


class StepCost:
    """Seconds of a step by its tokens: a line through the steps of the recent past."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, tokens, seconds, tokens², tokens·seconds
        self._slope = 0.0  # when the steps were last of several sizes

    def add(self, tokens: int, seconds: float, keep: float, weight: float = 1.0) -> None:
        """Add a step; the earlier ones now count `keep` times what they did."""
        base_s, token_s = self.line()
        expected_s = base_s + token_s * tokens
        if expected_s > 0:  # a machine that stood still says nothing of the next step
            seconds = min(seconds, MAX_SURPRISE * expected_s)
        else:
            weight = FIRST_STEP
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        sums = zip(self._sums, new, strict=True)
        self._sums = [keep * old + weight * value for old, value in sums]
        self._fit_slope()

    def scale(self, factor: float) -> None:
        """All steps so far took so many times as long."""
        count, tokens, seconds, squares, products = self._sums
        self._sums = [count, tokens, factor * seconds, squares, factor * products]
        self._slope *= factor

    @property
    def mean_tokens(self) -> float:
        """Tokens of a step, on average."""
        return self._sums[1] / self._sums[0] if self._sums[0] else 0.0

    @property
    def mean_s(self) -> float:
        """Seconds of a step, on average."""
        return self._sums[2] / self._sums[0] if self._sums[0] else 0.0

    def line(self) -> tuple[float, float]:
        """Seconds of any step and seconds of each of its tokens; zeros before the first step."""
        count, tokens, seconds, _, _ = self._sums
        if tokens == 0.0:
            return 0.0, 0.0
        base_s = (seconds - self._slope * tokens) / count
        if self._slope <= 0.0 or base_s <= 0.0:
            return 0.0, seconds / tokens
        return base_s, self._slope

    def _fit_slope(self) -> None:
        """The least-squares line. Steps of one size cannot separate base and slope: then the slope
        of earlier steps still holds; if there were none, all time is the tokens'."""
        count, tokens, seconds, squares, products = self._sums
        spread = squares * count - tokens * tokens
        if spread > 1e-6 * squares * count:
            self._slope = (products * count - tokens * seconds) / spread


class DraftCost:
    """Seconds that drafts add to a step: `fixed_s + drafted * token_s`, by least squares over the
    recent past, neither of them below 0.

    The first guess of a step costs more than the next ones: the step is laid out when the one
    before has ended, and no longer has the kernels, or the graph, of one token per row.

    At first a guess is expected to cost what a prompt's token does, which fades with what is
    measured. Else a machine that was busy elsewhere in the first of these steps would make guesses
    look so dear that hardly any were made, which would tell otherwise.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of 1, drafted, seconds, drafted², drafted·seconds
        self._weight = 0.0  # of the latest step
        self._prior = PRIOR_STEPS

    def add(self, drafted: int, extra_s: float, without_s: float, keep: float) -> None:
        """Add a step that took `extra_s` longer than the `without_s` that it would have taken
        without drafts; the earlier ones now count `keep` times what they did, or less. Steps count
        by how much longer drafts make them: else those of large batches would be all."""
        keep *= 1 - 1 / DRAFTING_STEPS
        self._weight = 1 / without_s**2
        weight = self._weight * (1.0 if any(self._sums) else FIRST_STEP)
        self._prior *= keep
        new = (1.0, drafted, extra_s, drafted * drafted, drafted * extra_s)
        sums = zip(self._sums, new, strict=True)
        self._sums = [keep * old + weight * value for old, value in sums]

    def line(self, token_s: float) -> tuple[float, float]:
        """Seconds of drafting at all, and of each drafted token; before the first step that drafts
        these are 0 and `token_s`, that of a prompt's token. Where all steps draft equally many, all
        time is the tokens'."""
        if not any(self._sums):
            return 0.0, token_s
        one, tokens, squared = PRIOR_SUMS
        prior = one, tokens, tokens * token_s, squared, squared * token_s
        count, drafted, seconds, squares, products = (
            value + self._prior * self._weight * expected
            for value, expected in zip(self._sums, prior, strict=True)
        )
        spread = (1 + SIMPLER) * count * squares - drafted * drafted
        fixed_s = (seconds * squares - products * drafted) / spread
        fixed_s = max(0.0, min(fixed_s, seconds / count))
        return fixed_s, max(0.0, (products - fixed_s * drafted) / squares)
