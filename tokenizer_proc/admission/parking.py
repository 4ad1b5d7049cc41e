"""Requests that passed every check but still wait for their grammar to be compiled.

The front parks them and asks the compiler, once for all requests with one constraint, and once
more for each asker who joins them: the compiler takes askers in turns. Invariant: a parked request
leaves only by its reply, the aborts of all its samples, its deadline, the compiler's silence or the
end of the epoch, whichever comes first.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from srt.wire.constraint import Constraint
from srt.wire.ring_messages import CompileCancel, CompileReq, TokenizedReq
from tokenizer_proc.dispatch.admission import Admission

_Name = tuple[bytes, str]  # client, rid


class Parked(NamedTuple):
    """The request waits. `question` is for the compiler, if this asker has not asked it yet."""

    question: CompileReq | None


class Recall(NamedTuple):
    """The scheduler of this incarnation waits for the grammar `key`, which it found missing."""

    key: str
    incarnation: int
    parts: tuple[TokenizedReq, ...] = ()


@dataclass
class _Compilation:
    """A question that the compiler has not answered, who asks it, and who waits for the answer."""

    id: int
    constraint: Constraint
    askers: dict[bytes, None] = field(default_factory=dict)
    waiting: dict["_Waiter", None] = field(default_factory=dict)  # in order of arrival


@dataclass(eq=False)
class _Waiter:
    party: Admission | Recall
    compilation: _Compilation
    since: float
    caller: str = ""  # of a request


class Parking:
    """The parked requests of one front. Each may wait for `wait_s` seconds, and for `silence_s`
    without news from the compiler."""

    def __init__(self, wait_s: float, silence_s: float) -> None:
        self._wait_s, self._silence_s = wait_s, silence_s
        self._heard_at = float("-inf")
        self._waiters: dict[_Waiter, None] = {}  # in order of arrival
        self._by_caller: dict[str, dict[_Waiter, None]] = {}  # requests, in order of arrival
        self._samples: dict[_Name, tuple[_Waiter, int]] = {}  # with their numbers
        self._by_constraint: dict[Constraint, _Compilation] = {}
        self._by_id: dict[int, _Compilation] = {}
        self._cancelled: list[int] = []
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def park(
        self,
        party: Admission | Recall,
        constraint: Constraint,
        *,
        asker: bytes,
        epoch: int,
        now: float,
    ) -> Parked:
        """Keep a request until its grammar is ready."""
        compilation = self._by_constraint.get(constraint)
        if compilation is None:
            self._last_id += 1
            compilation = _Compilation(self._last_id, constraint)
            self._by_constraint[constraint] = self._by_id[compilation.id] = compilation
        waiter = _Waiter(party, compilation, now)
        compilation.waiting[waiter] = self._waiters[waiter] = None
        if isinstance(party, Admission):
            waiter.caller = party.parts[0].caller
            self._by_caller.setdefault(waiter.caller, {})[waiter] = None
        for number, part in enumerate(party.parts):
            self._samples[part.client, part.rid] = waiter, number
        if asker in compilation.askers:
            return Parked(None)
        compilation.askers[asker] = None
        return Parked(CompileReq(compilation.id, epoch, constraint, asker))

    def holds(self, client: bytes, rid: str) -> bool:
        """Whether this sample is parked."""
        return (client, rid) in self._samples

    def abort(self, client: bytes, rid: str) -> Admission | None:
        """End one parked sample. With the last one the request leaves, and is returned with all its
        samples aborted; else None."""
        waiter, number = self._samples.pop((client, rid))
        assert isinstance(waiter.party, Admission)
        admitted, parts, _ = waiter.party
        admission = waiter.party._replace(
            admitted=replace(admitted, aborted=[*admitted.aborted, number]),
            parts=[part for part in parts if part.rid != rid],
        )
        waiter.party = admission
        if not admission.parts:
            self._remove(waiter, answered=False)
            return admission
        return None

    def newest_of(self, caller: str) -> Admission | None:
        """The parked request of this caller that came last."""
        waiter = next(reversed(self._by_caller.get(caller, {})), None)
        return waiter.party if waiter and isinstance(waiter.party, Admission) else None

    def remove(self, client: bytes, rid: str) -> None:
        """Let the request go that has this sample, and is refused."""
        self._remove(self._samples[client, rid][0], answered=False)

    def take_compiled(self, compilation_id: int) -> list[tuple[Admission | Recall, Constraint]]:
        """Remove those that waited for this answer."""
        compilation = self._by_id.get(compilation_id)
        if compilation is None:
            return []
        waiters = list(compilation.waiting)
        return [(self._remove(waiter, answered=True), compilation.constraint) for waiter in waiters]

    def hear(self, now: float) -> None:
        """A message of the compiler has arrived."""
        self._heard_at = now

    def take_expired(self, now: float) -> list[Admission | Recall]:
        """Remove those that have waited for too long."""
        is_silent = now >= self._heard_at + self._silence_s
        patience_s = min(self._wait_s, self._silence_s) if is_silent else self._wait_s
        expired = []
        for waiter in self._waiters:
            if waiter.since + patience_s > now:
                break
            expired.append(waiter)
        return [self._remove(waiter, answered=False) for waiter in expired]

    def take_late(self, now: float) -> list[Admission]:
        """Remove those that have passed their own deadline."""
        late = [waiter for waiter in self._waiters if 0.0 < _deadline_s(waiter.party) <= now]
        parties = [self._remove(waiter, answered=False) for waiter in late]
        return [party for party in parties if isinstance(party, Admission)]

    def questions(self, epoch: int) -> list[CompileReq]:
        """All questions without an answer, to be asked again."""
        return [
            CompileReq(compilation.id, epoch, compilation.constraint, asker)
            for compilation in self._by_id.values()
            for asker in compilation.askers
        ]

    def take_cancelled(self, epoch: int) -> list[CompileCancel]:
        """The questions whose answers nobody waits for any more, each once."""
        cancelled, self._cancelled = self._cancelled, []
        return [CompileCancel(compilation_id, epoch) for compilation_id in cancelled]

    def clear(self) -> None:
        """Forget everything. Answers to earlier questions are not mistaken for later ones'."""
        self._waiters.clear()
        self._by_caller.clear()
        self._samples.clear()
        self._by_constraint.clear()
        self._by_id.clear()
        self._cancelled.clear()

    def _remove(self, waiter: _Waiter, *, answered: bool) -> Admission | Recall:
        """Let a request go; a question that nobody waits for any more is forgotten."""
        compilation = waiter.compilation
        del self._waiters[waiter]
        if isinstance(waiter.party, Admission):
            del self._by_caller[waiter.caller][waiter]
            if not self._by_caller[waiter.caller]:
                del self._by_caller[waiter.caller]
        for part in waiter.party.parts:
            del self._samples[part.client, part.rid]
        del compilation.waiting[waiter]
        if not compilation.waiting:
            del self._by_constraint[compilation.constraint], self._by_id[compilation.id]
            if not answered:
                self._cancelled.append(compilation.id)
        return waiter.party


def _deadline_s(party: Admission | Recall) -> float:
    """When it times out; 0 is never."""
    return party.parts[0].deadline_s if isinstance(party, Admission) else 0.0
