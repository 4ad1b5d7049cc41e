"""Which running req of the class `flex` gives its place to a higher class of its own caller.

Part of the scheduler core. Between callers `GivingWay` decides, and takes `flex` reqs first. Here a
caller gets no more than it has: the place of the one that goes back to the queue is the first to be
given to a req of its caller, since those that were admitted before have the first turns where the
class `latency` of another caller does not wait.
"""

from collections.abc import Callable

from scheduler_proc.core.decode_planner import retraction_key
from scheduler_proc.core.giving_way import may_go_back
from scheduler_proc.core.prompts import lacks_media
from scheduler_proc.core.queueing.classes import FLEX
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState


def preempted(state: SchedulerState, is_able: Callable[[str], bool], now: float) -> Req | None:
    """The running req that goes back to the queue now, the least advanced one; None if none does.
    `is_able` says whether a caller that waits has credit left. While others wait too,
    only rows are passed on: how much memory the other req needs is not known to be as much."""
    waiting = state.waiting
    are_rows_short = state.memory.table.num_free_rows == 0
    if not (are_rows_short or state.admissions.is_memory_short):
        return None
    flex: dict[str, list[Req]] = {}
    for req in state.running.values():
        if req.wish.rank == FLEX and req.wish.caller in waiting.callers and may_go_back(req):
            flex.setdefault(req.wish.caller, []).append(req)
    is_alone = len(waiting.callers) == 1
    for caller, mine in flex.items():
        # None: all that wait are of the class "default".
        taker = waiting.classes.next(caller, now)
        if taker is not None and (taker.wish.rank == FLEX or lacks_media(state, taker)):
            continue
        if is_alone or (are_rows_short and is_able(caller) and not waiting.has_first(caller)):
            waiting.classes.num_preempted += 1
            return min(mine, key=retraction_key)
    return None
