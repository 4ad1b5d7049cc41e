"""What may be done beside the requests that decode: as many prompt tokens in a step, and as much of
a picture before it, as fit into its target time, estimated from recent steps. Guesses have what is
left of it then.

The actor owns a `CostMeter` and hands its figures to the core as data, from which the core derives
each step's budget: the core has no clock, and its traces replay.
"""

import math
from typing import NamedTuple

from scheduler_proc.core.steps.step_cost import (
    FIRST_STEP,
    MAX_SURPRISE,
    MEMORY_S,
    DraftCost,
    StepCost,
    StepSize,
    TimedSteps,
)

# By default a step with prefills may last this many times one without. Both are estimates:
# it leaves room for one that takes a tenth longer to be within four. Fewer would cost throughput: a
# batch that begins takes more steps, each of which reads the weights for the few that decode.
AUTO_STEPS = 3.6
# Of what rows leave of a step's target, guesses take at most this share, though no prompt waits:
# one that comes waits for the step to end. And what they cost is known less well than all else.
GUESSES_SHARE = 0.5
FIRST_TOKEN_SHARE = 1 / 32  # by which guesses behind a prompt may put off its own first token
MIN_SHARE = 128  # a prefill gets at least 1/128 of the whole budget, however slow steps are
MIN_SLICE_S = 0.002  # of encoding, however slow steps are
MAX_SLICE_S = 0.05  # where nobody decodes: a new request waits for that
# A step without prompts counts as at most this many times what it was expected to take. What drafts
# cost is a difference of two such figures, and one step that stood still would decide it for long.
MAX_DECODES_SURPRISE = 1.5
UNSURE_STEPS = 8  # with guesses, for which that does not hold after a warm-up
NEWS = 0.05  # by how much a figure has to change to be handed on


class StepCosts(NamedTuple):
    """Seconds of a step of `n` decodes and `m` other tokens: `base_s + n * row_s + m * token_s`.
    One that drafts `k` tokens takes `drafting_s + k * draft_s` longer, its late layout included."""

    base_s: float
    row_s: float
    token_s: float
    draft_s: float
    drafting_s: float = 0.0

    def decode_s(self, rows: int) -> float:
        """Seconds of a step in which this many rows decode and nothing else happens."""
        return self.base_s + rows * self.row_s

    def drafts_s(self, drafted: int) -> float:
        """The seconds that so many guesses add to a step."""
        return self.drafting_s + drafted * self.draft_s if drafted > 0 else 0.0

    def step_s(self, size: StepSize) -> float:
        """Seconds of a step of this size."""
        decodes_s, drafts_s = self.decode_s(size.decodes), self.drafts_s(size.drafted)
        return decodes_s + size.others * self.token_s + drafts_s


class Beside(NamedTuple):
    """What a step has besides prompts: rows that decode, and guessed tokens that are set aside for
    before prompts are: trials, which nothing may crowd out."""

    decodes: int
    drafted: int = 0

    def spare_s(self, costs: StepCosts, target_s: float) -> float:
        """What the rows leave of a target, for prompts and guesses; below 0 if they take longer. 0
        stands for AUTO_STEPS times what the rows take."""
        rows_s = costs.decode_s(self.decodes)
        return (target_s or AUTO_STEPS * rows_s) - rows_s

    def left_s(self, costs: StepCosts, target_s: float) -> float:
        """What is left of it for prompts: half at least, or all that a single guess leaves."""
        spare_s = self.spare_s(costs, target_s)
        least_s = min(spare_s / 2, spare_s - costs.drafts_s(1))
        return max(least_s, spare_s - costs.drafts_s(self.drafted))


class DraftRoom(NamedTuple):
    """What the guesses of a step may take: so many `tokens` of its budget and of memory, and so
    many `seconds`, math.inf where they delay nobody else. They also delay the `waiting` prompts.
    Without a `may_try` there is no room for a trial either."""

    tokens: int
    seconds: float = math.inf
    waiting: int = 0
    may_try: bool = True

    def most(self, costs: StepCosts) -> int:
        """The tokens that fit, 0 if none do."""
        left_s = self.seconds - costs.drafting_s
        if left_s < costs.draft_s:
            return 0
        if left_s >= self.tokens * costs.draft_s:
            return self.tokens
        return int(left_s / costs.draft_s)


NO_DECODES = Beside(0)
NO_DRAFTS = DraftRoom(0)


def slice_beside(costs: StepCosts, beside: Beside, others: int, target_s: float) -> float:
    """The seconds of encoding before a step with these decodes, for which so many other tokens
    wait: what they leave of `target_s`, but half of what the decodes alone leave at least."""
    left_s = beside.left_s(costs, target_s)
    return max(MIN_SLICE_S, left_s / 2, left_s - others * costs.token_s)


def tokens_beside(
    costs: StepCosts, beside: Beside, whole: int, target_s: float, slice_s: float = 0.0
) -> int:
    """The prompt tokens for a step of `target_s` with these decodes, and `slice_s` of encoding
    before it; at most the `whole` budget. For a target of 0 see `Beside.spare_s`."""
    left_s = max(0.0, beside.left_s(costs, target_s) - slice_s)
    if left_s >= whole * costs.token_s:
        return whole
    return max(1, whole // MIN_SHARE, int(left_s / costs.token_s))


class CostMeter:
    """Learns the costs from steps, which it forgets with busy time only. Before there was a step of
    decodes alone, a row counts as a token; so does a guess before one drafted beside decodes.

    The steps of a warm-up, if there are any, are what is expected until requests have shown more.
    They were few and small, on a machine that was busy with starting, and all the slower for it:
    before there was a step of decodes alone since, what others take tells how much. Where all have
    prompts and as many decodes, that does not tell decodes from prompts well: then a share of what
    was wrong remains."""

    def __init__(self, warm_steps: TimedSteps = ()) -> None:
        self._all = StepCost()
        self._decodes = StepCost()  # steps of these alone
        self._drafts = DraftCost()  # of steps of decodes that draft
        self._tokens = self._seconds = 0.0  # of all but decodes
        self._known: StepCosts | None = None
        self._is_sure = True  # of what decodes take
        self._unsure = 0  # steps that have told of it since the warm-up
        # Decodes first: they tell what part of the others is no token's.
        for size, seconds in sorted(warm_steps, key=lambda step: step[0].others):
            self.add(size, seconds, FIRST_STEP)
        self._is_sure = not warm_steps

    def add(self, size: StepSize, seconds: float, weight: float = 1.0) -> None:
        """Add a step of one token at least. The pause of a machine that stood still says nothing
        about the next step."""
        base_s, row_s = self._decodes.line()
        decodes_s = base_s + row_s * size.decodes
        token_s = self._seconds / self._tokens if self._tokens else 0.0
        drafting_s, draft_s = self._drafts.line(token_s)
        drafts_s = drafting_s + draft_s * size.drafted if size.drafted else 0.0
        others = size.others
        expected_s = decodes_s + drafts_s + token_s * others
        if expected_s > 0.0 and (token_s > 0.0 or others == 0):
            is_new = not self._is_sure and self._unsure < UNSURE_STEPS
            surprise = MAX_SURPRISE if others > 0 or is_new else MAX_DECODES_SURPRISE
            seconds = min(seconds, surprise * expected_s)
            if not self._is_sure and 0 < size.decodes < size.tokens:
                decodes_s *= self._correct_decodes(seconds / expected_s)
        keep = math.exp(-seconds / MEMORY_S)
        self._all.add(size.tokens, seconds, keep, weight)
        if others == 0:
            if size.drafted == 0:
                self._decodes.add(size.decodes, seconds, keep, weight)
                self._is_sure = True
            elif decodes_s > 0.0:
                self._drafts.add(size.drafted, seconds - decodes_s, decodes_s, keep)
            return
        # However long its decodes should have taken, its tokens took some of the time. Half of what
        # is expected of them, but a wrong expectation must not hold itself up.
        least_s = seconds / 2 * others / size.tokens
        if self._tokens == 0.0:
            weight = FIRST_STEP
        else:
            least_s = min(least_s, token_s / 2 * others)
        rest_s = max(seconds - decodes_s - drafts_s, least_s)
        self._tokens = keep * self._tokens + weight * others
        self._seconds = keep * self._seconds + weight * rest_s

    def _correct_decodes(self, surprise: float) -> float:
        """A step with other things than decodes took so many times what was expected. So did its
        decodes, as far as is known: the mean of what such steps say is expected from now on.
        Returns how many times as long that is."""
        self._unsure += 1
        factor = 1.0 + (surprise - 1.0) / (self._unsure + FIRST_STEP)
        self._decodes.scale(factor)
        return factor

    def news(self) -> StepCosts | None:
        """The costs, if they are known and differ from those reported last."""
        base_s, row_s = self._decodes.line()
        if row_s > 0.0 and self._seconds > 0.0:
            token_s = self._seconds / self._tokens
        else:
            base_s, row_s = self._all.line()
            token_s = row_s
        drafting_s, draft_s = self._drafts.line(token_s)
        costs = StepCosts(base_s, row_s, token_s, draft_s, drafting_s)
        if costs.row_s == 0.0:
            return None
        if self._known is not None and not _differ(self._known, costs):
            return None
        self._known = costs
        return costs


def _differ(old: StepCosts, new: StepCosts) -> bool:
    return any(abs(a - b) > NEWS * max(a, b) for a, b in zip(old, new, strict=True))
