"""What a request says of the application that it is part of, for the order of admission.

Hints never change an answer: the scheduler's policy `app` reads them, the others do not. A client
sets the first fields; the front, and the part that runs programs, the others.
"""

import math
from typing import Literal

from msgspec import Struct

from srt.wire.errors import RequestError

PerfClass = Literal["", "latency", "throughput"]  # "": neither is asked for
MAX_HINT_CHARS = 256
MAX_GROUP_SIZE = 2**16
MAX_DEPTH = 2**16
MAX_DEADLINE_MS = 24 * 3600 * 1000
SERVER_SET = ("arrival_s", "due_s", "is_lowered", "is_ahead")  # no client over HTTP has these


class Hints(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`app` names the application, within what one caller sends: those that came first are served
    first. A `group` of `group_size` requests of it is done when its last one is, and the end of
    the application is `depth` requests behind this one. `deadline_ms` after its arrival the request
    should have its answer: it is not ended then, but refused if that has passed before it is
    admitted.

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
        for name in ("arrival_s", "due_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise RequestError(" must be 0 or more", at=f"hints.{name}")
