"""How many tokens to guess: as many as make the whole batch faster.

A row with `k` guesses, each right with probability `p` if those before it are, is expected to give
`(1 - p^(k+1)) / (1 - p)` tokens. What a step costs is measured (`StepCosts`), and so is `p`. The
lengths maximise the expected tokens of a step per expected second of it. A req whose guesses do not
pay drafts none, but is tried with one now and then. No clock and no randomness: a trace replays.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scheduler_proc.step_cost import StepSize
from scheduler_proc.step_target import StepCosts

NEUTRAL, NEUTRAL_TOKENS = 0.5, 2.0  # what is expected at first, and of how many tokens it weighs
CORE_TOKENS = 128  # tried ones, after which one counts 1/e of what it did
REQ_TOKENS = 48  # the same of a single req
TRUST_TOKENS = 8.0  # tried ones of a req, before they count for as much as what all reqs have shown
LONGEST_BUCKET = 11
NEVER = -(10**9)  # a step long ago
LIMITS = 0.001, 0.999  # of what may be expected

TRIAL_SHARE = 0.005  # of its tokens is what trials may cost a req
SHORTEST_WAIT = 8  # steps between two of them
MAX_DRAFTING = 128  # steps in a row that draft
MAX_ROUNDS = 8  # towards the best lengths; three or four are enough


class Candidate(NamedTuple):
    """A row that may draft up to `most` tokens, of which each is expected to be accepted with
    probability `chance` if those before it are; `least` is 1 if it shall draft whether that pays or
    not."""

    chance: float
    most: int
    least: int = 0


def lengths(costs: StepCosts, rows: int, others: int, candidates: Sequence[Candidate]) -> list[int]:
    """How many tokens each candidate should draft in a step of this many rows that sample, at least
    one, which the candidates are among, and other tokens.

    At the best rate of tokens per second, each row has the length that maximises its tokens less
    the rate times its seconds; the rate that such lengths give is a better one to begin with, until
    they stay the same (Dinkelbach, "On nonlinear fractional programming", 1967).
    """
    without_s = costs.decode_s(rows) + others * costs.token_s
    least = [candidate.least for candidate in candidates]
    chosen: list[int] = []
    rate = rows / without_s
    for _ in range(MAX_ROUNDS):
        before = chosen
        chosen = [_length(rate * costs.draft_s, *candidate) for candidate in candidates]
        if chosen == before:
            break
        tokens = rows + sum(map(_accepted, candidates, chosen))
        rate = tokens / (without_s + costs.drafting_s + sum(chosen) * costs.draft_s)
    return chosen if rate > rows / without_s or any(least) else least


def is_worth(costs: StepCosts, rows: int, candidate: Candidate, drafting: int) -> bool:
    """Whether the candidate would draft in a step of this many rows. If others are `drafting` in it
    anyway, what doing so costs at all is not the candidate's to pay."""
    rate = rows / costs.decode_s(rows)
    k = _length(rate * costs.draft_s, *candidate)
    seconds = k * costs.draft_s + (0.0 if drafting else costs.drafting_s)
    return k > 0 and _accepted(candidate, k) > rate * seconds


def _length(price: float, chance: float, most: int, least: int) -> int:
    """The tokens of a row that maximise those expected of it less their price, in tokens."""
    if chance <= price:
        return least
    if chance**most > price:  # which is what the last of them gives
        return most
    return max(1, math.ceil(math.log(price, chance)) - 1)


def _accepted(candidate: Candidate, drafted: int) -> float:
    """How many of a row's guesses are expected to be accepted."""
    chance = candidate.chance
    return chance * (1.0 - chance**drafted) / (1.0 - chance)


class Acceptance:
    """How often guesses are right: by source and length of the match over all reqs of the core, and
    how much better or worse those of one req are, in odds. Forgets by what is tried."""

    def __init__(self) -> None:
        self._sources: dict[str, _Chances] = {}
        self._reqs: dict[int, _Own] = {}
        self._latest = NEVER  # the last step that drafted
        self._tried = NEVER  # the last one with a trial

    def chance(self, handle: int, source: str, length: int) -> float:
        """The probability that a token of the req's next draft, after a match of this length, is
        accepted if those before it are."""
        chance = self._of(source).chances[_bucket(length)]
        if (own := self._reqs.get(handle)) is not None:
            odds = own.odds * chance / (1.0 - chance)
            chance = odds / (1.0 + odds)
        low, high = LIMITS
        return min(max(low, chance), high)

    def verified(
        self, handle: int, source: str, length: int, drafted: int, accepted: int, step: int | None
    ) -> None:
        """Of the req's `drafted` tokens, at least one, so many were accepted in this step. None: in
        one that computed its prompt, which tells nothing of what drafting costs a decode. That is
        no trial, else reqs that end before the next one is due would never have any."""
        tried = min(drafted, accepted + 1)
        bucket, chances = _bucket(length), self._of(source)
        chances.add(bucket, accepted, tried)
        own = self._own(handle)
        own.add(chances, bucket, accepted, tried)
        if step is not None:
            own.last = self._latest = step

    def has_none(self, handle: int, step: int) -> None:
        """The req was to draft in this step, but has no guess any more. That counts as a trial:
        its row has been waited for."""
        self._own(handle).last = self._latest = step

    def is_due(
        self, costs: StepCosts, rows: int, handle: int, candidate: Candidate, step: int
    ) -> bool:
        """Whether a candidate that is not worth it is to be tried all the same, in a step of this
        many rows. What is expected to be lost by its tokens, and by the step's drafting at all, are
        each at most TRIAL_SHARE of the tokens since the last time. So reqs that are due are tried
        in the same step. To be asked once per req and step, whose numbers grow."""
        own, rate = self._own(handle), rows / costs.decode_s(rows)
        k = max(1, _length(rate * costs.draft_s, *candidate))
        gain = _accepted(candidate, k) - rate * k * costs.draft_s
        if step < own.last + max(SHORTEST_WAIT, -gain / TRIAL_SHARE):
            return False
        lost = (rate * costs.drafting_s - max(0.0, gain)) / rows
        if step > self._tried <= step - lost / TRIAL_SHARE:
            self._tried = step
        return step == self._tried

    def ended(self, handle: int) -> None:
        """Forget the req."""
        self._reqs.pop(handle, None)

    def _of(self, source: str) -> "_Chances":
        if source not in self._sources:
            self._sources[source] = _Chances()
        return self._sources[source]

    def _own(self, handle: int) -> "_Own":
        if handle not in self._reqs:  # if it is short, it may be what tells how its core does now
            self._reqs[handle] = _Own(self._latest)
        return self._reqs[handle]


class Pauses:
    """When the whole core drafts nothing for a step although it would pay: what guesses cost is
    measured against such steps. Seldom, once there were some; mostly there are others anyway."""

    def __init__(self) -> None:
        self._most = 0
        self._drafting = 0  # steps in a row that did

    @property
    def is_due(self) -> bool:
        """Whether the next step should not draft."""
        return self._drafting >= self._most

    def ran(self, size: StepSize) -> None:
        """A step has been computed."""
        if size.drafted > 0:
            self._drafting += 1
        elif size.decodes > 0:
            if self.is_due:
                self._most = min(max(4, 4 * self._most), MAX_DRAFTING)
            self._drafting = 0


class _Chances:
    """Of one source, by the bucket of the match's length. What was never tried is expected to be as
    what is a little shorter, or neutral: halfway."""

    def __init__(self) -> None:
        self._accepted = [0.0] * (LONGEST_BUCKET + 1)
        self._tried = [0.0] * (LONGEST_BUCKET + 1)
        self.chances = [NEUTRAL] * (LONGEST_BUCKET + 1)

    def add(self, bucket: int, accepted: int, tried: int) -> None:
        """So many of the tried tokens were accepted."""
        keep = (1 - 1 / CORE_TOKENS) ** tried
        self._accepted[bucket] = keep * self._accepted[bucket] + accepted
        self._tried[bucket] = keep * self._tried[bucket] + tried
        for at in range(bucket, LONGEST_BUCKET + 1):
            prior = (self.chances[at - 1] + NEUTRAL) / 2 if at > 0 else NEUTRAL
            known = self._accepted[at] + NEUTRAL_TOKENS * prior
            self.chances[at] = known / (self._tried[at] + NEUTRAL_TOKENS)


class _Own:
    """Of one req: what its drafts have shown, and when it drafted last."""

    def __init__(self, step: int) -> None:
        self.odds = 1.0  # times those of all reqs
        self.last = step
        self._accepted = 0.0
        self._tried: dict[tuple[_Chances, int], float] = {}

    def add(self, chances: _Chances, bucket: int, accepted: int, tried: int) -> None:
        """So many of the tried tokens were accepted. The req's own figure is compared with what is
        expected now of the same tokens, so that one that is alone differs from nobody."""
        keep = (1 - 1 / REQ_TOKENS) ** tried
        self._accepted = keep * self._accepted + accepted
        for key in self._tried:
            self._tried[key] *= keep
        key = chances, bucket
        self._tried[key] = self._tried.get(key, 0.0) + tried
        total = sum(self._tried.values())
        expected = sum(n * c.chances[at] for (c, at), n in self._tried.items()) / total
        shown = (self._accepted + TRUST_TOKENS * expected) / (total + TRUST_TOKENS)
        self.odds = shown / (1.0 - shown) * (1.0 - expected) / expected


def _bucket(length: int) -> int:
    """Matches of up to eight tokens are told apart, longer ones by powers of two."""
    return length if length <= 8 else min(LONGEST_BUCKET, length.bit_length() + 5)
