"""How many connections there may be, and which one is closed to make room for a new one.

A connection is idle while the server waits for its client: for a request, or for the rest of one,
even if it trickles in, or until the client has taken the rest of an answer. When all places are
taken, the one that has been idle longest of those of one peer is closed: of the peer that has most
connections, if that has more than the new one's; else of its own, or of one that has as many, as in
a crowd of peers with one each. When none of these is idle, a new connection gets one of the places
above the bound, which serve probes only.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Protocol

from srt.callers.shares import Shares

PROBE_PLACES = 256
MIN_IDLE_S = 0.25  # the head of a request that was sent immediately may take this long


class Connection(Protocol):
    """One that has a place."""

    peer: str  # the address, or network, at its other end

    def close_idle(self) -> None:
        """Close it: another one needs its place."""
        ...


class Places:
    """The connections of one server: `most` for requests, and PROBE_PLACES for probes."""

    def __init__(self, most: int) -> None:
        self._shares: Shares[str, Connection] = Shares(
            most, give_way=self._close, order=self._old_idle
        )
        # By peer, since when each is idle, in ascending order.
        self._idle: defaultdict[str, dict[Connection, float]] = defaultdict(dict)
        self._idle_probes: dict[Connection, float] = {}
        self._probes: set[Connection] = set()

    def enter(self, connection: Connection) -> bool:
        """Add a connection, idle for now; returns whether its place is for all requests."""
        peer = connection.peer
        if self._shares.full(peer, 1):
            leaving = self._old_idle_of(peer) or self._old_idle_of_an_equal(peer)
            if leaving is not None:
                self._shares.give_back(leaving)
                self._close(leaving)
        if not self._shares.take(peer, connection):
            self._idle[peer][connection] = time.monotonic()
            return True
        self._probes.add(connection)
        self._idle_probes[connection] = time.monotonic()
        if len(self._probes) > PROBE_PLACES and self._idle_probes:
            longest = next(iter(self._idle_probes))
            self.leave(longest)
            longest.close_idle()
        return False

    def waits(self, connection: Connection) -> None:
        """It is idle from now on, unless it already was."""
        if connection in self._probes:
            self._idle_probes.setdefault(connection, time.monotonic())
        elif connection in self._shares:
            self._idle[connection.peer].setdefault(connection, time.monotonic())

    def works(self, connection: Connection) -> None:
        """It has a request that has arrived completely."""
        self._is_idle_no_more(connection)

    def leave(self, connection: Connection) -> None:
        """It has ended."""
        self._shares.give_back(connection)
        self._is_idle_no_more(connection)
        self._probes.discard(connection)

    def _is_idle_no_more(self, connection: Connection) -> None:
        self._idle_probes.pop(connection, None)
        if idle := self._idle.get(connection.peer):
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.peer]

    def _close(self, connection: Connection) -> None:
        self._is_idle_no_more(connection)
        connection.close_idle()

    def _old_idle_of_an_equal(self, peer: str) -> Connection | None:
        """The longest idle one of the peers that have as many as this one with its new one."""
        mine = self._shares.held(peer) + 1
        equals = [other for other in self._idle if self._shares.held(other) == mine]
        if not equals:
            return None
        return self._old_idle_of(min(equals, key=lambda one: next(iter(self._idle[one].values()))))

    def _old_idle_of(self, peer: str) -> Connection | None:
        """The one of a peer that has been idle longest, and for some time."""
        longest = next(iter(self._idle.get(peer, ())), None)
        return None if longest is None else next(self._old_idle((longest,)), None)

    def _old_idle(self, connections: Collection[Connection]) -> Iterator[Connection]:
        """Those of one peer that have been idle for some time, the longest first."""
        peer = next((one.peer for one in connections), "")
        latest = time.monotonic() - MIN_IDLE_S
        for connection, since in self._idle.get(peer, {}).items():
            if since > latest:
                return
            yield connection
