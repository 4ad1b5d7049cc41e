"""Logs who sends wrong API keys, and slows those who send one after the other.

Only a request whose key is wrong waits, the longer the more its address has sent of late. The keys
of others are answered at once, from the same address too. What is held is bounded: the addresses
that are remembered, the requests that wait, and the lines of the log. No key is logged.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachetools import LRUCache

from srt.callers.names import network_of
from srt.wire.errors import OVERLOADED, RequestError

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 3.0
HALF_LIFE_S = 60.0  # of an address's count
MAX_COUNT = 16.0
MAX_ADDRESSES = 4096
MAX_WAITING = 32
MAX_WAITING_OF_ADDRESS = 4
CONNECTIONS_OF_ONE_WAITING = 8  # so that those that wait leave places to others
LOG_INTERVAL_S = 60.0
MAX_LINES = 10  # of all addresses in LOG_INTERVAL_S


class _Address:
    """What is known of an address: `count` wrong keys, of which old ones count less, as of `at`
    (time.monotonic()); `unlogged` of them since its last line in the log, at `logged_at`."""

    count = 0.0
    at = 0.0
    unlogged = 0
    logged_at = -LOG_INTERVAL_S


class FailedKeys:
    """The wrong keys of one gateway, which takes `max_connections`. `clock` counts seconds."""

    def __init__(
        self, max_connections: int = 2048, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._addresses: LRUCache[str, _Address] = LRUCache(MAX_ADDRESSES)
        part = max(1, max_connections // CONNECTIONS_OF_ONE_WAITING)
        self._max_waiting = min(MAX_WAITING, part)
        self._waiting: Counter[str] = Counter()  # requests, by address
        self._lines: list[float] = []  # when the last ones were logged

    @contextmanager
    def delay(self, address: str) -> Iterator[float]:
        """Count a wrong key from `address`, and note that its request waits in the `with` block,
        for the seconds that the block is given. Raises RequestError (429) if as many wait as may:
        it is answered at once."""
        name = network_of(address)
        delay_s = self._count(name)
        waiting = self._waiting
        if waiting.total() >= self._max_waiting or waiting[name] >= MAX_WAITING_OF_ADDRESS:
            reason = "too many requests with wrong API keys have been sent"
            raise RequestError(reason, code=OVERLOADED, retryable=True, retry_after_s=delay_s)
        waiting[name] += 1
        try:
            yield delay_s
        finally:
            waiting[name] -= 1
            if not waiting[name]:
                del waiting[name]

    def _count(self, name: str) -> float:
        """Count a wrong key; returns how many seconds its request has to wait."""
        now = self._clock()
        known = self._addresses.get(name) or _Address()
        self._addresses[name] = known
        known.count *= 0.5 ** ((now - known.at) / HALF_LIFE_S)
        known.count, known.at = min(known.count + 1, MAX_COUNT), now
        known.unlogged += 1
        self._log(name, known)
        return min(FIRST_DELAY_S * 2 ** (known.count - 1), MAX_DELAY_S)

    def _log(self, name: str, known: _Address) -> None:
        now = known.at
        self._lines = [at for at in self._lines if now - at < LOG_INTERVAL_S]
        if now - known.logged_at >= LOG_INTERVAL_S and len(self._lines) < MAX_LINES:
            log.warning("requests from %s with a wrong API key: %d", name, known.unlogged)
            known.unlogged, known.logged_at = 0, now
            self._lines.append(now)
