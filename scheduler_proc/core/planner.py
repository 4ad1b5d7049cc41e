"""Plans the rows of each step of the scheduler core: decodes, chunks of prompts, and admissions.

Takes memory, and reads no token values but those that limit a row (`Req.limits`). What fails while
a row is planned ends its own req. While there are suspects (`Trials`), one of them and all others
have steps in turn: a step has either the one suspect whose trial it is, or no suspects.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile

from scheduler_proc.core.ahead import AHEAD_TOKENS, but_ahead, give_up, make_way, next_ahead
from scheduler_proc.core.decode_planner import DecodePlanner, retraction_key
from scheduler_proc.core.drafting.speculation import Proposal
from scheduler_proc.core.follows import follows
from scheduler_proc.core.prompts import (
    available_slots,
    has_media,
    is_cut,
    is_in_flight,
    may_see,
    num_queued,
    whole,
)
from scheduler_proc.core.queueing.overtaking import is_latency
from scheduler_proc.core.requests.admission import Aside, is_being_computed, prefix_need
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.sharing.latency_room import LEAST_SHARE
from scheduler_proc.core.sharing.shares import StepShares
from scheduler_proc.core.state import SchedulerConfig, SchedulerState
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step_target import (
    FIRST_TOKEN_SHARE,
    GUESSES_SHARE,
    MAX_SLICE_S,
    NO_DECODES,
    NO_DRAFTS,
    Beside,
    DraftRoom,
    StepCosts,
    slice_beside,
    tokens_beside,
)


class StepPlanner:
    """Chooses what the reqs of `state` do in the next step."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._config, self._state = config, state
        self.costs: StepCosts | None = None  # as measured; None: not known yet
        self._decodes = DecodePlanner(
            state.running,
            state.memory,
            config.chunked_prefill_size,
            state.retract,
            partial(follows, state),
            state.speculation,
        )
        self._shares = StepShares(config, state)
        self._is_trials_turn = True
        self._beside = NO_DECODES  # prompts, in the last plan
        self._slice_s = 0.0  # that have been taken before the next step
        self._sliced_s = 0.0  # and before that of the newest plan
        self._now = 0.0  # the time of the newest plan

    def take_slice(self) -> float:
        """The seconds of encoding that there is time for before the next step, which has that much
        less for prompts."""
        config, costs = self._config, self.costs
        if config.media is None or not config.media.in_slices:
            return math.inf
        if self._beside.decodes == 0 or costs is None:
            return MAX_SLICE_S
        cut = [req.held for req in but_ahead(self._state.running.values()) if is_cut(req)]
        others = sum(held.prefill_len - held.kv_len for held in cut)
        target_s = self._shares.target_s(costs, self._beside.decodes)
        self._slice_s = slice_beside(costs, self._beside, others, target_s)
        return self._slice_s

    def plan(self, now: float) -> Plan | None:
        """A step, or None if nothing can run now."""
        self._now = now
        self._beside = NO_DECODES
        self._sliced_s, self._slice_s = self._slice_s, 0.0
        return self._plan()

    def _plan(self) -> Plan | None:
        state = self._state
        plan = Plan(state.memory.table, state.memory.sampling)
        suspect = state.trials.next
        state.trials.at = None if suspect is None else suspect.key
        if suspect is not None and self._is_trials_turn and self._plan_trial(plan, suspect):
            self._is_trials_turn = False
            return plan
        self._is_trials_turn = True
        budget = self._plan_others(plan, suspect)
        if plan.rows or plan.deferred:
            return plan
        if suspect is not None and suspect.finish is None and self._plan_trial(plan, suspect):
            return plan
        return plan if self._unblock(plan, budget) else None

    def _others(self) -> Iterable[Req]:
        """The running reqs that are no suspects, nor ahead of time."""
        running, trials = but_ahead(self._state.running.values()), self._state.trials
        if trials.next is None:
            return running
        return [req for req in running if not trials.is_suspect(req)]

    def _plan_others(self, plan: Plan, suspect: Req | None) -> int:
        """The rows of all but suspects; returns the prompt tokens for which there is still room."""
        state = self._state
        make_way(state)
        self._shares.make_room(self._now)
        self._shares.choose(self._others(), self.costs)
        sharing = self._shares.newest
        self._decodes.plan(plan, sharing.reqs, self._expected_room(), sharing.left_out)
        if sharing.left_out and not (plan.rows or plan.deferred):  # the others gave up memory
            self._decodes.plan(plan, sharing.left_out, NO_DRAFTS)
        budget = self._prefill_budget(plan)
        budget -= self._plan_cut(plan, budget, suspect)
        if len(state.waiting) == 0:
            state.admissions.nobody_is_stopped()
            state.memory.cache.want(())
            state.waiting.credits.forgive()
        budget -= self._admit_waiting(plan, budget, suspect)
        if suspect is None and state.live.ahead:
            self._plan_ahead(plan, budget)
        return budget

    def _plan_cut(self, plan: Plan, budget: int, suspect: Req | None) -> int:
        """The next chunks of those that are partly prefilled, and the waiting ones that go before
        some of them; returns the tokens planned, which may be above the budget for urgent ones,
        and those that nobody else shall have."""
        turns, spent = self._shares.turns([req for req in self._others() if is_cut(req)]), 0
        kept = budget // LEAST_SHARE if turns.first or turns.held_up else 0
        if turns.is_urgent:
            whole = self._config.chunked_prefill_size - plan.num_tokens - len(plan.deferred)
            most = (max(budget, whole) if turns.is_unlimited else budget) - kept
            spent = self._plan_prefills(plan, most, turns.urgent)
            spent += self._admit_waiting(plan, most - spent, suspect, is_latency)
            budget = max(budget, spent + kept)
        spent += self._plan_prefills(plan, budget - spent, turns.first)
        if turns.held_up or self._shares.are_some_first:
            taken = self._admit_waiting(plan, budget - spent, suspect, self._shares.is_first)
            spent = budget - self._shares.rest(budget - spent, taken)
            spent += self._plan_prefills(plan, budget - spent, turns.held_up)
        return spent

    def _plan_ahead(self, plan: Plan, budget: int) -> None:
        """A chunk of a prompt ahead of time, if nothing else is in its way, nor a target for the
        step that is shorter than usual."""
        if self._shares.newest.target_s < math.inf:
            return
        state, is_in_debt = self._state, self._shares.is_in_debt
        req = next_ahead(state, plan, available_slots(state), lambda req: not is_in_debt(req))
        if plan.guessed:  # guesses come first, which are not known yet
            budget = int((1.0 - GUESSES_SHARE) * budget)
        if req is not None and budget > 0:
            if req.residency is None:
                state.start(req, self._now)
            self._extend(plan, req, budget)

    def _admit_waiting(
        self,
        plan: Plan,
        budget: int,
        suspect: Req | None,
        goes_first: Callable[[Req], bool] | None = None,
    ) -> int:
        """Look at the queue, if it is worth it; only at those before the first one that does not
        go first, if that is given. Returns the tokens planned."""
        state, before = self._state, plan.num_tokens
        if len(state.waiting) == 0 or budget <= 0 or not self._may_admit():
            return 0
        # A suspect that is not in memory may wait for that, or for what it shows, for which the
        # others make room if nobody takes more.
        if suspect is not None and suspect.residency is None and may_see(state, suspect):
            return 0
        waiting = state.waiting.ordered(self._now)
        if goes_first is not None:
            waiting = takewhile(goes_first, waiting)
        if suspect is not None:
            waiting = (req for req in waiting if not state.trials.is_suspect(req))
        may_pin = suspect is None or suspect.residency is not None
        self._admit(plan, budget, waiting, may_pin=may_pin)
        return plan.num_tokens - before

    def plan_deferred(self, plan: Plan) -> None:
        """The rows that had to wait for tokens, which are known now, and for what prompts leave to
        guesses."""
        room = NO_DRAFTS
        if plan.guessed:
            rows = sum(req.residency is not None for req in plan.deferred)
            planned = plan.num_tokens - plan.num_ahead
            tokens = self._config.chunked_prefill_size - planned - rows
            room = self._draft_room(plan, plan.num_decodes + rows, tokens)
        self._decodes.plan_deferred(plan, room)

    def _plan_trial(self, plan: Plan, suspect: Req) -> bool:
        """Plan the suspect's next tokens; none while others of it are being computed, or if it has
        to wait for memory, which others hold. Whether there are any."""
        budget = self._config.chunked_prefill_size
        self._beside = Beside(sum(not is_cut(req) for req in self._others()))
        if self._beside.decodes > 0 and self.costs is not None:  # which wait for this step
            budget = self._tokens_beside(self.costs)
        if suspect.residency is None:
            if self._may_admit():
                self._admit(plan, budget, [suspect])
        elif not is_in_flight(suspect):
            if is_cut(suspect):
                self._plan_prefills(plan, budget, [suspect])
            else:
                self._decodes.plan(plan, [suspect], self._expected_room())
            if not (plan.rows or plan.deferred) and suspect.residency is not None:
                self._state.retract(suspect)
        return bool(plan.rows or plan.deferred)

    def _prefill_budget(self, plan: Plan) -> int:
        """Prompt tokens that the step has room for, with trials set aside for. Decodes never starve
        prefills altogether."""
        budget = whole = self._config.chunked_prefill_size
        self._beside = self._beside_prompts(plan)
        if self._beside.decodes > 0 and self.costs is not None:
            budget = self._tokens_beside(self.costs)
        taken = plan.num_tokens + len(plan.deferred) + plan.trials
        return min(budget, max(whole - taken, whole // 8, 1))

    def _beside_prompts(self, plan: Plan) -> Beside:
        """What the plan has before prompts are added: guesses only as far as they do not give way,
        which are trials; or where they are made whether they pay or not, about as many as in the
        step that runs."""
        rows, deferred, drafted = plan.rows, plan.deferred, plan.trials
        if not self._state.speculation.gives_way:
            drafted = sum(req.held.num_drafted for req in deferred)
        return Beside(sum(row.num_known for row in rows) + len(deferred), drafted)

    def _expected_room(self) -> DraftRoom:
        """What is left for guesses in the step that is to be planned, as far as is known. Where
        prompts wait in the queue they take all that there is."""
        if not self._state.speculation.sources:
            return NO_DRAFTS
        size, running = self._config.chunked_prefill_size, but_ahead(self._state.running.values())
        cut = [req.held.prefill_len - req.held.kv_len for req in running if is_cut(req)]
        queued = num_queued(self._state)
        others = size if queued > 0 else min(sum(cut), size)
        decodes = len(running) - len(cut) - len(self._shares.newest.left_out)
        tokens = max(0, size - others - decodes)
        return self._room(Beside(decodes), others, tokens, len(cut) + queued)

    def _draft_room(self, plan: Plan, decodes: int, tokens: int) -> DraftRoom:
        """What the plan, of which as many rows decode, leaves for guesses: `tokens` at most."""
        drafted = plan.num_drafted
        others = max(0, plan.num_tokens - plan.num_decodes - drafted)
        waiting = plan.num_prompts + num_queued(self._state)
        room = self._room(Beside(decodes), others, tokens, waiting)
        if drafted > 0 and self.costs is not None:
            room = room._replace(seconds=room.seconds - drafted * self.costs.draft_s)
        return room

    def _room(self, beside: Beside, others: int, tokens: int, waiting: int) -> DraftRoom:
        """The room for guesses in a step of these decodes and so many `others`, tokens of prompts,
        which leaves as many `tokens` of its budget. A req that has the step to itself, and for
        which nobody waits, may take what time it likes."""
        costs = self.costs
        is_alone = len(but_ahead(self._state.running.values())) <= 1 and waiting == 0
        if costs is None or not self._state.speculation.gives_way or is_alone:
            return DraftRoom(tokens, waiting=waiting)
        target_s = self._shares.target_s(costs, beside.decodes)
        spare_s = beside.spare_s(costs, target_s) - self._sliced_s
        seconds = min(GUESSES_SHARE * spare_s, spare_s - others * costs.token_s)
        return DraftRoom(tokens, seconds, waiting, may_try=spare_s > 0.0)

    def _tokens_beside(self, costs: StepCosts) -> int:
        """Prompt tokens beside the decodes, after what is encoded before them."""
        whole = self._config.chunked_prefill_size
        target_s = self._shares.target_s(costs, self._beside.decodes)
        return tokens_beside(costs, self._beside, whole, target_s, self._sliced_s)

    def _plan_prefills(self, plan: Plan, budget: int, running: Iterable[Req]) -> int:
        """The next chunks of those that are partly prefilled; returns the tokens planned."""
        planned = 0
        for req in [req for req in running if is_cut(req)]:
            if planned < budget and req.residency is not None:
                planned += self._extend(plan, req, budget - planned)
        return planned

    def _extend(self, plan: Plan, req: Req, budget: int) -> int:
        """Plan up to `budget` of the req's tokens, fewer if memory is short; returns how many, with
        those that are guessed."""
        state = self._state
        budget = min(budget, AHEAD_TOKENS) if req.wish.is_ahead else budget
        length = min(req.extend_left, budget, state.memory.room)
        if req.spans.are_whole:
            length = whole(req, length, state.memory.room)
        if length == 0:
            return 0
        may_follow = follows(state, req, length, self._proposal(plan, req, length))
        if may_follow is None:
            return 0
        slots = state.memory.alloc(length + len(may_follow.draft))
        assert slots is not None
        held = req.held
        state.memory.table.slots[held.row, held.kv_len : held.kv_len + len(slots)] = slots
        plan.add(req, length, is_decode=False, follows=may_follow)
        return len(slots)

    def _proposal(self, plan: Plan, req: Req, length: int) -> Proposal | None:
        """What to guess after the last `length` tokens of a prompt, if there is room to spare and
        no other prompt waits for it."""
        state, speculation = self._state, self._state.speculation
        if length < req.extend_left or not speculation.may_guess(req):
            return None
        planned = plan.num_tokens + len(plan.deferred) + length
        tokens = self._config.chunked_prefill_size - planned
        tokens = min(tokens, state.memory.easy_room - length)
        if tokens <= 0 or (speculation.gives_way and self._others_wait(req)):
            return None
        decodes = plan.num_decodes + len(plan.deferred)
        room = self._draft_room(plan, decodes, tokens)
        if self.costs is not None and speculation.gives_way:
            others_s = self.costs.token_s * (planned - decodes)
            most_s = FIRST_TOKEN_SHARE * (self.costs.decode_s(decodes) + others_s)
            seconds = min(room.seconds - length * self.costs.token_s, most_s)
            room = room._replace(seconds=seconds)
        found = speculation.proposals([req], decodes + 1, room, are_alone=False)
        return found.get(req.handle)

    def _others_wait(self, req: Req) -> bool:
        """Whether a prompt other than the req's has tokens that are not planned."""
        running = but_ahead(self._state.running.values())
        return num_queued(self._state) > 0 or any(
            is_cut(other) for other in running if other is not req
        )

    def _may_admit(self) -> bool:
        """Whether it is worth looking at the queue."""
        state = self._state
        if state.memory.table.num_free_rows == 0:
            return False
        return state.admissions.are_due(state.counters.forward_steps) or not state.running

    def _admit(self, plan: Plan, budget: int, waiting: Iterable[Req], may_pin: bool = True) -> None:
        """Move these waiting reqs into the batch, in this order, while memory lasts. Without
        `may_pin`, none of them takes room in the encoder cache that it does not have already.

        `available` shrinks by everything a taken req will need: tokens to compute, expected
        output, and the part of its prefix that its lock makes unevictable.
        """
        state, admissions, cache = self._state, self._state.admissions, self._state.memory.cache
        available = available_slots(state)
        running = but_ahead(state.running.values())
        prefilling = [req for req in running if req.held.prefill_left > 0]
        aside = Aside(self._config.max_wait_s)
        for req in waiting:
            if budget <= 0 or state.memory.table.num_free_rows == 0:
                return
            if aside and aside.stops(req):
                if len(state.waiting.callers) == 1:
                    return
                continue
            if req.tokens.are_late:
                return  # retracted just now: nobody takes its place before its last token is known
            if is_being_computed(req, prefilling, cache):
                aside.add(req)
                continue  # soon: when the prefix that it needs is in the tree
            if req.spans and not has_media(state, req, may_pin):
                # Nobody else waits for it: what others show is encoded meanwhile, where there is
                # room beside what this one and those before it need.
                may_pin = may_pin and req.handle in state.media.pinned
                continue
            need = prefix_need(req, cache) + admissions.ratio.expected_outputs(req)
            if need > available and give_up(state):
                available = available_slots(state)
            if need > available and state.running:
                admissions.stopped(state.counters.forward_steps, len(state.running))
                return
            available -= need
            state.start(req, self._now)
            budget -= self._extend(plan, req, budget)
            if req.residency is not None:  # it may have ended, with nothing left to sample
                prefilling.append(req)
        admissions.nobody_is_stopped()

    def _unblock(self, plan: Plan, budget: int) -> bool:
        """Nothing could be planned. If that is because partly prefilled reqs hold all memory,
        retract until one of them can go on. False if there is simply nothing to do now."""
        state = self._state
        while True:
            running = [req.held for req in but_ahead(state.running.values())]
            stuck = [held for held in running if held.kv_len < held.prefill_len]
            in_flight = any(held.computed_len < held.kv_len for held in running)
            if len(stuck) == 0 or in_flight:
                return False
            if self._plan_prefills(plan, max(budget, 1), self._others()) > 0:
                return True
            if give_up(state):
                continue
            if len(state.running) < 2:
                return False
            state.retract(min(state.running.values(), key=retraction_key))
