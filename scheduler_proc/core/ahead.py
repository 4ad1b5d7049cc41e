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
        _end(state, list(state.live.ahead.values()))


def next_ahead(
    state: SchedulerState, plan: Plan, available: int, may_run: Callable[[Req], bool]
) -> Req | None:
    """The one that is to have a chunk in the step, which all others have been planned for; it is
    started if it `may_run` and what it needs is `available`. Those that cannot be admitted end."""
    ahead = list(state.live.ahead.values())
    if not ahead:
        return None
    present = [req for req in ahead if req.residency is not None]
    queued = [req for req in ahead if req.residency is None]
    is_busy = plan.num_prompts > 0
    if not present and is_busy:
        _end(state, queued[1:])
        return None
    if not present and queued and may_run(queued[0]):
        first = queued.pop(0)
        need = prefix_need(first, state.memory.cache)
        room = min(available, _room(state) - len(state.running) - AHEAD_TOKENS)
        if need <= room:
            present.append(first)
        else:
            queued.append(first)
    _end(state, queued)
    if is_busy or not present or not may_run(present[0]):
        return None
    return _unless_known(state, present[0])


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
    matched = sum(req.cursor.length for req in islice(state.waiting, MARKED))
    return state.memory.room - matched


def _end(state: SchedulerState, reqs: Iterable[Req]) -> None:
    for req in reqs:
        state.finish(req, Finish("abort"))
