"""What the front knows of callers: their limits and weights, what they have used of their rates,
how fast their requests end, and counts of them for the metrics.

What is held is bounded: limits are those of the files of keys, and of other callers only those with
requests lately are known.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from cachetools import LRUCache
from msgspec.structs import replace

from srt.callers.key_lines import NO_LIMITS, CallerLimits
from srt.wire.errors import RATE_LIMITED, RequestError
from srt.wire.messages import GenerateReq, ScoreReq
from tokenizer_proc.queueing.holdings import Holdings
from tokenizer_proc.queueing.rates import Rates

MAX_CALLERS = 4096  # whose ends are remembered
MAX_LABELS = 64  # callers that metrics have by name; the others are OTHERS together
OTHERS = "_others"  # which no name is
MEMORY_S = 30.0  # ends before that hardly count
MAX_RETRY_S = 60.0
COUNTS = ("requests", "refused", "gave_way", "prompt_tokens", "output_tokens")


class _Ends:
    """How many requests of a caller have ended lately; old ones count less."""

    count = 0.0
    at = 0.0

    def add(self, now: float) -> None:
        self.count, self.at = self._at(now) + 1.0, now

    def per_second(self, now: float) -> float:
        return self._at(now) / MEMORY_S

    def _at(self, now: float) -> float:
        return self.count * math.exp((self.at - now) / MEMORY_S)


class Callers:
    """The callers of one front, with the limits of `table`. Times are seconds of a clock that only
    grows."""

    def __init__(self, table: Mapping[str, CallerLimits] | None = None, now: float = 0.0) -> None:
        self.rates = Rates()
        self.changed: Callable[[], None] = lambda: None  # called when limits were taken over
        self._ends: LRUCache[str, _Ends] = LRUCache(MAX_CALLERS)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTS}
        self.set_limits(table or {}, now)

    def set_limits(self, table: Mapping[str, CallerLimits], now: float) -> None:
        """Take over the limits of all callers with keys."""
        self._table = dict(table)
        self._labels = set(list(table)[:MAX_LABELS])
        for counts in self._counts.values():  # of those that have no label any more
            for gone in [name for name in counts if name not in self._labels | {OTHERS}]:
                counts[OTHERS] += counts.pop(gone)
        self.rates.set_limits(table, now)
        self.changed()

    def limits(self, caller: str) -> CallerLimits:
        """The limits of a caller; one without a key has none."""
        return self._table.get(caller, NO_LIMITS)

    def weight(self, caller: str) -> float:
        """The share of a caller beside others' (above 0)."""
        return self.limits(caller).share

    def check(self, caller: str, req: object, num_requests: int, in_flight: int) -> None:
        """Raise RequestError if a request of `num_requests` parts is beyond the caller's limits on
        tokens to generate (400), or on what is in flight (429)."""
        limits = self.limits(caller)
        if limits.max_tokens and isinstance(req, GenerateReq):
            if req.sampling.min_new_tokens > limits.max_tokens:
                limit = f" must be at most {limits.max_tokens}, the limit of this key"
                raise RequestError(limit, at="min_new_tokens")
        if limits.running and num_requests > limits.running:
            limit = f"this key may have {limits.running} requests in flight, and this is"
            raise RequestError(f"{limit} {num_requests}, a sample or continuation each")
        if limits.running and in_flight + num_requests > limits.running:
            reason = f"this key may have {limits.running} requests in flight, and has {in_flight}"
            raise RequestError(reason, code=RATE_LIMITED, retryable=True)

    def lowered(self, caller: str, req: GenerateReq | ScoreReq) -> GenerateReq | ScoreReq:
        """The request with at most as many tokens to generate as the caller's limit allows. A
        client may have named none: which value is an API's default is not known here."""
        most = self.limits(caller).max_tokens
        if (
            not (most and isinstance(req, GenerateReq))
            or (req.sampling.max_new_tokens or 0) <= most
        ):
            return req
        return replace(req, sampling=replace(req.sampling, max_new_tokens=most))

    def ended(self, caller: str, output_tokens: int, now: float) -> None:
        """A request of the caller has ended, after so many tokens."""
        self.rates.take(caller, tokens=output_tokens)
        self.count("output_tokens", caller, output_tokens)
        ends = self._ends.get(caller) or _Ends()
        ends.add(now)
        self._ends[caller] = ends

    def retry_after_s(self, caller: str, num_requests: int, now: float) -> float:
        """Seconds until so many more requests of the caller have ended, as they did lately; 0 if
        that is not known."""
        ends = self._ends.get(caller)
        rate = ends.per_second(now) if ends is not None else 0.0
        return min(MAX_RETRY_S, num_requests / rate) if rate > 0 else 0.0

    def count(self, what: str, caller: str, by: int = 1) -> None:
        """Add to one of COUNTS."""
        self._counts[what][caller if caller in self._labels else OTHERS] += by

    def counts(self, in_flight: Holdings) -> dict[str, float]:
        """For statistics: one number for each count and caller, and for what is in flight. Nothing
        where nobody has a key."""
        found: dict[str, float] = {}
        if not self._table:
            return found
        for what, counts in self._counts.items():
            for label in (*self._labels, OTHERS):
                found[f"caller_{what}_total/{label}"] = counts[label]
        running: Counter[str] = Counter()
        for caller in in_flight.callers:
            running[caller if caller in self._labels else OTHERS] += in_flight.of(caller)
        for label in (*self._labels, OTHERS):
            found[f"caller_in_flight/{label}"] = running[label]
        return found
