"""Requests that passed every check but still wait for their grammar to be compiled.

The front parks them and asks the compiler, once for all requests with one constraint. Invariant:
a parked request leaves by its reply, its abort, its deadline or the end of the epoch, whichever is
first, and by that only.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from srt.constraint import Constraint
from srt.messages import Admitted, CompileReq, TokenizedReq

_Name = tuple[bytes, str]  # client, rid


class Admission(NamedTuple):
    """What the client is told, and what the scheduler gets."""

    admitted: Admitted
    tokenized: TokenizedReq


class Parked(NamedTuple):
    """The request waits. `question` goes to the compiler, if nobody has asked it yet."""

    question: CompileReq | None


@dataclass
class _Compilation:
    """A question that the compiler has not answered, and who waits for the answer."""

    id: int
    constraint: Constraint
    waiting: dict[_Name, None] = field(default_factory=dict)  # in order of arrival


class _Waiter(NamedTuple):
    admission: Admission
    compilation: _Compilation
    deadline: float


class Parking:
    """The parked requests of one front. Each may wait for `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiters: dict[_Name, _Waiter] = {}  # in the order of their deadlines
        self._by_constraint: dict[Constraint, _Compilation] = {}
        self._by_id: dict[int, _Compilation] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def park(self, admission: Admission, constraint: Constraint, now: float) -> Parked:
        """Keep a request until its grammar is ready."""
        compilation = self._by_constraint.get(constraint)
        asked = compilation is not None
        if compilation is None:
            self._last_id += 1
            compilation = _Compilation(self._last_id, constraint)
            self._by_constraint[constraint] = self._by_id[compilation.id] = compilation
        name = _name_of(admission)
        compilation.waiting[name] = None
        self._waiters[name] = _Waiter(admission, compilation, now + self._wait_s)
        return Parked(None if asked else _question(compilation, admission.tokenized.epoch))

    def take(self, client: bytes, rid: str) -> Admission | None:
        """Remove one request, if it is parked."""
        waiter = self._waiters.get((client, rid))
        return None if waiter is None else self._remove(waiter)

    def take_compiled(self, compilation_id: int) -> list[tuple[Admission, Constraint]]:
        """Remove those that waited for an answer which has come."""
        compilation = self._by_id.get(compilation_id)
        if compilation is None:
            return []
        waiters = [self._waiters[name] for name in compilation.waiting]
        return [(self._remove(waiter), compilation.constraint) for waiter in waiters]

    def take_expired(self, now: float) -> list[Admission]:
        """Remove those that have waited for too long."""
        expired = []
        for waiter in self._waiters.values():
            if waiter.deadline > now:
                break
            expired.append(waiter)
        return [self._remove(waiter) for waiter in expired]

    def questions(self, epoch: int) -> list[CompileReq]:
        """All that have no answer yet, to be asked again."""
        return [_question(compilation, epoch) for compilation in self._by_id.values()]

    def clear(self) -> None:
        """Forget everything. Answers to earlier questions are not taken for later ones'."""
        self._waiters.clear()
        self._by_constraint.clear()
        self._by_id.clear()

    def _remove(self, waiter: _Waiter) -> Admission:
        """Let a request go; a question that nobody waits for any more is forgotten."""
        name, compilation = _name_of(waiter.admission), waiter.compilation
        del self._waiters[name]
        del compilation.waiting[name]
        if not compilation.waiting:
            del self._by_constraint[compilation.constraint], self._by_id[compilation.id]
        return waiter.admission


def _name_of(admission: Admission) -> _Name:
    return admission.tokenized.client, admission.tokenized.rid


def _question(compilation: _Compilation, epoch: int) -> CompileReq:
    return CompileReq(compilation.id, epoch, compilation.constraint)
