"""Requests ahead of time: prompts that are computed before the request that will have them comes.

They are of use only where nobody else is the worse for it. So none of them waits: one that cannot
be admitted at once ends, and all end as soon as another request waits, or memory becomes short;
what is computed by then is in the tree. One runs at a time, in small chunks, and a row stays free
for a request that comes. Its tokens are charged to its caller like others, but while only such
requests are in the queue nobody is in debt, gives way or gains credit.
"""

from scheduler_proc.core.state import SchedulerState
from srt.wire.messages import Finish

AHEAD_TOKENS = 32  # of a step, which others may have to wait for
FREE_ROWS = 2  # its own, and one


def make_way(state: SchedulerState) -> None:
    """End all of them if another req waits, or if memory is short."""
    ahead = state.live.ahead
    if not ahead:
        return
    if others_wait(state) or state.memory.room < len(state.running) + AHEAD_TOKENS:
        _end(state, list(ahead))


def others_wait(state: SchedulerState) -> bool:
    """Whether others than these wait in the queue."""
    in_queue = sum(req.residency is None for req in state.live.ahead.values())
    return len(state.waiting) > in_queue


def may_enter(state: SchedulerState, need: int, available: int) -> bool:
    """Whether there is room for one that needs as many slots of those that are `available`."""
    is_alone = all(req.residency is None for req in state.live.ahead.values())
    return is_alone and need <= available and state.memory.table.num_free_rows >= FREE_ROWS


def end_unadmitted(state: SchedulerState) -> None:
    """End those that are not in memory."""
    _end(state, [handle for handle, req in state.live.ahead.items() if req.residency is None])


def _end(state: SchedulerState, handles: list[int]) -> None:
    for handle in handles:
        state.finish(state.live.ahead[handle], Finish("abort"))
