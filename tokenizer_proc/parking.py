"""Requests that passed every check but still wait for their grammar to be compiled.

The front parks them and asks the compiler, once for all requests with one constraint. Invariant:
a parked request leaves by its reply, the aborts of all its samples, its deadline or the end of the
epoch, whichever is first, and by that only.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from srt.constraint import Constraint
from srt.messages import CompileCancel, CompileReq
from tokenizer_proc.admission import Admission

_Name = tuple[bytes, str]  # client, rid


class Parked(NamedTuple):
    """The request waits. `question` goes to the compiler, if nobody has asked it yet."""

    question: CompileReq | None


@dataclass
class _Compilation:
    """A question that the compiler has not answered, and who waits for the answer."""

    id: int
    constraint: Constraint
    waiting: dict["_Waiter", None] = field(default_factory=dict)  # in order of arrival


@dataclass(eq=False)
class _Waiter:
    admission: Admission
    compilation: _Compilation
    deadline: float


class Parking:
    """The parked requests of one front. Each may wait for `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiters: dict[_Waiter, None] = {}  # in the order of their deadlines
        self._samples: dict[_Name, tuple[_Waiter, int]] = {}  # with their numbers
        self._by_constraint: dict[Constraint, _Compilation] = {}
        self._by_id: dict[int, _Compilation] = {}
        self._cancelled: list[int] = []
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
        waiter = _Waiter(admission, compilation, now + self._wait_s)
        compilation.waiting[waiter] = self._waiters[waiter] = None
        for number, part in enumerate(admission.parts):
            self._samples[part.client, part.rid] = waiter, number
        return Parked(None if asked else _question(compilation, admission.admitted.epoch))

    def holds(self, client: bytes, rid: str) -> bool:
        """Whether this sample is parked."""
        return (client, rid) in self._samples

    def abort(self, client: bytes, rid: str) -> Admission | None:
        """End one sample, which is parked. With the last one the request leaves, as one of which
        all samples were aborted; else None."""
        waiter, number = self._samples.pop((client, rid))
        admitted, parts = waiter.admission
        waiter.admission = Admission(
            replace(admitted, aborted=[*admitted.aborted, number]),
            [part for part in parts if part.rid != rid],
        )
        if waiter.admission.parts:
            return None
        return self._remove(waiter, answered=False)

    def take_compiled(self, compilation_id: int) -> list[tuple[Admission, Constraint]]:
        """Remove those that waited for an answer which has come."""
        compilation = self._by_id.get(compilation_id)
        if compilation is None:
            return []
        waiters = list(compilation.waiting)
        return [(self._remove(waiter, answered=True), compilation.constraint) for waiter in waiters]

    def take_expired(self, now: float) -> list[Admission]:
        """Remove those that have waited for too long."""
        expired = []
        for waiter in self._waiters:
            if waiter.deadline > now:
                break
            expired.append(waiter)
        return [self._remove(waiter, answered=False) for waiter in expired]

    def questions(self, epoch: int) -> list[CompileReq]:
        """All that have no answer yet, to be asked again."""
        return [_question(compilation, epoch) for compilation in self._by_id.values()]

    def take_cancelled(self, epoch: int) -> list[CompileCancel]:
        """The questions whose answers nobody waits for any more, each once."""
        cancelled, self._cancelled = self._cancelled, []
        return [CompileCancel(compilation_id, epoch) for compilation_id in cancelled]

    def clear(self) -> None:
        """Forget everything. Answers to earlier questions are not taken for later ones'."""
        self._waiters.clear()
        self._samples.clear()
        self._by_constraint.clear()
        self._by_id.clear()
        self._cancelled.clear()

    def _remove(self, waiter: _Waiter, *, answered: bool) -> Admission:
        """Let a request go; a question that nobody waits for any more is forgotten."""
        compilation = waiter.compilation
        del self._waiters[waiter]
        for part in waiter.admission.parts:
            del self._samples[part.client, part.rid]
        del compilation.waiting[waiter]
        if not compilation.waiting:
            del self._by_constraint[compilation.constraint], self._by_id[compilation.id]
            if not answered:
                self._cancelled.append(compilation.id)
        return waiter.admission


def _question(compilation: _Compilation, epoch: int) -> CompileReq:
    return CompileReq(compilation.id, epoch, compilation.constraint)
