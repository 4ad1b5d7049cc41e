"""What a request says of its place among others, for the order of admission and the choice of a
replica: its class and priority, and hints about the application that it is part of.

None of it changes an answer. Every policy orders the requests of one caller by class and priority;
only the policy `app` and the router read hints. A client sets the first fields of the hints; the
front, and the part that runs programs, the others.
"""

import math
from typing import Literal, get_args

from msgspec import Struct

from srt.wire.errors import RequestError

PerfClass = Literal["", "latency", "throughput"]  # "": neither is asked for
ServiceTier = Literal["", "auto", "default", "flex", "priority"]  # "", "auto": by the priority
ServiceClass = Literal["flex", "default", "priority"]
CLASSES: tuple[ServiceClass, ...] = ("flex", "default", "priority")  # the last is served first
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_HINT_CHARS = 256
MAX_GROUP_SIZE = 2**16
MAX_DEPTH = 2**16
MAX_DEADLINE_MS = 24 * 3600 * 1000
MAX_TPOT_MS = 60_000.0
SERVER_SET = ("arrival_s", "due_s", "is_lowered", "is_ahead")  # no client over HTTP has these


def goes_before(queued: PerfClass, new: PerfClass) -> bool:
    """Whether the policy `app` may serve a queued request of one class before a new one of another.
    The class `latency` waits for itself alone; others for all, since what is overdue goes first."""
    return new != "latency" or queued == "latency"


class Hints(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`app` names the application, within what one caller sends: those that came first are served
    first. A `group` of `group_size` requests of it is done when its last one is, and the end of
    the application is `depth` requests behind this one. `deadline_ms` after its arrival the request
    should have its answer: it is not ended then, but refused if that has passed before it is
    admitted. `tpot_ms`, of the class `latency` alone, is a target for the time from one of its
    tokens to the next (0: none).

    On the ring, in seconds of the clock that all processes share (time.monotonic(); 0: not known):
    the application came at `arrival_s`, and the request is due at `due_s`, which never refuses it.
    A request that `is_lowered` has the class of hints beyond its caller's share. One that
    `is_ahead` of time computes a prompt that another will have, whose hints it has besides: it has
    its place where nobody else is the worse for it, and passes nobody.
    """

    app: str = ""
    perf: PerfClass = ""
    group: str = ""
    group_size: int = 0
    depth: int = 0
    deadline_ms: int = 0
    tpot_ms: float = 0.0
    arrival_s: float = 0.0
    due_s: float = 0.0
    is_lowered: bool = False
    is_ahead: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether it goes before requests without hints, so that its caller's share counts."""
        if self.is_ahead:
            return False
        return self.perf == "latency" or self.deadline_ms > 0 or self.due_s > 0.0

    def check(self) -> None:
        """Raise RequestError, naming the field, for a value that is out of bounds."""
        for name in ("app", "group"):
            if len(getattr(self, name)) > MAX_HINT_CHARS:
                reason = f" must have at most {MAX_HINT_CHARS} characters"
                raise RequestError(reason, at=f"hints.{name}")
        bounds = {"group_size": MAX_GROUP_SIZE, "depth": MAX_DEPTH, "deadline_ms": MAX_DEADLINE_MS}
        for name, most in bounds.items():
            if not 0 <= getattr(self, name) <= most:
                reason = f" must be between 0 and {most}, and is {getattr(self, name)}"
                raise RequestError(reason, at=f"hints.{name}")
        if not 0.0 <= self.tpot_ms <= MAX_TPOT_MS:
            reason = f" must be between 0 and {MAX_TPOT_MS:g}, and is {self.tpot_ms:g}"
            raise RequestError(reason, at="hints.tpot_ms")
        if self.tpot_ms and self.perf != "latency":
            reason = f" needs perf 'latency', and perf is {self.perf!r}"
            raise RequestError(reason, at="hints.tpot_ms")
        for name in ("arrival_s", "due_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise RequestError(" must be 0 or more", at=f"hints.{name}")


def class_of(tier: ServiceTier, priority: int) -> ServiceClass:
    """The class of a request: the tier that it names, or else that of its priority's sign. Among
    the requests of a class, those with a greater priority come first."""
    if tier == "flex" or tier == "default" or tier == "priority":
        return tier
    return CLASSES[1 + (priority > 0) - (priority < 0)]


def check_priority(tier: str, priority: int) -> None:
    """Raise RequestError, naming the field, for a tier or a priority that does not exist."""
    if tier not in get_args(ServiceTier):
        names = ", ".join(name for name in get_args(ServiceTier) if name)
        raise RequestError(f" must be one of {names}, and is {tier}", at="service_tier")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        reason = f" must be between {MIN_PRIORITY} and {MAX_PRIORITY}, and is {priority}"
        raise RequestError(reason, at="priority")
