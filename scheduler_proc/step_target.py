"""What may be done beside the requests that decode: as many prompt tokens in a step, and as much of
a picture before it, as fit into its target time, estimated from recent steps. And what guessed
tokens cost, for those that draft.

The actor owns a `CostMeter` and hands its figures to the core as data, from which the core derives
each step's budget: the core has no clock, and its traces replay.
"""

import math
from typing import NamedTuple

from scheduler_proc.step_cost import (
    FIRST_STEP,
    MAX_SURPRISE,
    MEMORY_S,
    DraftCost,
    StepCost,
    StepSize,
)

# By default a step with prefills may last this many times one without. Both are estimates:
# it leaves room for one that takes a tenth longer to be within four. Fewer would cost throughput: a
# batch that begins takes more steps, each of which reads the weights for the few that decode.
AUTO_STEPS = 3.6
MIN_SHARE = 128  # a prefill gets at least 1/128 of the whole budget, however slow steps are
MIN_SLICE_S = 0.002  # of encoding, however slow steps are
MAX_SLICE_S = 0.05  # where nobody decodes: a new request waits for that
# A step without prompts counts as at most this many times what it was expected to take. What drafts
# cost is a difference of two such figures, and one step that stood still would decide it for long.
MAX_DECODES_SURPRISE = 1.5
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


def _left_s(costs: StepCosts, decodes: int, target_s: float) -> float:
    """What these decodes leave of a target. 0 stands for AUTO_STEPS times what they take."""
    decode_s = costs.decode_s(decodes)
    return (target_s or AUTO_STEPS * decode_s) - decode_s


def slice_beside(costs: StepCosts, decodes: int, others: int, target_s: float) -> float:
    """The seconds of encoding before a step of these decodes, for which so many other tokens wait:
    what they leave of `target_s`, but half of what the decodes alone leave at least."""
    left_s = _left_s(costs, decodes, target_s)
    return max(MIN_SLICE_S, left_s / 2, left_s - others * costs.token_s)


def tokens_beside(
    costs: StepCosts, decodes: int, whole: int, target_s: float, slice_s: float = 0.0
) -> int:
    """The prompt tokens for a step of `target_s` with these decodes, and `slice_s` of encoding
    before it; at most the `whole` budget. A target of 0 stands for AUTO_STEPS times what it takes
    without them."""
    left_s = max(0.0, _left_s(costs, decodes, target_s) - slice_s)
    if left_s >= whole * costs.token_s:
        return whole
    return max(1, whole // MIN_SHARE, int(left_s / costs.token_s))


class CostMeter:
    """Learns the costs from steps, which it forgets with busy time only. Before there was a step of
    decodes alone, a row counts as a token; so does a guess before one drafted beside decodes."""

    def __init__(self) -> None:
        self._all = StepCost()
        self._decodes = StepCost()  # steps of these alone
        self._drafts = DraftCost()  # of steps of decodes that draft
        self._tokens = self._seconds = 0.0  # of all but decodes
        self._known: StepCosts | None = None

    def add(self, size: StepSize, seconds: float) -> None:
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
            surprise = MAX_SURPRISE if others else MAX_DECODES_SURPRISE
            seconds = min(seconds, surprise * expected_s)
        keep = math.exp(-seconds / MEMORY_S)
        self._all.add(size.tokens, seconds, keep)
        if others == 0:
            if size.drafted == 0:
                self._decodes.add(size.decodes, seconds, keep)
            elif decodes_s > 0.0:
                self._drafts.add(size.drafted, seconds - decodes_s, decodes_s, keep)
            return
        # However long the decodes of this one took, its tokens took some time.
        rest_s = max(seconds - decodes_s - drafts_s, token_s / 2 * others)
        weight = 1.0 if self._tokens else FIRST_STEP
        self._tokens = keep * self._tokens + weight * others
        self._seconds = keep * self._seconds + weight * rest_s

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
