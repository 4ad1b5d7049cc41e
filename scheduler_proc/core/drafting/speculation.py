"""Which reqs of the scheduler core are guessed ahead, from which source, and how far."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from scheduler_proc.core.drafting.base import Match, Source
from scheduler_proc.core.drafting.gain import (
    SHORTEST_WAIT,
    Acceptance,
    Candidate,
    Pauses,
    lengths,
)
from scheduler_proc.core.drafting.ngrams import LONGEST
from scheduler_proc.core.drafting.own import OwnTokens
from scheduler_proc.core.drafting.predicted import PredictedTokens
from scheduler_proc.core.drafting.seen import SeenOutputs
from scheduler_proc.core.drafting.tree import TreeTokens
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.steps.step import MOST_GUESSED, Origin, Row, Step
from scheduler_proc.core.steps.step_target import DraftRoom, StepCosts
from scheduler_proc.memory.radix_cache import RadixCache

log = logging.getLogger(__name__)

ENOUGH = 0.5  # the chance of a match of `LONGEST` tokens, with which no further one is asked for


class Proposal(NamedTuple):
    """Tokens that may come next, one at least, and where they are from."""

    tokens: list[int]
    origin: Origin


class Speculation:
    """Of one core. It is told what steps cost (`costs`, None: not known yet) and its own results,
    from which the lengths of guesses follow in the mode "auto"; there nothing is guessed before the
    costs are known. In the others, a guess is as long as it can be."""

    def __init__(self, mode: str, most: int, cache: RadixCache) -> None:
        """`mode` is that of `--speculative`, `most` how many tokens of a req a step may guess."""
        self.most = most
        self.costs: StepCosts | None = None
        self._is_measured = mode == "auto"
        self._seen = SeenOutputs()
        self.sources: list[Source] = []
        if mode in ("auto", "own"):  # the first: it is what the request itself expects
            self.sources.append(PredictedTokens())
        if mode in ("auto", "tree"):  # what it finds is longer than that of the others
            self.sources.append(TreeTokens(cache))
        if mode in ("auto", "own"):
            self.sources.append(OwnTokens())
        if mode == "auto":
            self.sources.append(self._seen)
        self._acceptance = Acceptance()
        self._pauses = Pauses()
        self._due: set[int] = set()  # handles of those whose next guess is a trial
        self._step = 0  # counts those that were committed

    @property
    def gives_way(self) -> bool:
        """Whether guesses are made only where they pay and delay nobody too long."""
        return self._is_measured

    def may_guess(self, req: Req) -> bool:
        """Whether the req, which runs, may be guessed at all."""
        if not self.sources or req.wish.sampling.speculative == "off":
            return False
        return not req.wants_logprobs and req.remaining > 1

    def wanted(self, reqs: Sequence[Req], rows: int, room: DraftRoom, are_alone: bool) -> set[int]:
        """The handles of those of these reqs, which decode, whose next row is to wait for the
        newest token: probably something can be guessed after it. They are among so many `rows` that
        decode, in a step that is expected to have this `room`; `are_alone`: it has nothing else, as
        far as is known."""
        if not self.sources:
            return set()
        if not self._is_measured:
            return {req.handle for req in reqs if self.may_guess(req)}
        wanted = {req.handle for req in reqs if req.held.num_drafted > 0 and self.may_guess(req)}
        costs = self.costs
        if costs is None or (are_alone and self._pauses.is_due(rows)):
            return wanted
        if room.most(costs) == 0 and self._step % SHORTEST_WAIT > 0:
            return wanted  # only a trial could come of a look, which takes time: it waits a little
        found: list[tuple[Req, Candidate]] = []
        for req in reqs:
            if req.handle not in wanted and self.may_guess(req):
                proposal = self._best(req, self.most + req.tokens.are_late)
                if proposal is not None:
                    candidate = self._candidate(req, proposal)
                    found.append((req, candidate.after_one() if req.tokens.are_late else candidate))
        return wanted.union(self._wanted_of(costs, rows, room, found, len(wanted)))

    def _wanted_of(
        self,
        costs: StepCosts,
        rows: int,
        room: DraftRoom,
        found: Sequence[tuple[Req, Candidate]],
        drafting: int,
    ) -> Iterator[int]:
        """The handles of those of the candidates that are worth it, or to be tried, beside as many
        others whose rows wait anyway: what a step with guesses costs at all is shared."""
        if not found:
            return
        share = len(found) / (len(found) + drafting)
        costs = costs._replace(drafting_s=share * costs.drafting_s)
        candidates = [candidate for _, candidate in found]
        paying = fitting = lengths(costs, rows, candidates)
        most = max(0, room.most(costs) - drafting)
        if room.waiting > 0 or sum(paying) > most:
            fitting = lengths(costs, rows, candidates, room.waiting, most)
        for (req, candidate), pays, fits in zip(found, paying, fitting, strict=True):
            is_due = candidate.least > 0
            if pays == 0 and self._acceptance.is_due(
                costs, rows, req.handle, candidate, self._step
            ):
                self._due.add(req.handle)
                is_due = True
            # How much room there is says nothing of trials, else in a long burst of prompts there
            # would be none. A target that even the rows exceed leaves none for what is learned.
            if fits > 0 or (is_due and room.may_try):
                yield req.handle

    def num_trials(self, handles: Iterable[int]) -> int:
        """How many of these reqs are to be tried."""
        return len(self._due.intersection(handles))

    def proposals(
        self, reqs: Iterable[Req], rows: int, room: DraftRoom, are_alone: bool
    ) -> dict[int, Proposal]:
        """By handle, for those of the reqs that something can be guessed of: what to extend beside
        their newest tokens, which are known. The step has this many rows that decode, theirs among
        them, and this `room` beside all else that it has; `are_alone`: that is nothing."""
        found: list[tuple[Req, Proposal]] = []
        for req in reqs:
            most = min(self.most, req.remaining - 1)
            proposal = self._best(req, most) if self.may_guess(req) else None
            if proposal is not None:
                found.append((req, proposal))
            elif self._is_measured and req.held.prefill_left == 0:
                self._due.discard(req.handle)
                self._acceptance.has_none(req.handle, self._step)
        room = room._replace(tokens=min(room.tokens, MOST_GUESSED))
        counts, left = self._lengths(found, rows, room, are_alone), room.tokens
        proposals = {}
        for (req, proposal), count in zip(found, counts, strict=True):
            count = min(count, left)
            if count > 0:
                proposals[req.handle] = proposal._replace(tokens=proposal.tokens[:count])
                left -= count
        if not self._due.isdisjoint(proposals):  # the others cost as much again, each in its step
            self._due.difference_update(req.handle for req, _ in found)
        return proposals

    def verified(self, row: Row, num_tried: int, num_right: int) -> None:
        """Of what the row had guessed, as many were looked at, and right."""
        if self._is_measured and row.origin is not None and num_tried > 0:
            step = self._step if row.is_decode else None
            self._acceptance.verified(row.req.handle, *row.origin, num_tried, num_right, step)
            if row.req.finish is not None:
                self._acceptance.ended(row.req.handle)

    def refused(self, req: Req, proposal: Proposal) -> None:
        """Nothing of the proposal could be extended: it has gained nothing, like a wrong one."""
        if self._is_measured:
            self._acceptance.verified(req.handle, *proposal.origin, 1, 0, self._step)

    def ran(self, step: Step) -> None:
        """A step has been committed."""
        self._step += 1
        if self._is_measured:
            self._pauses.ran(step.size)

    def ended(self, req: Req) -> None:
        """The req has ended."""
        self._acceptance.ended(req.handle)
        self._due.discard(req.handle)
        for source in list(self.sources):
            try:
                source.ended(req)
            except Exception:
                self._drop(source)

    def flush(self) -> None:
        """Guess nothing of what ended before. The tree is the caller's to empty."""
        self._seen.clear()

    def _candidate(self, req: Req, proposal: Proposal) -> Candidate:
        reach = self._acceptance.reach(req.handle, *proposal.origin, len(proposal.tokens))
        return Candidate(reach, int(req.handle in self._due))

    def _lengths(
        self, found: Sequence[tuple[Req, Proposal]], rows: int, room: DraftRoom, are_alone: bool
    ) -> Sequence[int]:
        """How many tokens of each proposal to take."""
        if not self._is_measured:
            return [self.most] * len(found)
        costs = self.costs
        if costs is None or not found or (are_alone and self._pauses.is_due(rows)):
            return [0] * len(found)
        candidates = [self._candidate(req, proposal) for req, proposal in found]
        most = room.most(costs)
        if room.may_try and any(candidate.least for candidate in candidates):
            most = max(most, min(1, room.tokens))  # trials go on, one token in a step at least
        return lengths(costs, rows, candidates, room.waiting, most)

    def _best(self, req: Req, most: int) -> Proposal | None:
        """The best match of all sources: where it is measured, how often they are right, the most
        likely, else the longest."""
        chance = partial(self._acceptance.chance, req.handle) if self._is_measured else None
        matches = ((source.name, self._match(source, req, most)) for source in self.sources)
        found = best(matches, chance)
        if found is None:
            return None
        name, match = found
        return Proposal(match.tokens.tolist(), Origin(name, match.length))

    def _match(self, source: Source, req: Req, most: int) -> Match | None:
        try:
            return source.match(req, most)
        except Exception:
            self._drop(source)
            return None

    def _drop(self, source: Source) -> None:
        """A source that fails, from an `except` clause, is not asked again: nobody needs it."""
        log.exception("%s can guess no more", source.name)
        self.sources = [other for other in self.sources if other is not source]


def best(
    matches: Iterable[tuple[str, Match | None]], chance: Callable[[str, int], float] | None = None
) -> tuple[str, Match] | None:
    """Of matches, which are given with the names of their sources, that with the best `chance` of a
    source and a length to be right, if that is known; of those as good as each other the longest,
    of these the first. None if there is none. After one of `LONGEST` tokens or more, unless it is
    more likely wrong, no further one is asked for."""
    found: tuple[str, Match] | None = None
    best_value = 0.0, 0
    for name, match in matches:
        if match is None:
            continue
        likely = 1.0 if chance is None else chance(name, match.length)
        if (value := (likely, match.length)) > best_value:
            found, best_value = (name, match), value
        if match.length >= LONGEST and likely >= ENOUGH:
            break
    return found
