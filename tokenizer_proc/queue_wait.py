"""How long a request that arrives now would wait for its first token, and the bound on that.

The front counts what it hands to the scheduler; the scheduler reports how much of it has left its
queue, and how fast it works. Only what is before a request counts, so that one with nothing before
it is never refused, however large it is. Before the scheduler reports, no wait is expected.
"""

from collections.abc import Sequence

from srt.ring.recent_prompts import RecentPrompts
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.ring_messages import Pace, TokenizedReq

_AT_REST = Pace(incarnation=0)
SLACK = 1.25  # a wait may become this many times the expected one: machines slow down


class QueueWait:
    """The expected wait after all that was handed on. `limit_s` 0 means no limit."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.reset()

    def reset(self) -> None:
        """Start a new epoch: nothing waits."""
        self._entered = self._entered_tokens = 0
        self._recent = RecentPrompts()
        self._pace = _AT_REST

    def enter(self, parts: Sequence[TokenizedReq]) -> None:
        """Count requests that go to the scheduler."""
        self._entered += len(parts)
        self._entered_tokens += sum(map(self._recent.own_len, parts))

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

    def check(self, unread: int = 0, in_flight: int | None = None) -> None:
        """Raise RequestError if a request that arrives now would wait for too long."""
        expected_s = self.expected_s(unread, in_flight)
        if self._limit_s and SLACK * expected_s > self._limit_s:
            raise RequestError(
                "the server is at its limit: a request would wait for up to "
                f"{SLACK * expected_s:.0f} s, and may wait for {self._limit_s:g}",
                code=OVERLOADED,
                retryable=True,
                retry_after_s=expected_s - self._limit_s / SLACK,
            )
