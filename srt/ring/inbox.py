"""Decodes what arrives on a socket; anything but a message of its union is dropped and counted.

Any process of the same user can reach the ring's sockets: a stray message must not end a part.
"""

import logging
import time
from collections.abc import Sequence
from math import inf
from typing import Any

import msgspec

from srt.wire.messages import decoder

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
_PATIENCE_S = 10.0  # far more than an event takes to come


class Dropped:
    """How many messages a process has dropped, logged now and then."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = -LOG_INTERVAL_S

    def add(self, name: str) -> None:
        """One more, of the socket `name`."""
        self.count += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.warning("dropped a malformed message on %s (%d so far)", name, self.count)


class Inbox:
    """The messages of one socket, called `name` in the log."""

    def __init__(self, union: Any, name: str, dropped: Dropped) -> None:
        self._decode = decoder(union).decode
        self._name = name
        self._dropped = dropped

    def message(self, frames: Sequence[bytes]) -> Any:
        """The message in the first frame; None if it is not one, or not followed by as many frames
        as it names."""
        try:
            message = self._decode(frames[0])
            if message.num_frames == len(frames) - 1:
                return message
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        self._dropped.add(self._name)
        return None


class Doubt:
    """Fails in a part whose incarnations have been above the supervisor's for too long.

    A message may come from a new scheduler before the ring's event that tells of it, so a part
    takes its incarnation as true. If there is no such scheduler, the part would drop all that the
    real one sends, and every request would wait for ever."""

    def __init__(self) -> None:
        self._since: float | None = None  # when an event first said less
        self._heard_at = -inf

    def hear(self, taken: Sequence[int], told: Sequence[int]) -> None:
        """The part has `taken` these incarnations as true when an event has `told` of others.
        Raises RuntimeError if that has lasted, and this part has heard events all the time: what a
        part finds first that was stopped are old ones. A new process begins with the supervisor's.
        """
        now = time.monotonic()
        has_paused, self._heard_at = now - self._heard_at > _PATIENCE_S / 2, now
        if all(mine <= theirs for mine, theirs in zip(taken, told, strict=True)):
            self._since = None
            return
        if self._since is None or has_paused:
            self._since = now
        elif now - self._since > _PATIENCE_S:
            raise RuntimeError(f"there is no such scheduler: {taken}, the supervisor has {told}")
