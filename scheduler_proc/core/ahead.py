"""Requests ahead of time: prompts that are computed before the request that will have them comes.

They are of use only where nobody else is the worse for it. So they are not in the queue, and one at
a time has a place of its own in memory, beyond the rows of all others. It computes a small chunk
in a step that has no other prompt to compute, which may be while others wait for a row; it evicts
nothing that these have matched, and ends as soon as memory becomes short. What is computed by then
is in the tree. Its tokens are charged to its caller like others, but while only such requests wait
nobody is in debt, gives way or gains credit.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from scheduler_proc.core.prompts import is_cut
from scheduler_proc.core.queueing.queue import MARKED
from scheduler_proc.core.requests.admission import matched_len, prefix_need
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.memory.tree_node import TreeNode
from srt.wire.messages import Finish

AHEAD_TOKENS = 32  # of a step, which others may have to wait for


def but_ahead(reqs: Iterable[Req]) -> list[Req]:
    """Those of the reqs that are not ahead of time."""
    return [req for req in reqs if not req.wish.is_ahead]


def make_way(state: SchedulerState) -> None:
    """End all of them if memory is short."""
    if not state.live.ahead:
        return
    if len(state.waiting) > 0 and state.memory.table.num_free_rows == 0:
        state.waiting.ordered(by_credit=False)  # what they have matched: nobody looks otherwise
    is_short = state.admissions.is_memory_short and len(state.waiting) > 0
    if is_short or _room(state) < len(state.running) + AHEAD_TOKENS:
        _end(state, state.live.ahead.values())


def give_up(state: SchedulerState) -> bool:
    """End the one that has memory, which others need; whether there was one."""
    present = [req for req in state.live.ahead.values() if req.residency is not None]
    _end(state, present)
    return bool(present)


def next_ahead(
    state: SchedulerState, plan: Plan, available: int, may_run: Callable[[Req], bool]
) -> Req | None:
    """The one that is to have a chunk in the step, which all others have been planned for; it is
    started if it `may_run` and what it needs is `available`. In memory one that may not pauses, but
    ends for one that may. Those that cannot be admitted end."""
    queued = [req for req in state.live.ahead.values() if req.residency is None]
    able = [req for req in queued if may_run(req)]
    present = next((req for req in state.live.ahead.values() if req.residency is not None), None)
    if present is not None and able and not may_run(present):
        _end(state, [present])
        present = None
    is_busy = plan.num_prompts > 0
    chosen = present
    if chosen is None and able and (is_busy or _fits(state, able[0], available)):
        chosen = able[0]
    _end(state, [req for req in queued if req is not chosen])
    if is_busy or chosen is None or not may_run(chosen):
        return None
    return _unless_known(state, chosen)


def _fits(state: SchedulerState, req: Req, available: int) -> bool:
    """Whether there is memory for one that is not admitted, beside what is spoken for."""
    room = min(available, _room(state) - len(state.running) - AHEAD_TOKENS)
    return prefix_need(req, state.memory.cache) <= room


def _unless_known(state: SchedulerState, req: Req) -> Req | None:
    """The req, if something of it is to be planned. It ends if another has computed what is."""
    if req.residency is None:
        return req
    if not is_cut(req):
        return None
    if matched_len(req, state.memory.cache) > req.held.kv_len:
        _end(state, [req])
        return None
    return req


def _room(state: SchedulerState) -> int:
    """Slots that can be had without evicting what waiting reqs have matched."""
    matched: dict[TreeNode, int] = {}  # tokens of these nodes
    for req in islice(state.waiting, MARKED):
        for node in req.cursor.path():
            length = min(node.end, req.cursor.length) - node.start
            if node.lock_ref > 0 or matched.get(node, 0) >= length:
                break  # and so are all above it
            matched[node] = length
    return state.memory.room - sum(matched.values())


def _end(state: SchedulerState, reqs: Iterable[Req]) -> None:
    for req in list(reqs):
        state.finish(req, Finish("abort"))
