"""The clocks of two machines: how far apart they are, and messages with times of one of them in
those of the other.

Parts of a ring compare times of "the clock that all processes share" (time.monotonic()), which
begins anew with each start of a machine. What travels to another machine is rewritten on the way.
"""

from collections import deque
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.wire.hints import Hints
from srt.wire.pause import Pause
from srt.wire.ring_messages import PauseSet, ReqStart, TokenBatch, TokenizedReq

NUM_PINGS = 16
# Two clocks drift apart by less: 16 pings, one each half second, by less than 2 ms.
_DRIFT = 200e-6
_UNSET = 0.0
# What stands for 0.0 of the other clock, which would say that nothing is set.
_FIRST = 1e-9


class Ping(NamedTuple):
    """What one ping has shown, in seconds: when its answer came, by how much the other clock is
    ahead of this one, and by how much that may be wrong, which is half of its round trip."""

    at: float
    ahead: float
    error: float


class Offset:
    """By how much another machine's clock is ahead of this one's, from pings: by that of the last
    16 which was back soonest."""

    def __init__(self) -> None:
        self._pings: deque[Ping] = deque(maxlen=NUM_PINGS)

    def add(self, sent_s: float, theirs_s: float, back_s: float) -> None:
        """A ping left at `sent_s` of this clock and was back at `back_s`; between the two the other
        clock showed `theirs_s`. All in seconds. One that is back before it was sent is left out."""
        if back_s < sent_s:
            return
        ping = Ping(back_s, theirs_s - (sent_s + back_s) / 2, (back_s - sent_s) / 2)
        # A clock has jumped, as that of a machine that was asleep: what was known is wrong.
        if self._pings and not all(_agree(ping, other) for other in self._pings):
            self._pings.clear()
        self._pings.append(ping)

    @property
    def seconds(self) -> float:
        """How much the other clock is ahead of this one; 0.0 before the first ping."""
        return min(self._pings, key=lambda ping: ping.error).ahead if self._pings else 0.0

    @property
    def error_s(self) -> float:
        """By how much `seconds` may be wrong; infinity before the first ping."""
        return min((ping.error for ping in self._pings), default=float("inf"))


def _agree(one: Ping, other: Ping) -> bool:
    """Whether the same offset may have made both, but for what clocks drift."""
    drift = _DRIFT * abs(one.at - other.at)
    return abs(one.ahead - other.ahead) <= one.error + other.error + drift


def rewrite(message: Any, seconds: float) -> Any:
    """A message between parts of a ring, with each of its times `seconds` later: the same object if
    it has none. What is not set stays so, and durations are the same everywhere."""
    if isinstance(message, TokenizedReq):
        return _request(message, seconds)
    if isinstance(message, TokenBatch):
        return _batch(message, seconds)
    return _pause_set(message, seconds) if isinstance(message, PauseSet) else message


def _request(message: TokenizedReq, seconds: float) -> TokenizedReq:
    hints = message.hints
    if not (message.arrival_s or message.deadline_s or hints):
        return message
    return replace(
        message,
        arrival_s=_later(message.arrival_s, seconds),
        deadline_s=_later(message.deadline_s, seconds),
        hints=None if hints is None else _hints(hints, seconds),
    )


def _hints(hints: Hints, seconds: float) -> Hints:
    """A request with hints is urgent only if it is due at a time above 0.0, which one from before
    the other machine's start is not."""
    arrival_s, due_s = _later(hints.arrival_s, seconds), _later(hints.due_s, seconds)
    return replace(hints, arrival_s=arrival_s, due_s=max(due_s, _FIRST) if due_s else _UNSET)


def _batch(message: TokenBatch, seconds: float) -> TokenBatch:
    if not (message.time_s or message.starts):
        return message
    starts = [_start(start, seconds) for start in message.starts]
    return replace(message, time_s=_later(message.time_s, seconds), starts=starts)


def _start(start: ReqStart, seconds: float) -> ReqStart:
    return replace(start, arrival_s=_later(start.arrival_s, seconds))


def _pause_set(message: PauseSet, seconds: float) -> PauseSet:
    """Of a pause that is over only durations are left."""
    pause: Pause = message.pause
    if not pause.is_on:
        return message
    since_s = _later(pause.since_s, seconds)
    return replace(message, pause=replace(pause, since_s=since_s))


def _later(time_s: float, seconds: float) -> float:
    """It may lie before the other machine's start, below 0.0."""
    return _UNSET if time_s == _UNSET else (time_s + seconds) or _FIRST
