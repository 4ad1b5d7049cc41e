"""What of a req's prompt may be planned. Part of the scheduler core."""

from scheduler_proc.core.requests.admission import matched_len
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState


def is_cut(req: Req) -> bool:
    """Whether the tokens that the req entered with are not all planned."""
    return req.held.kv_len < req.held.prefill_len


def is_in_flight(req: Req) -> bool:
    """Whether a step that the req, which is in memory, is part of is not committed yet."""
    return req.held.computed_len < req.held.kv_len or req.tokens.are_late


def whole(req: Req, length: int, room: int) -> int:
    """Of the next `length` tokens, as many as leave no span cut in two. A span that is longer than
    that is planned all the same, if there is room in memory."""
    start = req.held.kv_len
    usable = req.spans.usable(start + length) - start
    if usable > 0 or length == 0:
        return usable
    span = req.spans.around(start + length)
    assert span is not None and span.start == start
    return span.item.length if span.item.length <= room else 0


def may_see(state: SchedulerState, req: Req) -> bool:
    """Whether nothing that a waiting req shows is missing."""
    return not req.spans or has_media(state, req)


def has_media(state: SchedulerState, req: Req, may_pin: bool = True) -> bool:
    """Whether all is encoded that its cached prefix does not cover; what is not will be, as soon as
    there is room for it. Without `may_pin`, it takes no room that it does not have."""
    media = state.media
    if lacks_media(state, req):
        return False
    if not may_pin and req.handle not in media.pinned:
        return False
    first, stop = matched_len(req, state.memory.cache), req.tokens.prompt_len
    items = [span.item for span in req.spans.within(first, stop)]
    is_ready = media.need(req.handle, items)
    req.media_version = None if is_ready else media.version
    return is_ready


def lacks_media(state: SchedulerState, req: Req) -> bool:
    """Whether something was missing at the last look that a waiting req shows, and still is."""
    return req.media_version == state.media.version


def available_slots(state: SchedulerState) -> int:
    """Slots that a new req could count on, the running reqs' future needs set aside."""
    reserved = sum(
        max(0, req.extend_left) + state.admissions.ratio.expected_outputs(req)
        for req in state.running.values()
        if not req.wish.is_ahead
    )
    return state.memory.room - reserved


def num_queued(state: SchedulerState) -> int:
    """The prompts that wait in the queue for their turn. None where memory has stopped the next
    one: these wait for reqs that run to end, the sooner the better."""
    is_full = state.memory.table.num_free_rows == 0 or state.admissions.are_stopped
    return 0 if is_full else len(state.waiting)
