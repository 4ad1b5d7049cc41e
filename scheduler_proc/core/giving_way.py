"""Who gives way, while the rows or the memory of a batch do not suffice for all callers.

Part of the scheduler core. Beside waiting reqs of callers with credit left, those without credit
are in debt: their prompts that are partly computed wait, and where a req of the former has waited
for `fair_wait_s` for a row or for memory, a running req of the latter goes back to the queue.
"""

from collections import Counter

from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.decode_planner import retraction_key
from scheduler_proc.core.queueing.classes import FLEX
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerConfig, SchedulerState

GET_ON = 16  # outputs beyond twice those that it had, before a req gives way again
# A step that has all prompts of callers with credit is shorter by this part of its prompt tokens.
# More steps cost throughput, as each takes something besides its tokens.
SHORTER = 6
GAP = 3  # quanta of credit between two callers, so that one's prompts hold up the other's


class GivingWay:
    """Looks at the callers of `state` before each step. While only one has reqs, nobody is in
    debt."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._state, self._fair_wait_s = state, config.fair_wait_s
        self._quantum = config.chunked_prefill_size
        self._since_s: dict[str, float] = {}  # since when these callers wait and have credit left
        self._able: set[str] = set()  # at the last look
        self._looked_s = 0.0  # the time of that
        self._most = 0.0  # credit of one of them

    def look(self, now: float) -> None:
        """See who waits and has credit left, refilled if need be."""
        waiting = self._state.waiting
        before_s, self._looked_s = self._looked_s, now
        waiting.credits.settle()
        callers = waiting.callers
        if not (callers or self._able):
            return
        self._able = waiting.credits.able(callers)
        # One that the look before did not find waits since then, or since its req came after that.
        known = self._since_s
        self._since_s = {
            each: known[each] if each in known else max(before_s, waiting.oldest_s(each))
            for each in self._able
        }
        self._most = max(map(waiting.credits.left, self._able), default=0.0)

    def is_first(self, req: Req) -> bool:
        """Whether the waiting req is of a caller with credit left."""
        return self.is_able(req.wish.caller)

    def is_able(self, caller: str) -> bool:
        """Whether a caller waits and has credit left."""
        return caller in self._able

    @property
    def are_some_first(self) -> bool:
        """Whether some of the waiting callers have credit left, and others have none."""
        return 0 < len(self._able) < len(self._state.waiting.callers)

    def rest(self, budget: int, taken: int) -> int:
        """The prompt tokens of a step's budget that are left to callers in debt, where those with
        credit have `taken` some: fewer, if these are all that they have asked for, so that their
        first tokens come sooner. A caller with more to ask for gains nothing by it."""
        if taken == 0 or not self._able.isdisjoint(self._state.waiting.callers):
            return budget - taken
        return max(0, budget - taken - budget // SHORTER)

    def is_in_debt(self, req: Req) -> bool:
        """Whether a running req has to wait for those that wait for memory."""
        caller = req.wish.caller
        return bool(self._able - {caller}) and self._state.waiting.credits.left(caller) <= 0.0

    def holds_up(self, req: Req) -> bool:
        """Whether a running req's prompt has to wait for those of waiting callers: its caller is in
        debt, and one of these is that far ahead of it. Many callers in turn do not get so far: what
        one of them has begun is not to lie in memory half computed."""
        if not self.is_in_debt(req):
            return False
        gap = self._most - self._state.waiting.credits.left(req.wish.caller)
        return gap > GAP * self._quantum

    def victim(self, now: float) -> Req | None:
        """The running req that has to go back to the queue now: of the caller that is most in debt
        the least advanced one. None if none has to.

        Whom it is taken from holds no less after it, by weight, than one that has waited: else both
        would take the same row from each other in turn. Nor may a req that gave way give way again
        before it has got on, or what it computes again might be all that it does.
        """
        state = self._state
        if not self._able:
            return None
        are_rows_short = state.memory.table.num_free_rows == 0
        if not are_rows_short and not state.admissions.is_memory_short:
            return None
        late = [caller for caller, since_s in self._since_s.items() if self._waits(since_s, now)]
        late = [caller for caller in late if self._waits(state.waiting.oldest_s(caller), now)]
        if not late:
            return None
        running = but_ahead(state.running.values())
        sizes = {req: 1 if are_rows_short else req.held.kv_len for req in running}
        held = Counter[str]()
        for req, size in sizes.items():
            held[req.wish.caller] += size
        weight = state.waiting.credits.weight
        least = min(held[caller] / weight(caller) for caller in late)
        debtors = []
        for req, size in sizes.items():
            caller = req.wish.caller
            if (held[caller] - size) / weight(caller) >= least and self._may_give_way(req):
                debtors.append(req)
        return min(debtors, key=self._debt_key, default=None)

    def _waits(self, since_s: float, now: float) -> bool:
        return since_s <= now - self._fair_wait_s

    def _may_give_way(self, req: Req) -> bool:
        """Whether a running req is of a caller in debt, and loses little by giving way."""
        return may_go_back(req) and self.is_in_debt(req)

    def _debt_key(self, req: Req) -> tuple[float, bool, int, int]:
        """Of a caller's reqs those of the class `flex` go first."""
        credits, caller = self._state.waiting.credits, req.wish.caller
        debt = credits.left(caller) / credits.weight(caller)
        return debt, req.wish.rank != FLEX, *retraction_key(req)


def may_go_back(req: Req) -> bool:
    """Whether a running req may give way to others: it has got on since it last did, and the last
    of its prompt is not in flight, whose result it must be there for."""
    if req.yielded is not None and req.tokens.num_outputs < 2 * req.yielded + GET_ON:
        return False
    return not (req.tokens.are_late and req.held.prefill_left > 0)
