"""The requests that the scheduler has, kept until their credits: if it is lost, the next one gets
them again, with what has been reported of them.

The front owns one. Nothing is sent while no scheduler is ready, nor before the detokenizer has said
what the lost one has reported: what it receives of that one later it drops. Invariant: a request
leaves by its credit or with its client, and each incarnation gets it at most once.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from srt.wire.ring_messages import (
    Abort,
    Control,
    GrammarMade,
    Reported,
    SchedulerLost,
    SchedulerMessage,
    TokenizedReq,
)

MAX_GONE_CLIENTS = 4096

Name = tuple[bytes, str]  # client, rid


@dataclass(slots=True)
class _Kept:
    """A request, when it came, and whether the present scheduler has it."""

    req: TokenizedReq
    arrival_s: float
    is_sent: bool = False
    reported: Reported | None = None
    is_aborted: bool = False


class Relay:
    """What goes to the scheduler of `incarnation`. `random_seed` fixes the seeds of requests that
    have none (-1: it does not)."""

    def __init__(self, incarnation: int, random_seed: int = -1) -> None:
        self._random = random.Random(random_seed if random_seed >= 0 else None)
        self._has_scheduler = False
        self.reset(incarnation)

    def reset(self, incarnation: int) -> None:
        """A new epoch: forget everything."""
        self.incarnation = self._settled = incarnation
        self._kept: dict[Name, _Kept] = {}  # in order of arrival
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        self._outbox: list[SchedulerMessage] = []
        self._told: list[Control | GrammarMade] = []  # and not sent yet
        self._ended: list[Name] = []

    @property
    def is_open(self) -> bool:
        """Whether messages go to the scheduler at once."""
        return self._has_scheduler and self._settled >= self.incarnation

    @property
    def requests(self) -> list[TokenizedReq]:
        """All that are kept."""
        return [kept.req for kept in self._kept.values()]

    def take(self) -> list[SchedulerMessage]:
        """What is to be sent now."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def take_ended(self) -> list[Name]:
        """The requests that have ended here since the last call: they get no credit."""
        ended, self._ended = self._ended, []
        return ended

    # ---- for the scheduler ---------------------------------------------------------------------

    def send(self, parts: Sequence[TokenizedReq], now: float) -> None:
        """Send new requests, each with a seed, as soon as there is a scheduler."""
        for part in parts:
            name = part.client, part.rid
            if part.client in self._gone:
                self._ended.append(name)
                continue
            if part.sampling.seed is None:
                sampling = replace(part.sampling, seed=self._random.getrandbits(63))
                part = replace(part, sampling=sampling)
            self._kept[name] = kept = _Kept(part, now)
            if self.is_open:
                self._send(kept)

    def tell(self, message: Control | GrammarMade) -> None:
        """Send to the scheduler. What is not of a request is forgotten if that is lost."""
        self._told.append(message)
        if self.is_open:
            self._tell()

    def abort(self, client: bytes, rid: str) -> None:
        """Have the scheduler end a request, or the next one if it has not got it."""
        kept = self._kept.get((client, rid))
        if kept is not None:
            kept.is_aborted = True
            if kept.is_sent:
                self._outbox.append(Abort(client, rid, self.incarnation))

    def drop_client(self, client: bytes) -> None:
        """A client has gone: end its requests, and those that still come."""
        self._gone[client] = None
        if len(self._gone) > MAX_GONE_CLIENTS:
            self._gone.popitem(last=False)
        for name in [name for name in self._kept if name[0] == client]:
            if self._kept[name].is_sent:
                self.abort(*name)
            else:
                del self._kept[name]
                self._ended.append(name)

    def credit(self, name: Name) -> None:
        """A request has ended."""
        self._kept.pop(name, None)

    # ---- what becomes of schedulers ------------------------------------------------------------

    def lose(self, incarnation: int) -> bool:
        """The scheduler is lost if it is not the one of `incarnation`; whether that was news."""
        is_news = incarnation > self.incarnation
        if is_news:
            self.incarnation, self._has_scheduler = incarnation, False
            self._outbox.clear()
            self._told.clear()
            for kept in self._kept.values():
                kept.is_sent = False
        return is_news

    def settle(self, message: SchedulerLost) -> bool:
        """Take what lost schedulers have reported; whether requests go on now."""
        for progress in message.progress:
            kept = self._kept.get((progress.client, progress.rid))
            if kept is not None:
                kept.reported = progress.reported
        if not message.more:
            self._settled = max(self._settled, message.incarnation)
        return self._resume()

    def hear(self, incarnation: int, is_ready: bool) -> bool:
        """What the ring says of its scheduler; whether requests go on now."""
        if incarnation < self.incarnation or is_ready == self._has_scheduler:
            return False
        self._has_scheduler = is_ready
        return self._resume()

    def _resume(self) -> bool:
        """Send what the new scheduler has not got, but not that of clients that have gone."""
        if not self.is_open:
            return False
        for name, kept in [*self._kept.items()]:
            if kept.is_sent:
                continue
            if name[0] in self._gone:
                del self._kept[name]
                self._ended.append(name)
            else:
                self._send(kept)
        self._tell()
        return True

    def _tell(self) -> None:
        told, self._told = self._told, []
        self._outbox += [replace(message, incarnation=self.incarnation) for message in told]

    def _send(self, kept: _Kept) -> None:
        kept.is_sent = True
        req = replace(kept.req, incarnation=self.incarnation, arrival_s=kept.arrival_s)
        reported = kept.reported
        if kept.is_aborted:
            reported = replace(reported or Reported(), aborted=True)
        if reported is not None:
            req = replace(req, reported=reported)
        self._outbox.append(req)
