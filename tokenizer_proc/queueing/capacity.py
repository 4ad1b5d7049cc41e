"""Whether there is room for a request that arrives now: places, and the wait for the first token.

`Places` are those of requests in flight. The front takes one for each request that it does not
refuse, and frees it when that ends. What a request may still generate does not count: it is
unknown, and usually far below its limit.

`QueueWaits` bound how long a request would wait. The front counts what it hands to each scheduler;
that reports how much of it has left its queue, and how fast it works. Only what is before a request
counts, so that one with nothing before it is never refused, however large it is: with the policy
`app`, others of its class alone for one of the class `latency`. Before the scheduler reports, no
wait is expected.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from srt.ring.recent_prompts import RecentPrompts
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.hints import PerfClass, goes_before
from srt.wire.ring_messages import Pace, TokenizedReq
from tokenizer_proc.queueing.holdings import Holdings

_AT_REST = Pace(incarnation=0)
MAX_AHEAD = 16  # requests ahead of time in flight
SLACK = 1.25  # a wait may become this many times the expected one: machines slow down


class Places:
    """At most `max_requests` places, and `max_tokens` prompt tokens in them. A prompt above
    `max_tokens` is taken when no other tokens are in flight, so that no valid request is refused
    forever. `holdings` has what each caller holds of both. Requests ahead of time are in flight
    too, and hold nothing of either."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.holdings = Holdings()
        self._tokens: dict[tuple[bytes, str], int] = {}  # by (client, rid)
        self._callers: dict[tuple[bytes, str], str] = {}
        self._ahead: set[tuple[bytes, str]] = set()
        self.num_tokens = 0
        # Called with the client and rid of each request that needs none any more, or has none.
        self.freed: Callable[[bytes, str], None] = lambda client, rid: None

    def __len__(self) -> int:
        return len(self._tokens) - len(self._ahead)

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

    def take_ahead(self, client: bytes, rids: Iterable[str], caller: str) -> None:
        """Note requests ahead of time."""
        for rid in rids:
            self._tokens[client, rid] = 0
            self._callers[client, rid] = caller
            self._ahead.add((client, rid))

    def is_ahead(self, client: bytes, rid: str) -> bool:
        """Whether a request in flight is ahead of time."""
        return (client, rid) in self._ahead

    def has_room_ahead(self, count: int) -> bool:
        """Whether `count` more of those have room, of which there are few at once."""
        return self.has_room(count) and len(self._ahead) + count <= MAX_AHEAD

    def fill(self, client: bytes, rid: str, num_tokens: int) -> None:
        """Count the prompt of a request, unless its place was freed meanwhile."""
        if (client, rid) in self._tokens and not self.is_ahead(client, rid):
            self._tokens[client, rid] = num_tokens
            self.num_tokens += num_tokens
            self.holdings.add("tokens", self._callers[client, rid], num_tokens)

    def free(self, client: bytes, rids: Iterable[str]) -> None:
        """Give places back. Unknown rids are ignored."""
        for rid in rids:
            caller = self._callers.pop((client, rid), None)
            if caller is not None:
                num_tokens = self._tokens.pop((client, rid))
            if self.is_ahead(client, rid):
                self._ahead.remove((client, rid))
            elif caller is not None:
                self.num_tokens -= num_tokens
                self.holdings.add("requests", caller, -1)
                self.holdings.add("tokens", caller, -num_tokens)
            self.freed(client, rid)

    def clear(self) -> None:
        """Free all."""
        self._tokens.clear()
        self._callers.clear()
        self._ahead.clear()
        self.holdings.clear()
        self.num_tokens = 0


class _Entered:
    """What was handed to a scheduler: requests, and the tokens of their prompts."""

    def __init__(self) -> None:
        self.num = self.num_tokens = 0

    def add(self, num_tokens: int) -> None:
        """Count a request."""
        self.num += 1
        self.num_tokens += num_tokens


class QueueWait:
    """The expected wait after all that was handed to one scheduler."""

    def __init__(self) -> None:
        self._all, self._first = _Entered(), _Entered()  # the latter of the class `latency`
        self._recent = RecentPrompts()
        self._pace = _AT_REST

    def enter(self, part: TokenizedReq) -> None:
        """Count a request that goes to the scheduler."""
        own_len = self._recent.own_len(part)
        self._all.add(own_len)
        if part.hints is not None and part.hints.perf == "latency":
            self._first.add(own_len)

    def update(self, pace: Pace) -> None:
        """Take the scheduler's latest report."""
        self._pace = pace

    def expected_s(
        self,
        unread: int = 0,
        in_flight: int | None = None,
        part: float = 1.0,
        perf: PerfClass = "",
    ) -> float:
        """The time that what waits now takes until the next one has begun: its prompts, the whole
        of the requests that must end because there are no more places, the rest of the step that
        runs, and the step of the next one itself; 0 if nothing waits. `unread` requests also come
        before it; their own tokens are not known yet, so they count without their prompts. No more
        wait than are `in_flight`, which is newer than the scheduler's latest report. Of all that
        was handed on, only `part` comes before it: callers have shares; and of that, only what
        `goes_before` one of the class `perf`."""
        pace, entered, free_places = self._pace, self._all, self._pace.free_places
        left, left_tokens = pace.left, pace.left_tokens
        if not goes_before("", perf):
            entered, left, left_tokens = self._first, pace.left_first, pace.left_first_tokens
            free_places += pace.giving_way
        waiting = math.ceil((entered.num - left) * part) + unread
        waiting = waiting if in_flight is None else min(waiting, in_flight)
        tokens = (entered.num_tokens - left_tokens) * part
        if waiting <= 0:
            return 0.0
        expected_s = tokens * pace.prompt_token_s + 1.5 * pace.step_s
        without_place = waiting - free_places
        if without_place > 0:
            expected_s += without_place * pace.request_s + pace.running_s
        return expected_s


class QueueWaits:
    """Those of all `replicas`. `limit_s` 0 means no limit. A new request will have the shortest of
    the waits at the `open` ones, those that have a scheduler, or that at the one it has chosen.
    Unless the policy `has_classes`, all come in the order of arrival."""

    def __init__(self, limit_s: float, replicas: int, *, has_classes: bool = False) -> None:
        self._limit_s, self._has_classes = limit_s, has_classes
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
        perf: PerfClass = "",
    ) -> float:
        """As a `QueueWait`'s, the `unread` shared out. The client may have `chosen` a replica."""
        perf = perf if self._has_classes else ""
        unread = math.ceil(unread / max(1, len(self.open)))
        replicas = [chosen] if chosen in self.open else self.open
        waits = (
            self._waits[replica].expected_s(unread, in_flight, part, perf) for replica in replicas
        )
        return min(waits, default=0.0)

    def check(
        self,
        unread: int = 0,
        in_flight: int | None = None,
        chosen: int | None = None,
        part: float = 1.0,
        perf: PerfClass = "",
    ) -> None:
        """Raise RequestError if a request that arrives now would wait for too long."""
        expected_s = self.expected_s(unread, in_flight, chosen, part, perf)
        if self._limit_s and SLACK * expected_s > self._limit_s:
            reason = f"a request would wait for up to {SLACK * expected_s:.0f} s, and may wait for"
            retry_after_s = expected_s - self._limit_s / SLACK
            raise overloaded(f"{reason} {self._limit_s:g}", retry_after_s)


def overloaded(reason: str, retry_after_s: float = 0.0) -> RequestError:
    """The refusal (429) of a request for which there is no room."""
    reason = f"the server is at its limit: {reason}"
    return RequestError(reason, code=OVERLOADED, retryable=True, retry_after_s=retry_after_s)
