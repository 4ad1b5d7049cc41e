"""The requests that the schedulers have, kept until their credits: if a scheduler is lost, others
get its requests, or the next one does, with what has been reported of them.

The front owns one. The router places each request, its samples and the parts of a score together.
Nothing is sent to a replica that has no ready scheduler, nor is a request sent again before the
detokenizer has said what the lost one has reported: what it receives of that one later it drops.
Invariant: a request leaves by its credit or with its client, and is at one replica at most, where
each incarnation gets it at most once.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cachetools import FIFOCache
from msgspec.structs import replace

from srt.ring.crash_file import Left, Name
from srt.wire.ring_messages import (
    Abort,
    Reported,
    SchedulerLost,
    TokenizedReq,
)
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.dispatch.replicas import Replicas
from tokenizer_proc.dispatch.verdict import verdict_on

MAX_GONE_CLIENTS = 4096
NOWHERE = -1  # the replica of a request that no scheduler has had


@dataclass(slots=True, eq=False)
class Kept:
    """A request, when it came, who is placed with it and where that is, and what is known of it.
    `was_killed`: a scheduler was killed, perhaps from outside, in its trial, or crashed while that
    went on."""

    req: TokenizedReq
    arrival_s: float
    group: int
    replica: int = NOWHERE
    is_sent: bool = False
    reported: Reported = field(default_factory=Reported)
    is_aborted: bool = False
    is_suspect: bool = False
    was_killed: bool = False
    is_guilty: bool = False

    @property
    def name(self) -> Name:
        return self.req.client, self.req.rid


class Relay:
    """What goes to the schedulers, which have these `incarnations`. `random_seed` fixes the seeds
    of requests that have none (-1: it does not)."""

    def __init__(
        self, incarnations: Sequence[int], placing: Placing, random_seed: int = -1
    ) -> None:
        self._random = random.Random(random_seed if random_seed >= 0 else None)
        self._placing = placing
        self._next_group = 0
        self._silent: Sequence[int] = ()
        self.replicas = Replicas(incarnations)
        self.reset(incarnations)

    def reset(self, incarnations: Sequence[int]) -> None:
        """A new epoch: forget everything."""
        self.replicas.reset(incarnations)
        self._kept: dict[Name, Kept] = {}  # in order of arrival
        self._groups: Counter[int] = Counter()  # how many of each are kept
        self._gone: FIFOCache[bytes, None] = FIFOCache(MAX_GONE_CLIENTS)
        self._ended: list[Name] = []
        self._guilty_grammars: set[str] = set()
        self._placing.clear()

    @property
    def requests(self) -> Iterable[Kept]:
        """All that are kept, in order of arrival."""
        return self._kept.values()

    def take_ended(self) -> list[Name]:
        """The requests that have ended here since the last call: they get no credit."""
        ended, self._ended = self._ended, []
        return ended

    # ---- for the schedulers --------------------------------------------------------------------

    def send(self, admission: Admission, now: float) -> list[Kept]:
        """Send new requests, each with a seed, together to one replica, as soon as there is a
        scheduler; returns those that have gone."""
        self._next_group += 1
        kept = []
        for part in admission.parts:
            if part.client in self._gone:
                self._ended.append((part.client, part.rid))
                continue
            if part.sampling.seed is None:
                sampling = replace(part.sampling, seed=self._random.getrandbits(63))
                part = replace(part, sampling=sampling)
            one = Kept(part, now, self._next_group)
            one.is_guilty = part.grammar in self._guilty_grammars
            self._kept[one.name] = one
            kept.append(one)
        if not kept:
            return []
        self._groups[self._next_group] = len(kept)
        if admission.replica is not None:
            self._placing.wish(self._next_group, admission.replica)
        return kept if self._place(kept) else []

    def abort(self, client: bytes, rid: str) -> None:
        """Have its scheduler end a request, or the next one if none has got it."""
        kept = self._kept.get((client, rid))
        if kept is not None:
            kept.is_aborted = True
            if kept.is_sent:
                incarnation = self.replicas.incarnations[kept.replica]
                self.replicas.send(Abort(client, rid, incarnation))

    def drop_client(self, client: bytes) -> None:
        """A client has gone: end its requests, and those that still come."""
        self._gone[client] = None
        for kept in [kept for name, kept in self._kept.items() if name[0] == client]:
            if kept.is_sent:
                self.abort(*kept.name)
            else:
                self._forget(kept)
                self._ended.append(kept.name)

    def credit(self, name: Name) -> None:
        """A request has ended."""
        kept = self._kept.get(name)
        if kept is not None:
            self._forget(kept)

    # ---- what becomes of schedulers ------------------------------------------------------------

    def lose(self, incarnation: int, left: Left) -> list[Name]:
        """The replica's scheduler before this one is lost, and has `left` this: its requests wait.
        Returns those that are found guilty of it."""
        replica = self.replicas.number_of(incarnation)
        self.replicas.lose(incarnation)
        lost = [kept for kept in self._kept.values() if kept.replica == replica]
        if not lost:  # the detokenizer has nothing to report, and may not even have known of it
            self.replicas.settle(incarnation)
        for kept in lost:
            kept.is_sent = False
            self._placing.ended(kept.group)
        self._placing.lost(replica)
        verdict = verdict_on(left, {kept.name for kept in lost if kept.was_killed})
        self._guilty_grammars |= verdict.grammars
        for kept in lost:
            kept.is_suspect = kept.name in verdict.suspects or (
                kept.is_suspect and kept.name not in left.record.cleared
            )
            if kept.name in left.record.cleared:
                kept.was_killed = False
            kept.was_killed |= kept.name in verdict.killed
        guilty = [
            kept
            for kept in self._kept.values()
            if kept.name in verdict.guilty or kept.req.grammar in verdict.grammars
        ]
        for kept in guilty:
            kept.is_guilty, kept.is_suspect = True, False
        return [kept.name for kept in guilty]

    def settle(self, message: SchedulerLost) -> list[Kept]:
        """Take what a lost scheduler has reported; returns the requests that now go on."""
        for progress in message.progress:
            kept = self._kept.get((progress.client, progress.rid))
            if kept is not None:
                kept.reported = progress.reported
        if not message.more:
            self.replicas.settle(message.incarnation)
        return self._resume()

    def hear(
        self, incarnations: Sequence[int], ready: Sequence[int], silent: Sequence[int] = ()
    ) -> list[Kept]:
        """What the ring says of its schedulers; returns the requests that now go on. No request is
        given to one that is silent as long as another is not."""
        self._silent = silent
        fresh = self.replicas.hear(incarnations, ready)
        for replica in fresh:
            incarnation = self.replicas.incarnations[replica]
            for message in self._placing.started(replica, incarnation):
                self.replicas.send(message)
        return self._resume() if fresh else []

    def keep(self, present: Iterable[int]) -> list[Kept]:
        """Only these replicas exist; returns the requests that now go on."""
        self.replicas.present = frozenset(present)
        self._placing.keep(present)
        return self._resume()

    def _resume(self) -> list[Kept]:
        """Send what no scheduler has got, but not that of clients that have gone."""
        if not self.replicas.open:
            return []
        groups: dict[int, list[Kept]] = {}
        for kept in [*self._kept.values()]:
            is_due = kept.replica == NOWHERE or self.replicas.is_settled(kept.replica)
            if kept.is_sent or not is_due:
                continue
            if kept.req.client in self._gone:
                self._forget(kept)
                self._ended.append(kept.name)
            else:
                groups.setdefault(kept.group, []).append(kept)
        for group in groups.values():
            self._place(group)
        self.replicas.ask()
        return [kept for group in groups.values() for kept in group]

    def _place(self, group: list[Kept]) -> bool:
        """Send requests that belong together to one replica; whether there is one."""
        among = self.replicas.open
        if not (among and group):
            return False
        heard = [replica for replica in among if replica not in self._silent]
        first, parts = group[0], [kept.req for kept in group]
        replica = self._placing.place(first.group, parts, heard or among, first.arrival_s)
        for kept in group:
            self._send(kept, replica)
        return True

    def _send(self, kept: Kept, replica: int) -> None:
        kept.replica, kept.is_sent = replica, True
        reported = replace(
            kept.reported,
            aborted=kept.is_aborted,
            is_suspect=kept.is_suspect,
            is_guilty=kept.is_guilty,
        )
        has_news = reported != Reported()
        req = replace(
            kept.req,
            incarnation=self.replicas.incarnations[replica],
            arrival_s=kept.arrival_s,
            reported=reported if has_news else None,
        )
        self.replicas.send(req)

    def _forget(self, kept: Kept) -> None:
        del self._kept[kept.name]
        self._groups[kept.group] -= 1
        if self._groups[kept.group] == 0:
            del self._groups[kept.group]
            self._placing.forget(kept.group)
