"""The requests that run and that wait, and why these do."""

from itertools import islice
from typing import Any

from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.requests.admission import is_being_computed
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState

SHOWN = 256  # requests of each kind
EXPLAINED = 16  # of those that wait: whether another one computes their prefix is asked


def running(state: SchedulerState, now: float) -> list[dict[str, Any]]:
    """The oldest ones, at the time `now`."""
    return [_running(req, now) for req in islice(state.running.values(), SHOWN)]


def _running(req: Req, now: float) -> dict[str, Any]:
    held = req.held
    return _common(req, now) | {
        "state": "prefill" if held.prefill_left else "decode",
        "computed": held.computed_len,
        "cached": req.meta.cached_tokens,
        "node": held.node.uid if held.node.parent is not None else 0,
    }


def waiting(state: SchedulerState, now: float) -> list[dict[str, Any]]:
    """The first ones by their arrival, with what keeps each: in plain words, one reason."""
    running = but_ahead(state.running.values())
    prefilling = [req for req in running if req.held.prefill_left]
    found = []
    for number, req in enumerate(islice(state.waiting, SHOWN)):
        cursor = req.cursor
        some = prefilling if number < EXPLAINED else []
        node = cursor.current()
        found.append(
            _common(req, now)
            | {
                "state": "waiting",
                "computed": 0,
                "cached": cursor.length if node is not None else 0,
                "node": node.uid if node is not None and node.parent is not None else 0,
                "why": _why(state, req, some),
            }
        )
    return found


def _common(req: Req, now: float) -> dict[str, Any]:
    """Clients number their requests: the client is a part of the name, until it is known there."""
    return {
        "rid": f"{req.wish.client.hex()}/{req.wish.rid}",
        "prompt": req.tokens.prompt_len,
        "output": req.tokens.num_outputs,
        "age_s": round(max(0.0, now - req.came_s), 3),
        "constrained": req.grammar is not None,
    }


def _why(state: SchedulerState, req: Req, prefilling: list[Req]) -> str:
    memory, most = state.memory, state.memory.table.max_reqs
    if state.memory.table.num_free_rows == 0:
        return f"all {most} places of the batch are taken"
    if prefilling and is_being_computed(req, prefilling, memory.cache):
        return "another request computes a part of its prompt"
    needed = req.tokens.known_len - req.cursor.length
    free = memory.easy_room
    if needed > free:
        return f"it needs memory for {needed} tokens, and there is some for {free}"
    return "others have their turn"
