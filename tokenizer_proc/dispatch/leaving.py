"""Requests that schedulers have and that may not have begun, and those that they are asked to end
because others have room then. One that is known to have begun is not asked about again."""

from collections import Counter
from collections.abc import Iterable

from srt.ring.crash_file import Name
from srt.wire.errors import ErrorInfo
from srt.wire.ring_messages import GiveWay
from tokenizer_proc.dispatch.admission import prompt_tokens
from tokenizer_proc.dispatch.relay import Kept, Relay
from tokenizer_proc.queueing.holdings import Kind


class Leaving:
    """Those of one relay. A request that was at a lost scheduler counts as one that has begun.
    `asked` is what each caller has of those that schedulers were asked to end."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.clear()

    def clear(self) -> None:
        """A new epoch."""
        self.asked: dict[Kind, Counter[str]] = {"requests": Counter(), "tokens": Counter()}
        self._waiting: dict[Name, Kept] = {}
        self._groups: dict[str, dict[int, dict[Name, Kept]]] = {}  # of callers, in order of arrival
        self._asked: dict[Name, Kept] = {}
        self._staying: set[Name] = set()

    def is_asked(self, name: Name) -> bool:
        """Whether a scheduler was asked to end this one, and has not answered."""
        return name in self._asked

    def sent(self, kept: Kept) -> None:
        """A scheduler has got this request."""
        if kept.name not in self._staying:
            groups = self._groups.setdefault(kept.req.caller, {})
            self._waiting[kept.name] = groups.setdefault(kept.group, {})[kept.name] = kept

    def newest_waiting(self, caller: str) -> list[Kept]:
        """The parts of the newest request of a caller that a scheduler has and that, as far as is
        known, has not begun."""
        groups = self._groups.get(caller, {})
        while groups:
            group = [*groups[next(reversed(groups))].values()]
            if not any(kept.is_aborted for kept in group):
                return group
            self._stay(kept.name for kept in group)
        return []

    def ask(self, group: list[Kept], error: ErrorInfo) -> None:
        """Have a scheduler end the parts of a request with this error, if none has begun."""
        for kept in group:
            self._forget_waiting(kept.name)
            self._asked[kept.name] = kept
            self._count(kept, 1)
        replicas = self._relay.replicas
        incarnation = replicas.incarnations[group[0].replica]
        rids = [kept.req.rid for kept in group]
        replicas.send(GiveWay(group[0].req.client, rids, incarnation, error))

    def stay(self, names: Iterable[Name]) -> None:
        """Schedulers were asked about these requests, which have begun, or may have. Those that
        have ended meanwhile are ignored."""
        self._stay(name for name in names if name in self._asked)

    def lost(self, replica: int) -> None:
        """The scheduler of a replica is lost."""
        requests = self._relay.requests
        self._stay(kept.name for kept in requests if kept.is_sent and kept.replica == replica)

    def ended(self, name: Name) -> None:
        """A request has ended."""
        self._forget_waiting(name)
        self._forget_asked(name)
        self._staying.discard(name)

    def _stay(self, names: Iterable[Name]) -> None:
        for name in names:
            self._forget_waiting(name)
            self._forget_asked(name)
            self._staying.add(name)

    def _forget_waiting(self, name: Name) -> None:
        kept = self._waiting.pop(name, None)
        if kept is not None:
            groups = self._groups[kept.req.caller]
            del groups[kept.group][name]
            if not groups[kept.group]:
                del groups[kept.group]
            if not groups:
                del self._groups[kept.req.caller]

    def _forget_asked(self, name: Name) -> None:
        kept = self._asked.pop(name, None)
        if kept is not None:
            self._count(kept, -1)

    def _count(self, kept: Kept, sign: int) -> None:
        amounts: dict[Kind, int] = {"requests": 1, "tokens": prompt_tokens(kept.req)}
        for kind, amount in amounts.items():
            counts = self.asked[kind]
            counts[kept.req.caller] += sign * amount
            if not counts[kept.req.caller]:
                del counts[kept.req.caller]
