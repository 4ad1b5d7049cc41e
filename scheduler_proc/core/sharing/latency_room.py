"""Room for waiting reqs of the class `latency` among those of the class `throughput`.

Part of the scheduler core. While one of the former waits for a row or for memory, a running req of
the latter goes back to the queue before each step. Prompts of the former come before others that
are partly computed, which keep a part of each step. Reqs without a class give up no row.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.decode_planner import retraction_key
from scheduler_proc.core.giving_way import GivingWay, may_go_back
from scheduler_proc.core.prompts import lacks_media
from scheduler_proc.core.queueing.overtaking import is_latency, is_throughput
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState

LEAST_SHARE = 8  # of what a step has for prompts, others keep this part


class LatencyRoom:
    """Looks at the queue and the batch of `state` after `giving_way` has looked at callers. Without
    the policy `app` nobody is in its class, and it does nothing."""

    def __init__(self, state: SchedulerState, giving_way: GivingWay) -> None:
        self._state, self._giving_way = state, giving_way

    def _waiting(self) -> Iterator[Req]:
        """The waiting reqs of the class, of callers with credit left."""
        return filter(self._giving_way.is_first, self._state.waiting.overtaking.waiting.values())

    def _takers(self, now: float) -> dict[str, Req]:
        """Of these, one of each caller that takes its next turn."""
        waiting, classes = list(self._waiting()), self._state.waiting.classes
        callers = dict.fromkeys(req.wish.caller for req in waiting)
        firsts = {caller: classes.next(caller, now) for caller in callers}
        able = [req for req in waiting if not lacks_media(self._state, req)]
        return {req.wish.caller: req for req in able if firsts[req.wish.caller] in (None, req)}

    def victim(self, now: float) -> Req | None:
        """The running req of the class `throughput` that has to go back to the queue now: the least
        advanced one, which loses little by that (`may_go_back`). None if none has to.

        It is of the same caller, or of one that has no fewer rows after it, by weight: classes are
        an order within a caller's share, not a way beyond it. Nor does a req give way to one of its
        caller that its own class or priority goes before: it would be admitted again instead.
        """
        state = self._state
        is_short = state.memory.table.num_free_rows == 0 or state.admissions.is_memory_short
        if not is_short or not (takers := self._takers(now)):
            return None
        weight, running = state.waiting.credits.weight, but_ahead(state.running.values())
        held = Counter(req.wish.caller for req in running)
        least = min(held[caller] / weight(caller) for caller in takers)

        def may_be_taken(req: Req) -> bool:
            caller = req.wish.caller
            if (taker := takers.get(caller)) is not None and _is_before(taker, req):
                return True
            return (
                len(takers.keys() - {caller}) > 0 and (held[caller] - 1) / weight(caller) >= least
            )

        found = [req for req in running if is_throughput(req) and may_be_taken(req)]
        found = [req for req in found if may_go_back(req)]
        return min(found, key=retraction_key, default=None)

    def is_urgent(self, cut: Iterable[Req]) -> bool:
        """Whether prompts of the class wait, or are among these that are partly computed."""
        if not self._state.waiting.overtaking.has_classes:
            return False
        return any(map(is_latency, cut)) or any(True for _ in self._waiting())


def _is_before(taker: Req, other: Req) -> bool:
    """Whether a waiting req of the class goes before another of its caller by all that counts
    more."""
    wish = other.wish
    return taker.wish.rank > wish.rank or (
        taker.wish.rank == wish.rank and taker.wish.priority >= wish.priority
    )
