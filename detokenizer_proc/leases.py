"""Which clients are alive: each repeats its Hello, and is gone when none arrives for a while."""

from srt.ring.places import LEASE_INTERVAL_S, LEASE_S


class Leases:
    """The time of each client's last Hello. Times are monotonic seconds; `now` is the first.

    Invariant: a client is gone only after LEASE_S in which its Hellos could be read.
    """

    def __init__(self, now: float) -> None:
        self._last_hello: dict[bytes, float] = {}
        self._checked_at = now

    def renew(self, client: bytes, now: float) -> None:
        """A Hello has arrived."""
        self._last_hello[client] = now

    def end(self, client: bytes) -> None:
        """The client is gone; nothing happens if it was unknown."""
        self._last_hello.pop(client, None)

    def expired(self, now: float) -> list[bytes]:
        """Clients whose lease has expired; they stay until `end`. Called every LEASE_INTERVAL_S.

        If more time has passed, this process stood still (suspended, or starved of CPU); Hellos of
        that time may still be unread, so it does not count.
        """
        stood_still_s = max(0.0, now - self._checked_at - LEASE_INTERVAL_S)
        self._checked_at = now
        for client in self._last_hello:
            self._last_hello[client] += stood_still_s
        return [client for client, at in self._last_hello.items() if at < now - LEASE_S]
