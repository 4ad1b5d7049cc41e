"""What the scheduler weighs before it lets a waiting req into the batch."""

import math
from collections.abc import Iterable

import numpy as np

from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.radix_cache import RadixCache

OUTPUT_CLIP = 4096  # expected outputs are not counted beyond this
RETRY_STEPS = 8  # look again at a queue that memory has stopped
MOST_ASIDE = 128  # reqs of a caller at a look, of which a long queue may have thousands
RETRACT_HEADROOM = 20  # decode steps that the ratio makes room for after a retraction


class NewTokenRatio:
    """How much of the allowed output a req is expected to need: the scheduler's optimism.

    Starts at `START`, decays to `MIN` over `DECAY_STEPS` steps that go well, and jumps to what the
    running reqs really used, plus some head-room, when a retraction shows it was too low.
    """

    START, MIN, DECAY_STEPS = 0.7, 0.1, 600

    def __init__(self) -> None:
        self.value = self.START

    def expected_outputs(self, req: Req) -> int:
        return int(self.value * min(max(0, req.remaining), OUTPUT_CLIP))

    def decay(self) -> None:
        self.value = max(self.MIN, self.value - (self.START - self.MIN) / self.DECAY_STEPS)

    def raise_after_retraction(self, running: Iterable[Req]) -> None:
        reqs = list(running)
        used = sum(req.tokens.num_outputs + RETRACT_HEADROOM for req in reqs)
        allowed = sum(req.tokens.max_len - req.tokens.prompt_len for req in reqs)
        self.value = min(1.0, max(self.value, used / max(1, allowed)))


class Admissions:
    """When a look at the queue is worth it: with a full pool, a long queue would be sorted for
    nothing, step after step. `ratio` says how much memory a req is expected to need."""

    def __init__(self) -> None:
        self.ratio = NewTokenRatio()
        self._has_changed = False  # a req has left the batch or come into the queue
        self._refused_at: int | None = None  # the forward step at which memory was short
        self._places = 0  # reqs that ran then; 0 once all waiting reqs were admitted

    def memory_changed(self) -> None:
        """A req has left the batch or come into the queue, or what one of them shows is there."""
        self._has_changed = True

    def are_due(self, step: int) -> bool:
        """Whether something has changed since memory stopped the next req, or a few steps have
        passed; `step` counts forward steps."""
        is_time = self._refused_at is not None and step >= self._refused_at + RETRY_STEPS
        if self._has_changed or is_time:
            self._has_changed, self._refused_at = False, None
        return self._refused_at is None

    @property
    def is_memory_short(self) -> bool:
        """Whether memory stopped the next req at the last look."""
        return self._refused_at is not None

    @property
    def are_stopped(self) -> bool:
        """Whether memory stopped the next req at the last look, and nothing changed since."""
        return self._refused_at is not None and not self._has_changed

    def stopped(self, step: int, num_running: int) -> None:
        """Memory has stopped the next req."""
        self._refused_at, self._has_changed = step, False
        self._places = num_running

    def nobody_is_stopped(self) -> None:
        """No waiting req has been stopped by memory."""
        self._places = 0

    def places(self, num_running: int, limit: int) -> int:
        """Reqs that can run at once, at most `limit`: as many as did when memory last stopped the
        next one."""
        return limit if self._places == 0 else max(self._places, num_running)


class Aside:
    """The reqs that stand aside in one look. Of their own caller, who comes more than `max_wait_s`
    later may not pass them, and nobody may once there are many of them."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._latest_s: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, req: Req) -> None:
        """This one stands aside."""
        caller, latest_s = req.wish.caller, req.arrival_s + self._max_wait_s
        self._latest_s[caller] = min(self._latest_s.get(caller, math.inf), latest_s)
        self._counts[caller] = self._counts.get(caller, 0) + 1

    def __len__(self) -> int:
        """The callers of whom some do."""
        return len(self._counts)

    def stops(self, req: Req) -> bool:
        """Whether the req may not pass those of its caller."""
        caller = req.wish.caller
        latest_s = self._latest_s.get(caller, math.inf)
        return req.arrival_s > latest_s or self._counts.get(caller, 0) >= MOST_ASIDE


def matched_len(req: Req, cache: RadixCache) -> int:
    """The length of the cached prefix that is of use, as of now."""
    return req.spans.usable(min(cache.track(*req.tracked), req.max_prefix_len))


def prefix_need(req: Req, cache: RadixCache) -> int:
    """Slots that admitting `req` takes from what is available: its uncached tokens, and those
    cached tokens that its lock would make unevictable."""
    matched = matched_len(req, cache)
    newly_locked = 0
    for node in req.cursor.path():
        if node.lock_ref > 0:
            break  # and so are all above it
        newly_locked += max(0, min(node.end, matched) - node.start)
    return req.tokens.known_len - matched + newly_locked


def is_being_computed(req: Req, prefilling: list[Req], cache: RadixCache) -> bool:
    """Whether the first uncached token of `req` belongs to the prompt of a req in `prefilling`.

    Then waiting a step or two saves computing it twice. What such a req has computed is in the
    tree already, so comparing up to the end of the match plus one token is enough.
    """
    candidates = [other for other in prefilling if other.wish.salt == req.wish.salt]
    if not candidates or not cache.enabled:
        return False
    tokens = req.tokens.known
    matched = cache.track(*req.tracked)
    if matched == len(tokens) or matched >= req.max_prefix_len:
        return False  # a longer match would be of no use
    next_key = req.spans.key(tokens, matched)
    for other in candidates:
        theirs = other.tokens.known
        if other.held.prefill_len > matched and other.spans.key(theirs, matched) == next_key:
            if np.array_equal(theirs[:matched], tokens[:matched]):
                if req.spans.alike(other.spans, matched):
                    return True
    return False
