"""How many connections there may be, and which one is closed to make room for a new one.

A connection is idle while the server waits for its client: for a request, or for the rest of one,
even if it trickles in, or until the client has taken the rest of an answer. When all places are
taken, the connection that has been idle longest is closed. When all are busy, a new connection gets
one of the places above the bound, which serve probes only.
"""

import time
from typing import Protocol

PROBE_PLACES = 256
MIN_IDLE_S = 0.25  # the head of a request that was sent immediately may take this long


class Connection(Protocol):
    """One that has a place."""

    def close_idle(self) -> None:
        """Close it: another one needs its place."""
        ...


class Places:
    """The connections of one server: `most` for requests, and PROBE_PLACES for probes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at_work: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # since when, in ascending order
        self._idle_probes: dict[Connection, float] = {}
        self._probes: set[Connection] = set()

    def enter(self, connection: Connection) -> bool:
        """Add a connection, idle for now; returns whether its place is for all requests."""
        has_room = len(self._at_work) + len(self._idle) < self._most
        if has_room or self._close_longest(self._idle, MIN_IDLE_S):
            self._idle[connection] = time.monotonic()
            return True
        self._probes.add(connection)
        self._idle_probes[connection] = time.monotonic()
        if len(self._probes) > PROBE_PLACES:
            self._close_longest(self._idle_probes, 0.0)
        return False

    def waits(self, connection: Connection) -> None:
        """It is idle from now on, unless it already was."""
        idle = self._idle_probes if connection in self._probes else self._idle
        if connection not in idle and (connection in self._at_work or idle is self._idle_probes):
            self._at_work.discard(connection)
            idle[connection] = time.monotonic()

    def works(self, connection: Connection) -> None:
        """It has a request that has arrived completely."""
        if self._idle.pop(connection, None) is not None:
            self._at_work.add(connection)
        self._idle_probes.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """It has ended."""
        self._at_work.discard(connection)
        self._idle.pop(connection, None)
        self._idle_probes.pop(connection, None)
        self._probes.discard(connection)

    def _close_longest(self, idle: dict[Connection, float], min_idle_s: float) -> bool:
        connection, since = next(iter(idle.items()), (None, 0.0))
        if connection is None or time.monotonic() - since < min_idle_s:
            return False
        self.leave(connection)
        connection.close_idle()
        return True
