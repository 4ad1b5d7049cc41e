"""The requests that run and that wait, and why these do."""

from itertools import islice
from typing import Any

from scheduler_proc.core.requests.admission import is_being_computed
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.scheduler import Scheduler

SHOWN = 256  # requests of each kind
EXPLAINED = 16  # of those that wait: whether another one computes their prefix is asked


def running(core: Scheduler, now: float) -> list[dict[str, Any]]:
    """The oldest ones, at the time `now`."""
    return [_running(req, now) for req in islice(core.running.values(), SHOWN)]


def _running(req: Req, now: float) -> dict[str, Any]:
    held = req.held
    return _common(req, now) | {
        "state": "prefill" if held.prefill_left else "decode",
        "computed": held.computed_len,
        "cached": req.meta.cached_tokens,
        "node": held.node.uid if held.node.parent is not None else 0,
    }


def waiting(core: Scheduler, now: float) -> list[dict[str, Any]]:
    """The first ones by their arrival, with what keeps each: in plain words, one reason."""
    prefilling = [req for req in core.running.values() if req.held.prefill_left]
    found = []
    for number, req in enumerate(islice(core.waiting, SHOWN)):
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
                "why": _why(core, req, some),
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


def _why(core: Scheduler, req: Req, prefilling: list[Req]) -> str:
    most = core.config.max_running_requests
    if len(core.running) >= most:
        return f"all {most} places of the batch are taken"
    if prefilling and is_being_computed(req, prefilling, core.cache):
        return "another request computes a part of its prompt"
    needed = req.tokens.known_len - req.cursor.length
    free = core.pool.free_size + core.cache.evictable_size
    if needed > free:
        return f"it needs memory for {needed} tokens, and there is some for {free}"
    return "others have their turn"
