"""Times of another machine's clock."""

from collections import deque
from typing import Any

from msgspec.structs import replace

from srt.wire.ring_messages import PauseSet, TokenBatch, TokenizedReq


class Offset:
    """How far the other machine's monotonic clock is ahead, by pings: the one with the least round
    trip of the last 16 counts."""

    def __init__(self) -> None:
        self._pings: deque[tuple[float, float]] = deque(maxlen=16)

    def add(self, sent_s: float, theirs_s: float, back_s: float) -> None:
        self._pings.append((back_s - sent_s, theirs_s - (sent_s + back_s) / 2))

    @property
    def seconds(self) -> float:
        return min(self._pings)[1] if self._pings else 0.0


def rewrite(message: Any, seconds: float) -> Any:
    def moved(time_s: float) -> float:
        return time_s + seconds if time_s else time_s

    if isinstance(message, TokenizedReq):
        hints = message.hints
        if hints is not None:
            hints = replace(hints, arrival_s=moved(hints.arrival_s), due_s=moved(hints.due_s))
        return replace(
            message,
            deadline_s=moved(message.deadline_s),
            arrival_s=moved(message.arrival_s),
            hints=hints,
        )
    if isinstance(message, PauseSet):
        pause = replace(message.pause, since_s=moved(message.pause.since_s))
        return replace(message, pause=pause)
    if isinstance(message, TokenBatch):
        starts = [replace(start, arrival_s=moved(start.arrival_s)) for start in message.starts]
        return replace(message, time_s=moved(message.time_s), starts=starts)
    return message
