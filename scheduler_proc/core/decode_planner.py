"""Plans the rows of the reqs that decode, and sets slots aside for them.

Part of the scheduler core. Reqs with most outputs come first; when slots run out, those with fewest
give up theirs. So there is always progress.

All slots of a step are found together, and with room in the pool each req gets a run of DECODE_RUN,
so that its KV lies together. Only if the pool, the cache and the slots set aside earlier do not
suffice is each req served by itself, and others are retracted for it.
"""

from collections.abc import Callable, Collection, Iterable

from scheduler_proc.core.drafting.speculation import Proposal, Speculation
from scheduler_proc.core.requests.allocations import ReqMemory
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import ANYTHING, Follows
from scheduler_proc.core.steps.step_target import DraftRoom

DECODE_RUN = 16  # slots set aside at once for a decoding req


def retraction_key(req: Req) -> tuple[int, int]:
    """Fewest outputs first; of those, the latest arrival."""
    return req.tokens.num_outputs, -req.handle


class DecodePlanner:
    """Decodes of the reqs in `running` (by handle), in rows of up to `max_tokens`.

    `retract(req)` takes a req out of memory. `follows(req, length, proposal)` says what it may
    sample once `length` more of its tokens are extended, and how much of the proposal, if any, is
    to be extended too; None if that has ended it.
    """

    def __init__(
        self,
        running: dict[int, Req],
        memory: ReqMemory,
        max_tokens: int,
        retract: Callable[[Req], None],
        follows: Callable[[Req, int, Proposal | None], Follows | None],
        speculation: Speculation,
    ) -> None:
        self._running = running
        self._memory = memory
        self._max_tokens = max_tokens
        self._retract = retract
        self._follows = follows
        self._speculation = speculation

    def plan(
        self, plan: Plan, reqs: Iterable[Req], room: DraftRoom, left_out: Iterable[Req] = ()
    ) -> None:
        """One row for each of those that decode. Where it depends on a token that is still being
        sampled, or on how much of the `room`, an expectation, prompts leave for guesses, the req is
        deferred. Those that are `left_out` have no row, and give up their memory as others do."""
        decoding = [req for req in reqs if wants_decode(req)]
        decoding.sort(key=retraction_key, reverse=True)
        others = sum(not req.wish.is_ahead for req in self._running.values()) - len(decoding)
        guessable = self._guessable(decoding)
        guessed = self._speculation.wanted(guessable, len(decoding), room, others == 0)
        self._reserve(decoding, guessed)
        victims = _Victims(decoding, self._running.values(), left_out)
        for req in decoding:
            if req.residency is None:
                continue  # retracted for one before it
            is_late = req.tokens.are_late
            needs_token = _needs_newest_token(req) or req.held.num_drafted > 0
            if req.handle in guessed or (is_late and needs_token):
                length = 1 if is_late else min(req.extend_left, self._max_tokens)
                if self._reserve_one(req, length, victims):
                    plan.deferred.append(req)
            else:
                self._add(plan, req, victims)
        plan.guessed = guessed
        plan.trials = self._speculation.num_trials(guessed)

    def plan_deferred(self, plan: Plan, room: DraftRoom) -> None:
        """The rows of those that were deferred, whose newest token is known now. All but guesses is
        planned, which have this `room` beside it."""
        waiting = [req for req in plan.deferred if wants_decode(req)]
        waiting.sort(key=retraction_key, reverse=True)
        victims = _Victims(waiting, ())
        guessed = [req for req in waiting if req.handle in plan.guessed]
        proposals: dict[int, Proposal] = {}
        if guessed and room.tokens > 0:
            rows = plan.num_decodes + len(waiting)
            are_alone = plan.num_prompts == 0
            proposals = self._speculation.proposals(guessed, rows, room, are_alone)
        for req in waiting:
            if req.residency is not None:
                self._add(plan, req, victims, proposals.get(req.handle))

    def _guessable(self, decoding: list[Req]) -> list[Req]:
        """Those that have slots for a guess, or will get some."""
        if self._memory.easy_room >= DECODE_RUN * len(self._running):
            return decoding
        return [req for req in decoding if req.held.num_spare + req.held.num_drafted > 1]

    def _add(
        self, plan: Plan, req: Req, victims: "_Victims", proposal: Proposal | None = None
    ) -> None:
        """A row for the req's newest token, and what is guessed behind it; after a jump for several
        tokens, in chunks if need be."""
        held = req.residency
        assert held is not None
        length = req.tokens.seq_len - held.kv_len
        if length > 1:
            length = min(length, max(1, self._max_tokens - plan.num_tokens))
        if held.num_spare < length and plan.has_lost_rows:
            length = held.num_spare
            if length == 0:
                return  # it has its row in the next step
        elif held.num_spare < length and not self._reserve_one(req, length, victims):
            return
        if proposal is not None:  # nobody gives up memory for a guess
            tokens = proposal.tokens[: held.num_spare - length]
            proposal = proposal._replace(tokens=tokens) if tokens else None
        follows = ANYTHING
        if req.is_limited or proposal is not None:
            found = self._follows(req, length, proposal)
            if found is None:
                return
            follows = found
        if proposal is not None and not follows.draft:
            self._speculation.refused(req, proposal)
        self._memory.take_spare(held, length + len(follows.draft))
        plan.add(req, length, is_decode=True, follows=follows)

    def _reserve(self, decoding: list[Req], guessed: Collection[int]) -> None:
        """Set slots aside for those that have too few; of the `guessed`, where there is room, also
        for what is guessed. If there are not enough for all, what is set aside for anyone is given
        back, and nobody gets any here."""
        most = self._max_tokens
        run = DECODE_RUN if self._memory.easy_room >= DECODE_RUN * len(self._running) else 0
        short = [req for req in decoding if _num_missing(req, most) > 0]
        if run > 0 and guessed:
            run = max(run, 2 * self._speculation.most)
            short = [
                req
                for req in decoding
                if _num_missing(req, most) > 0
                or (req.handle in guessed and _num_unguessable(req, self._speculation.most) > 0)
            ]
        if not short:
            return
        counts = [max(_num_missing(req, most), min(run, _num_spareable(req))) for req in short]
        if self._memory.find(sum(counts)):
            self._memory.set_aside(short, counts, in_runs=run > 0)
        else:
            self._memory.free_spares()

    def _reserve_one(self, req: Req, count: int, victims: "_Victims") -> bool:
        """See that `req` has `count` slots set aside. If there are not enough, what is set aside
        for those that have their rows is taken back; then the least advanced of those that are not
        part of the plan yet gives up its memory, or `req` itself: the answer is False then."""
        held = req.held
        while held.num_spare < count:
            missing = count - held.num_spare
            if self._memory.find(missing):
                self._memory.set_aside([req], [missing], in_runs=True)
                break
            if self._memory.free_spares(keep=victims.decoding):
                continue
            victim = victims.least()
            self._retract(victim)
            if victim is req:
                return False
        return True


def wants_decode(req: Req) -> bool:
    """Whether it is in memory, its prefill planned, and something left to sample or to score."""
    held, seq_len = req.residency, req.tokens.seq_len
    if held is None or held.kv_len < held.prefill_len or seq_len <= held.planned_len:
        return False
    if req.pending is None:
        return seq_len < req.tokens.max_len
    return req.remaining > 0 or req.pending.is_unplanned


def _needs_newest_token(req: Req) -> bool:
    """Whether what it may sample next depends on the token before."""
    return req.is_limited and (req.grammar is not None or req.rules.need_output)


def _num_missing(req: Req, most: int) -> int:
    """Slots still to be set aside for what is planned next, at most `most` tokens."""
    return min(req.extend_left, most) - req.held.num_spare


def _num_spareable(req: Req) -> int:
    """Slots that can still be set aside: no token will need more."""
    return req.tokens.max_len - 1 - req.held.kv_len - req.held.num_spare


def _num_unguessable(req: Req, most: int) -> int:
    """Slots that are missing to plan one token and to guess `most` more, or as many as can
    follow."""
    return min(1 + most - req.held.num_spare, _num_spareable(req))


class _Victims:
    """Who gives up memory: the least advanced of the reqs that decode, whether they are part of the
    plan or left out, and of those that prefill.

    The reqs that decode are planned in the reverse order, so one that is planned already is never
    the least: the one that asks comes before it.
    """

    def __init__(
        self, decoding: list[Req], running: Iterable[Req], left_out: Iterable[Req] = ()
    ) -> None:
        self.decoding = decoding
        self._running, self._left_out = running, left_out
        self._least_last: list[Req] | None = None

    def least(self) -> Req:
        """The next one that is still in memory."""
        if self._least_last is None:
            running = [req for req in self._running if not req.tokens.are_late]
            prefilling = [req for req in running if req.held.prefill_left > 0]
            self._least_last = [*self.decoding, *prefilling, *self._left_out]
            self._least_last.sort(key=retraction_key, reverse=True)
        while self._least_last[-1].residency is None:
            self._least_last.pop()
        return self._least_last[-1]
