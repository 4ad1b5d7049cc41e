"""Requests that schedulers are asked to end because others have room then, as long as they have not
begun, and those that are known to have begun, which are not asked about again."""

from collections.abc import Iterable

from srt.ring.crash_file import Name
from srt.wire.errors import ErrorInfo
from srt.wire.ring_messages import GiveWay
from tokenizer_proc.dispatch.relay import Kept, Relay


class Leaving:
    """Those of one relay. A request that was at a lost scheduler counts as one that has begun."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._asked: dict[Name, Kept] = {}
        self._staying: set[Name] = set()

    @property
    def requests(self) -> Iterable[Kept]:
        """Those that schedulers were asked to end, and have not answered about."""
        return self._asked.values()

    def newest_waiting(self, caller: str) -> list[Kept]:
        """The parts of the newest request of a caller that a scheduler has and that, as far as is
        known, has not begun."""
        requests = [*self._relay.requests]
        for kept in reversed(requests):
            if kept.req.caller == caller and self._may_leave(kept):
                group = [one for one in requests if one.group == kept.group]
                if all(map(self._may_leave, group)):
                    return group
        return []

    def ask(self, group: list[Kept], error: ErrorInfo) -> None:
        """Have a scheduler end the parts of a request with this error, if none has begun."""
        self._asked.update((kept.name, kept) for kept in group)
        replicas = self._relay.replicas
        incarnation = replicas.incarnations[group[0].replica]
        rids = [kept.req.rid for kept in group]
        replicas.send(GiveWay(group[0].req.client, rids, incarnation, error))

    def stay(self, names: Iterable[Name]) -> None:
        """These requests have begun, or may have."""
        for name in names:
            self._asked.pop(name, None)
            self._staying.add(name)

    def lost(self, replica: int) -> None:
        """The scheduler of a replica is lost."""
        requests = self._relay.requests
        self.stay(kept.name for kept in requests if kept.is_sent and kept.replica == replica)

    def ended(self, name: Name) -> None:
        """A request has ended."""
        self._asked.pop(name, None)
        self._staying.discard(name)

    def clear(self) -> None:
        """A new epoch."""
        self._asked.clear()
        self._staying.clear()

    def _may_leave(self, kept: Kept) -> bool:
        is_known = kept.name in self._asked or kept.name in self._staying
        return kept.is_sent and not kept.is_aborted and not is_known
