"""Who gives way, while the rows or the memory of a batch do not suffice for all callers.

Part of the scheduler core. Beside waiting reqs of callers with credit left, those without credit
are in debt: their prompts that are partly computed wait, and where a req of the former has waited
for `fair_wait_s` for a row or for memory, a running req of the latter goes back to the queue.
"""

from scheduler_proc.core.ahead import others_wait
from scheduler_proc.core.decode_planner import retraction_key
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerConfig, SchedulerState

GAP = 3  # quanta of credit between two callers, so that one's prompts hold up the other's


class GivingWay:
    """Looks at the callers of `state` before each step. While only one has reqs, nobody is in
    debt."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._state, self._fair_wait_s = state, config.fair_wait_s
        self._quantum = config.chunked_prefill_size
        self._since_s: dict[str, float] = {}  # since when these callers wait and have credit left
        self._able: set[str] = set()  # at the last look

    def look(self, now: float) -> None:
        """See who waits and has credit left, refilled if need be."""
        state = self._state
        callers = state.waiting.callers if others_wait(state) else ()
        self._able = state.waiting.credits.able(callers)
        self._since_s = {caller: self._since_s.get(caller, now) for caller in self._able}

    def is_first(self, req: Req) -> bool:
        """Whether the waiting req is of a caller with credit left."""
        return req.wish.caller in self._able

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
        credits = self._state.waiting.credits
        most = max(credits.left(caller) for caller in self._able)
        return most - credits.left(req.wish.caller) > GAP * self._quantum

    def victim(self, now: float) -> Req | None:
        """The running req that has to go back to the queue now: of the caller that is most in debt
        the least advanced one. None if none has to."""
        state = self._state
        if state.memory.table.num_free_rows > 0 and not state.admissions.are_stopped:
            return None
        until_s = now - self._fair_wait_s
        waits = (max(since, self._oldest_s(caller)) for caller, since in self._since_s.items())
        if min(waits, default=now) > until_s:
            return None
        running = state.running.values()
        debtors = [req for req in running if self.is_in_debt(req) and not _is_ending_prompt(req)]
        return min(debtors, key=self._debt_key, default=None)

    def _oldest_s(self, caller: str) -> float:
        return self._state.waiting.oldest_s(caller)

    def _debt_key(self, req: Req) -> tuple[float, int, int]:
        credits, caller = self._state.waiting.credits, req.wish.caller
        return credits.left(caller) / credits.weight(caller), *retraction_key(req)


def _is_ending_prompt(req: Req) -> bool:
    """Whether the last of its prompt is in flight, whose result it must be there for."""
    return req.tokens.are_late and req.held.prefill_left > 0
