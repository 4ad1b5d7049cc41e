"""How long a request that arrives now would wait for its first token, and the bound on that.

The front counts what it hands to each scheduler; that reports how much of it has left its queue,
and how fast it works. Only what is before a request counts, so that one with nothing before
it is never refused, however large it is. Before the scheduler reports, no wait is expected.
"""

import math

from srt.ring.recent_prompts import RecentPrompts
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.ring_messages import Pace, TokenizedReq

_AT_REST = Pace(incarnation=0)
SLACK = 1.25  # a wait may become this many times the expected one: machines slow down


class QueueWait:
    """The expected wait after all that was handed to one scheduler."""

    def __init__(self) -> None:
        self._entered = self._entered_tokens = 0
        self._recent = RecentPrompts()
        self._pace = _AT_REST

    def enter(self, part: TokenizedReq) -> None:
        """Count a request that goes to the scheduler."""
        self._entered += 1
        self._entered_tokens += self._recent.own_len(part)

    def update(self, pace: Pace) -> None:
        """Take the scheduler's latest report."""
        self._pace = pace

    def expected_s(self, unread: int = 0, in_flight: int | None = None) -> float:
        """The time that what waits now takes until the next one has begun: its prompts, the whole
        of the requests that must end because there are no more places, the rest of the step that
        runs, and the step of the next one itself; 0 if nothing waits. `unread` requests also come
        before it; their own tokens are not known yet, so they count without their prompts. No more
        wait than are `in_flight`, which is newer than the scheduler's latest report."""
        pace = self._pace
        waiting = self._entered - pace.left + unread
        waiting = waiting if in_flight is None else min(waiting, in_flight)
        tokens = self._entered_tokens - pace.left_tokens
        if waiting <= 0:
            return 0.0
        expected_s = tokens * pace.prompt_token_s + 1.5 * pace.step_s
        without_place = waiting - pace.free_places
        if without_place > 0:
            expected_s += without_place * pace.request_s + pace.running_s
        return expected_s


class QueueWaits:
    """Those of all `replicas`. `limit_s` 0 means no limit. A new request will have the shortest of
    the waits at the `open` ones, those that have a scheduler, or that at the one it has chosen."""

    def __init__(self, limit_s: float, replicas: int) -> None:
        self._limit_s = limit_s
        self._replicas = replicas
        self.reset()

    def reset(self) -> None:
        """Start a new epoch: nothing waits."""
        self.open: list[int] = []
        self._waits = [QueueWait() for _ in range(self._replicas)]

    def lose(self, replica: int) -> None:
        """Its scheduler is lost: nothing waits there."""
        self._waits[replica] = QueueWait()

    def enter(self, replica: int, part: TokenizedReq) -> None:
        """Count a request that goes to this replica's scheduler."""
        self._waits[replica].enter(part)

    def update(self, replica: int, pace: Pace) -> None:
        """Take its scheduler's latest report."""
        self._waits[replica].update(pace)

    def expected_s(
        self, unread: int = 0, in_flight: int | None = None, chosen: int | None = None
    ) -> float:
        """As a `QueueWait`'s, the `unread` shared out. The client may have `chosen` a replica."""
        unread = math.ceil(unread / max(1, len(self.open)))
        replicas = [chosen] if chosen in self.open else self.open
        waits = (self._waits[replica].expected_s(unread, in_flight) for replica in replicas)
        return min(waits, default=0.0)

    def check(
        self, unread: int = 0, in_flight: int | None = None, chosen: int | None = None
    ) -> None:
        """Raise RequestError if a request that arrives now would wait for too long."""
        expected_s = self.expected_s(unread, in_flight, chosen)
        if self._limit_s and SLACK * expected_s > self._limit_s:
            raise RequestError(
                "the server is at its limit: a request would wait for up to "
                f"{SLACK * expected_s:.0f} s, and may wait for {self._limit_s:g}",
                code=OVERLOADED,
                retryable=True,
                retry_after_s=expected_s - self._limit_s / SLACK,
            )
