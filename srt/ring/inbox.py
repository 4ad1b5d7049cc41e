"""Decodes what arrives on a socket; anything but a message of its union is dropped and counted.

Any process of the same user can reach the ring's sockets: a stray message must not end a part.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from srt.wire.messages import decoder

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0


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
