"""Whether there is room for a request that arrives now: places, and the wait for the first token.

`Places` are those of requests in flight. The front takes one for each request that it does not
refuse, and frees it when that ends. What a request may still generate does not count: it is
unknown, and usually far below its limit.

`QueueWaits` bound how long a request would wait. The front counts what it hands to each scheduler;
that reports how much of it has left its queue, and how fast it works. Only what is before a request
counts, so that one with nothing before it is never refused, however large it is. Before the
scheduler reports, no wait is expected.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from srt.ring.recent_prompts import RecentPrompts
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.ring_messages import Pace, TokenizedReq
from tokenizer_proc.queueing.holdings import Holdings

_AT_REST = Pace(incarnation=0)
SLACK = 1.25  # a wait may become this many times the expected one: machines slow down


class Places:
    """At most `max_requests` places, and `max_tokens` prompt tokens in them. A prompt above
    `max_tokens` is taken when no other tokens are in flight, so that no valid request is refused
    forever. `holdings` has what each caller holds of both."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.holdings = Holdings()
        self._tokens: dict[tuple[bytes, str], int] = {}  # by (client, rid)
        self._callers: dict[tuple[bytes, str], str] = {}
        self.num_tokens = 0
        # Called with the client and rid of each request that needs none any more, or has none.
        self.freed: Callable[[bytes, str], None] = lambda client, rid: None

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, name: tuple[bytes, str]) -> bool:
        return name in self._tokens

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        return iter(self._tokens)

    def has_room(self, count: int) -> bool:
        """Whether `count` more requests have room."""
        return len(self) + count <= self.max_requests

    def has_room_for_tokens(self, count: int) -> bool:
        """Whether `count` more prompt tokens have room."""
        return not self.num_tokens or self.num_tokens + count <= self.max_tokens

    def caller(self, client: bytes, rid: str) -> str | None:
        """Whose request this is; None if it has no place."""
        return self._callers.get((client, rid))

    def take(self, client: bytes, rids: Iterable[str], caller: str = "") -> None:
        """Take places for requests whose prompts are not known yet: they count no tokens."""
        for rid in rids:
            self._tokens[client, rid] = 0
            self._callers[client, rid] = caller
            self.holdings.add("requests", caller, 1)

    def fill(self, client: bytes, rid: str, num_tokens: int) -> None:
        """Count the prompt of a request, unless its place was freed meanwhile."""
        if (client, rid) in self._tokens:
            self._tokens[client, rid] = num_tokens
            self.num_tokens += num_tokens
            self.holdings.add("tokens", self._callers[client, rid], num_tokens)

    def free(self, client: bytes, rids: Iterable[str]) -> None:
        """Give places back. Unknown rids are ignored."""
        for rid in rids:
            caller = self._callers.pop((client, rid), None)
            if caller is not None:
                num_tokens = self._tokens.pop((client, rid))
                self.num_tokens -= num_tokens
                self.holdings.add("requests", caller, -1)
                self.holdings.add("tokens", caller, -num_tokens)
            self.freed(client, rid)

    def clear(self) -> None:
        """Free all."""
        self._tokens.clear()
        self._callers.clear()
        self.holdings.clear()
        self.num_tokens = 0


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

    def expected_s(self, unread: int = 0, in_flight: int | None = None, part: float = 1.0) -> float:
        """The time that what waits now takes until the next one has begun: its prompts, the whole
        of the requests that must end because there are no more places, the rest of the step that
        runs, and the step of the next one itself; 0 if nothing waits. `unread` requests also come
        before it; their own tokens are not known yet, so they count without their prompts. No more
        wait than are `in_flight`, which is newer than the scheduler's latest report. Of all that
        was handed on, only `part` comes before it: callers have shares."""
        pace = self._pace
        waiting = math.ceil((self._entered - pace.left) * part) + unread
        waiting = waiting if in_flight is None else min(waiting, in_flight)
        tokens = (self._entered_tokens - pace.left_tokens) * part
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
        self,
        unread: int = 0,
        in_flight: int | None = None,
        chosen: int | None = None,
        part: float = 1.0,
    ) -> float:
        """As a `QueueWait`'s, the `unread` shared out. The client may have `chosen` a replica."""
        unread = math.ceil(unread / max(1, len(self.open)))
        replicas = [chosen] if chosen in self.open else self.open
        waits = (self._waits[replica].expected_s(unread, in_flight, part) for replica in replicas)
        return min(waits, default=0.0)

    def check(
        self,
        unread: int = 0,
        in_flight: int | None = None,
        chosen: int | None = None,
        part: float = 1.0,
    ) -> None:
        """Raise RequestError if a request that arrives now would wait for too long."""
        expected_s = self.expected_s(unread, in_flight, chosen, part)
        if self._limit_s and SLACK * expected_s > self._limit_s:
            reason = f"a request would wait for up to {SLACK * expected_s:.0f} s, and may wait for"
            retry_after_s = expected_s - self._limit_s / SLACK
            raise overloaded(f"{reason} {self._limit_s:g}", retry_after_s)


def overloaded(reason: str, retry_after_s: float = 0.0) -> RequestError:
    """The refusal (429) of a request for which there is no room."""
    reason = f"the server is at its limit: {reason}"
    return RequestError(reason, code=OVERLOADED, retryable=True, retry_after_s=retry_after_s)
