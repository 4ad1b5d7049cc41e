"""How many tokens to guess: as many as make the whole batch faster.

A row gives one token, and one more for each guess that is right like all before it. How likely that
is is measured by the length of the match, which grows with each of them, and what a step costs too
(`StepCosts`). The lengths maximise the expected tokens of a step per expected second of it. A req
whose guesses do not pay drafts none, but is tried with one now and then. No clock and no
randomness: a trace replays.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import mul
from typing import NamedTuple

from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import StepCosts

# What is expected at first, and of how many tokens it weighs. A match that has grown beyond what is
# searched for, or is of a whole req, goes on as it did.
NEUTRAL, GROWN, NEUTRAL_TOKENS = 0.5, 0.9, 2.0
CORE_TOKENS = 128  # tried ones, after which one counts 1/e of what it did
OTHER_TOKENS = 512  # the same, of other sources
REQ_TOKENS = 48  # the same of a single req
TRUST_TOKENS = 8.0  # tried ones of a req, before they count for as much as what all reqs have shown
LONGEST_SEARCHED, LONGEST_BUCKET = 8, 11
NEVER = -(10**9)  # a step long ago
LIMITS = 0.001, 0.999  # of what may be expected

TRIAL_SHARE = 0.005  # of its tokens is what trials may cost a req
SHORTEST_WAIT = 8  # steps between two of them
MAX_DRAFTING = 128  # steps in a row that draft
MAX_ROUNDS = 8  # towards the best lengths; three or four are enough


class Candidate(NamedTuple):
    """A row that may draft as many tokens as there are in `reach`: the probabilities that the
    first, the first two, ... are accepted. `least` is 1 if it shall draft whether that pays or
    not. `chance` is how likely it is that there is this draft at all."""

    reach: Sequence[float]
    least: int = 0
    chance: float = 1.0

    def after_one(self) -> "Candidate":
        """The same row one token later: if that is the first of the draft, the rest may follow, and
        something that is as likely where there is no more of it."""
        first, *rest = self.reach
        reach = [chance / first for chance in rest] or [first]
        return Candidate(reach, self.least, self.chance * first)


def lengths(
    costs: StepCosts,
    rows: int,
    candidates: Sequence[Candidate],
    waiting: int = 0,
    most: int | None = None,
) -> list[int]:
    """How many tokens each candidate should draft, at most `most` in all, in a step of this many
    rows that sample, at least one, which the candidates are among. As many prompts are `waiting`:
    what a guess costs, each of them waits longer, as each row does.

    What else a step computes is no part of its seconds here: those tokens are worth what they take,
    and a guess delays them too. At the best rate of tokens per second, each row has the length that
    maximises its tokens less the rate times its seconds; the rate that such lengths give is a
    better one to begin with, until they stay the same (Dinkelbach, "On nonlinear fractional
    programming", 1967). One that waits counts as if it had a token in each step, like a row.
    """
    without_s, served = costs.decode_s(rows), rows + waiting
    least = _fitted(candidates, [candidate.least for candidate in candidates], most)
    chosen: list[int] = []
    rate = served / without_s
    for _ in range(MAX_ROUNDS):
        before = chosen
        chosen = [_length(rate * costs.draft_s, c.reach, c.least) for c in candidates]
        chosen = _fitted(candidates, chosen, most)
        if chosen == before:
            break
        tokens = served + sum(map(_accepted, candidates, chosen))
        drafted = sum(c.chance * k for c, k in zip(candidates, chosen, strict=True))
        rate = tokens / (without_s + costs.drafting_s + drafted * costs.draft_s)
    return chosen if rate > served / without_s or any(least) else least


def _length(price: float, reach: Sequence[float], least: int) -> int:
    """The tokens of a row that maximise those expected of it less their price, in tokens."""
    return max(least, sum(chance > price for chance in reach))


def _fitted(candidates: Sequence[Candidate], chosen: list[int], most: int | None) -> list[int]:
    """Of the chosen lengths, the `most` tokens that are likeliest to be accepted, those of trials
    before all others. None: all of them."""
    if most is None or sum(chosen) <= most:
        return chosen
    places = [
        (place >= candidate.least, -candidate.chance * candidate.reach[place], row)
        for row, (candidate, count) in enumerate(zip(candidates, chosen, strict=True))
        for place in range(count)
    ]
    fitted = [0] * len(chosen)
    for _, _, row in sorted(places)[:most]:  # chances fall along a row: no place is left out
        fitted[row] += 1
    return fitted


def _accepted(candidate: Candidate, drafted: int) -> float:
    """How many of a row's guesses are expected to be accepted."""
    return candidate.chance * sum(candidate.reach[:drafted])


class Acceptance:
    """How often guesses are right: by source and length of the match over all reqs of the core, and
    how much better or worse those of one req are, in odds. Forgets by what is tried."""

    def __init__(self) -> None:
        self._sources: defaultdict[str, _Chances] = defaultdict(_Chances)
        self._reqs: dict[int, _Own] = {}
        self._latest = NEVER  # the last step that drafted
        self._tried = NEVER  # the last one with a trial

    def chance(self, handle: int, source: str, length: int) -> float:
        """The probability that a token of the req's next draft is accepted, if it comes after a
        match of this length, those before it in the draft included."""
        chance = self._sources[source].chances[_bucket(length)]
        if (own := self._reqs.get(handle)) is not None:
            odds = own.odds * chance / (1.0 - chance)
            chance = odds / (1.0 + odds)
        low, high = LIMITS
        return min(max(low, chance), high)

    def reach(self, handle: int, source: str, length: int, most: int) -> list[float]:
        """The probabilities that at least 1, 2, ... `most` tokens of the req's next draft are
        accepted, which come after a match of this length."""
        chances = (self.chance(handle, source, length + place) for place in range(most))
        return list(accumulate(chances, mul))

    def verified(
        self, handle: int, source: str, length: int, drafted: int, accepted: int, step: int | None
    ) -> None:
        """Of the req's `drafted` tokens, at least one, so many were accepted in this step. None: in
        one that computed its prompt, which tells nothing of what drafting costs a decode. That is
        no trial, else reqs that end before the next one is due would never have any."""
        tried = min(drafted, accepted + 1)
        chances, own = self._sources[source], self._own(handle)
        for bucket, group in groupby(range(tried), lambda place: _bucket(length + place)):
            places = list(group)
            right = min(accepted, places[-1] + 1) - places[0]
            chances.add(bucket, right, len(places))
            own.add(chances, bucket, right, len(places))
        chances.update(_bucket(length))
        for other in self._sources.values():
            if other is not chances:
                other.fade(tried)
        own.update()
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
        k = max(1, _length(rate * costs.draft_s, candidate.reach, candidate.least))
        gain = _accepted(candidate, k) - candidate.chance * rate * k * costs.draft_s
        if step < own.last + max(SHORTEST_WAIT, -gain / TRIAL_SHARE):
            return False
        lost = (rate * costs.drafting_s - max(0.0, gain)) / rows
        if step > self._tried <= step - lost / TRIAL_SHARE:
            self._tried = step
        return step == self._tried

    def ended(self, handle: int) -> None:
        """Forget the req."""
        self._reqs.pop(handle, None)

    def _own(self, handle: int) -> "_Own":
        if handle not in self._reqs:  # if it is short, it may be what tells how its core does now
            self._reqs[handle] = _Own(self._latest)
        return self._reqs[handle]


class Pauses:
    """When the whole core drafts nothing for a step although it would pay: what guesses cost, and
    prompts beside decodes may take, is measured against steps of decodes alone, which have to be
    known for batches of each size. Seldom, once there were some; mostly there are others anyway."""

    def __init__(self) -> None:
        # By the size of the batch, in powers of two: steps in a row that drafted, and how many may.
        self._drafting: dict[int, int] = {}
        self._most: dict[int, int] = {}

    def is_due(self, rows: int) -> bool:
        """Whether the next step should not draft if it has nothing but this many decodes."""
        size = rows.bit_length()
        return self._drafting.get(size, 0) >= self._most.get(size, 0)

    def ran(self, size: StepSize) -> None:
        """A step has been computed."""
        if size.others > 0 or size.decodes == 0:
            return
        rows = size.decodes.bit_length()
        if size.drafted > 0:
            self._drafting[rows] = self._drafting.get(rows, 0) + 1
            return
        if self.is_due(size.decodes):
            self._most[rows] = min(max(4, 4 * self._most.get(rows, 0)), MAX_DRAFTING)
        self._drafting[rows] = 0


class _Chances:
    """Of one source, by the bucket of the match's length. What was never tried is expected to be as
    what is a little shorter, or as it is in general: halfway."""

    def __init__(self) -> None:
        self._accepted = [0.0] * (LONGEST_BUCKET + 1)
        self._tried = [0.0] * (LONGEST_BUCKET + 1)
        self.chances = [NEUTRAL] * (LONGEST_BUCKET + 1)
        self.update(LONGEST_SEARCHED + 1)

    def add(self, bucket: int, accepted: int, tried: int) -> None:
        """So many of the tried tokens were accepted; counts after an `update`."""
        keep = (1 - 1 / CORE_TOKENS) ** tried
        self._accepted[bucket] = keep * self._accepted[bucket] + accepted
        self._tried[bucket] = keep * self._tried[bucket] + tried

    def fade(self, tried: int) -> None:
        """So many tokens of other sources were tried: what this one has shown counts less, else one
        that was wrong once would never be tried again."""
        keep = (1 - 1 / OTHER_TOKENS) ** tried
        self._accepted = [keep * count for count in self._accepted]
        self._tried = [keep * count for count in self._tried]
        self.update(0)

    def update(self, bucket: int) -> None:
        """Estimate the chances again, from a bucket on."""
        for at in range(bucket, LONGEST_BUCKET + 1):
            general = NEUTRAL if at <= LONGEST_SEARCHED else GROWN
            prior = (self.chances[at - 1] + general) / 2 if at > 0 else general
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
        """So many of the tried tokens were accepted; counts after an `update`."""
        keep = (1 - 1 / REQ_TOKENS) ** tried
        self._accepted = keep * self._accepted + accepted
        for key in self._tried:
            self._tried[key] *= keep
        key = chances, bucket
        self._tried[key] = self._tried.get(key, 0.0) + tried

    def update(self) -> None:
        """Compare the req's own figure with what is expected now of the same tokens, so that one
        that is alone differs from nobody."""
        total = sum(self._tried.values())
        expected = sum(n * c.chances[at] for (c, at), n in self._tried.items()) / total
        shown = (self._accepted + TRUST_TOKENS * expected) / (total + TRUST_TOKENS)
        self.odds = shown / (1.0 - shown) * (1.0 - expected) / expected


def _bucket(length: int) -> int:
    """Matches of up to eight tokens are told apart, longer ones by powers of two."""
    return length if length <= LONGEST_SEARCHED else min(LONGEST_BUCKET, length.bit_length() + 5)
