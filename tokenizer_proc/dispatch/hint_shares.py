"""What requests' hints come to: when their applications came, and who may go before others.

`Dispatch` owns one. A class that is before others is worth something as long as few are in it: each
caller (`TokenizedReq.caller`) has a share of the rows that run at once. An
application came when its first request did; it is known as long as some of it is in flight, and
somewhat longer, since its next request may wait for a tool or a person.
"""

from collections import Counter
from dataclasses import dataclass

from cachetools import LRUCache

from srt.ring.crash_file import Name
from srt.wire.hints import Hints, PerfClass
from tokenizer_proc.dispatch.admission import Admission

URGENT_SHARE = 0.25  # of the rows that run at once, for the urgent requests of one caller
MAX_APPS = 16_384
APP_IDLE_S = 60.0  # after its latest request, an application is a new one
APP_MOST_AGE_S = 600.0  # so that one that never ends is not before all others for ever


@dataclass(slots=True)
class _App:
    arrival_s: float
    seen_s: float  # its latest request


class HintShares:
    """The urgent requests in flight, by caller, where at most `max_running` rows run at once; and
    the applications."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self.keep(1, 1)
        self.reset()

    def keep(self, present: int, replicas: int) -> None:
        """Only so many of the replicas exist on which the rows run."""
        rows = self._max_running * present // replicas
        self._most = max(1, int(rows * URGENT_SHARE))

    def reset(self) -> None:
        """Start a new epoch: nothing is in flight."""
        self._urgent: dict[Name, str] = {}
        self._counts: Counter[str] = Counter()
        self._apps: LRUCache[tuple[str, str], _App] = LRUCache(MAX_APPS)

    def perf_of(self, hints: Hints | None, caller: str, count: int) -> PerfClass:
        """The class that `count` requests of a caller with these hints would have now."""
        if hints is None:
            return ""
        return "throughput" if self._are_beyond(hints, caller, count) else hints.perf

    def applied(self, admission: Admission, now: float) -> Admission:
        """The admission with hints as they are for the scheduler: with its application's arrival,
        and beyond its caller's share of the class `throughput`, without a time when it is due."""
        hints = admission.parts[0].hints if admission.parts else None
        if hints is None:
            return admission
        caller = admission.parts[0].caller
        changes = {"arrival_s": self._arrival_s(caller, hints, now)}
        if not hints.is_urgent or hints.is_ahead:  # that passes nobody: its class is its call's
            return admission.hinted(**changes)
        if self._are_beyond(hints, caller, len(admission.parts)):
            lowered = {"perf": "throughput", "deadline_ms": 0, "tpot_ms": 0.0, "due_s": 0.0}
            return admission.hinted(**changes, **lowered, is_lowered=True)
        for part in admission.parts:
            self._urgent[part.client, part.rid] = caller
        self._counts[caller] += len(admission.parts)
        return admission.hinted(**changes)

    def free(self, client: bytes, rid: str) -> None:
        """A request has ended. Unknown ones are ignored."""
        caller = self._urgent.pop((client, rid), None)
        if caller is not None:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]

    def _are_beyond(self, hints: Hints, caller: str, count: int) -> bool:
        """Whether so many more are beyond the caller's share of urgent ones."""
        return hints.is_urgent and self._counts[caller] + count > self._most

    def _arrival_s(self, caller: str, hints: Hints, now: float) -> float:
        """When the application came: as the hints say, or as its first request did."""
        arrival_s = min(hints.arrival_s, now)
        if not arrival_s and hints.app:
            app = self._apps.get((caller, hints.app))
            if app is None or now - app.seen_s > APP_IDLE_S:
                app = self._apps[caller, hints.app] = _App(now, now)
            app.seen_s = now
            arrival_s = app.arrival_s
        return max(arrival_s or now, now - APP_MOST_AGE_S)
