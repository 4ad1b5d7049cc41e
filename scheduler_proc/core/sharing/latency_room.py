"""Room for waiting reqs of the class `latency` among those of the class `throughput`.

Part of the scheduler core. While one of the former waits for a row or for memory, a running req of
the latter goes back to the queue before each step; prompts of the latter that are partly computed
leave most of a step to the former's. Reqs without a class do neither.
"""

from collections import Counter
from collections.abc import Iterable

from scheduler_proc.core.decode_planner import retraction_key
from scheduler_proc.core.giving_way import GivingWay, may_go_back
from scheduler_proc.core.requests.overtaking import is_latency, is_throughput
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState

LEAST_SHARE = 8  # of what a step has for prompts, those that are held up keep this part


class LatencyRoom:
    """Looks at the queue and the batch of `state` after `giving_way` has looked at callers. Without
    the policy `app` nobody is in its class, and it does nothing."""

    def __init__(self, state: SchedulerState, giving_way: GivingWay) -> None:
        self._state, self._giving_way = state, giving_way

    def waiting(self) -> list[Req]:
        """The waiting reqs of the class, of callers with credit left."""
        waiting = self._state.waiting.overtaking.waiting.values()
        return [req for req in waiting if self._giving_way.is_first(req)]

    def victim(self) -> Req | None:
        """The running req of the class `throughput` that has to go back to the queue now: the least
        advanced one, which loses little by that (`may_go_back`). None if none has to.

        It is of the same caller, or of one that has no fewer rows after it, by weight: classes are
        an order within a caller's share, not a way beyond it.
        """
        state = self._state
        is_short = state.memory.table.num_free_rows == 0 or state.admissions.is_memory_short
        if not is_short or not (waiting := self.waiting()):
            return None
        weight, running = state.waiting.credits.weight, state.running.values()
        held = Counter(req.wish.caller for req in running)
        callers = {req.wish.caller for req in waiting}
        least = min(held[caller] / weight(caller) for caller in callers)

        def may_be_taken(req: Req) -> bool:
            caller = req.wish.caller
            return caller in callers or (held[caller] - 1) / weight(caller) >= least

        found = [req for req in running if is_throughput(req) and may_be_taken(req)]
        found = [req for req in found if may_go_back(req)]
        return min(found, key=retraction_key, default=None)

    def held_up(self, cut: Iterable[Req]) -> list[Req]:
        """Of the reqs whose prompts are partly computed, those that leave most of the step to
        prompts of the class, which wait or are partly computed too."""
        cut = list(cut)
        throughput = [req for req in cut if is_throughput(req)]
        if not throughput or not self._state.waiting.overtaking.has_classes:
            return []
        return throughput if self.waiting() or any(map(is_latency, cut)) else []
