"""What each call is made for: the wants of gets, taken backwards along the program.

A get wants its variables by itself (`Aim`), and what makes these the same: of several gets the
strictest counts. Calls that feed one consumer are a group, whose aim is its last one's end, and a
call is as deep as requests follow from it in a row. The scheduler has all this as hints. Pure: no
I/O and no clock. Objectives only become stricter; a get that ends leaves those of its calls.

What is wanted for the first time is all looked at, and of what was wanted before, as far as
`MOST_AGAIN` references go, the nearest to the get first: gets that want ever more cost little each.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from srt.programs.parts import CallWork, Session, Variable, Work
from srt.wire.hints import MAX_DEPTH, MAX_TPOT_MS, Hints, PerfClass
from srt.wire.programs import Perf

MOST_AGAIN = 1024  # some milliseconds
_STRICTEST_FIRST: tuple[PerfClass, ...] = ("latency", "", "throughput")


@dataclass(eq=False, slots=True)
class Group:
    """Calls that one consumer waits for: `size` of them, of which `left` have not ended."""

    number: int
    size: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True)
class Objective:
    """What a call or transform is made for: a class, the time when the first get wanted it, the one
    when it is due (infinite: none), and the requests that follow in a row when it has ended. If a
    get reads its own tokens, these have a target for the time between two (infinite: none)."""

    rank: int  # of the class; 0 is the strictest
    arrival_s: float
    due_s: float = math.inf
    depth: int = 0
    tpot_ms: float = math.inf

    @classmethod
    def of_get(cls, perf: Perf | None, now: float) -> "Objective":
        """That of a get which comes `now`."""
        if perf is None:
            return cls(_STRICTEST_FIRST.index(""), now)
        if perf.objective == "throughput":
            return cls(_STRICTEST_FIRST.index("throughput"), now)
        target_ms = perf.target_ms or math.inf
        if perf.objective == "tpot":
            return cls(0, now, tpot_ms=target_ms)
        return cls(0, now, now + target_ms / 1e3 if perf.objective == "ttft" else math.inf)

    @property
    def perf(self) -> PerfClass:
        return _STRICTEST_FIRST[self.rank]

    @property
    def urgency(self) -> tuple[int, float, float]:
        """The smaller, the stricter it is."""
        return self.rank, self.due_s, self.arrival_s

    def and_also(self, other: "Objective") -> "Objective":
        """What satisfies both."""
        return Objective(
            min(self.rank, other.rank),
            min(self.arrival_s, other.arrival_s),
            min(self.due_s, other.due_s),
            max(self.depth, other.depth),
            min(self.tpot_ms, other.tpot_ms),
        )

    def before(self, work: Work) -> "Objective":
        """The objective of what `work`, which has this one, is made of."""
        if not isinstance(work, CallWork):
            return self
        depth = self.depth + len(work.outputs)  # whose tokens the get does not read
        return Objective(self.rank, self.arrival_s, self.due_s, depth)


def wants_of(
    wanted: Iterable[Variable], perf: Perf | None, now: float
) -> Iterator[tuple[list[Variable], Objective]]:
    """What a get or an eager submission wants the variables for, which comes `now`: if it does not
    say, what their calls do."""
    found: dict[Perf | None, list[Variable]] = {}
    for var in wanted:
        own = var.work.call.perf if isinstance(var.work, CallWork) else None
        found.setdefault(perf or own, []).append(var)
    for each, variables in found.items():
        yield variables, Objective.of_get(each, now)


@dataclass(eq=False, slots=True)
class _Place:
    """Where a work stands: its objective, the group of what feeds the same consumer, and how urgent
    the consumer is that has put it there."""

    objective: Objective
    group: Group | None = None
    urgency: tuple[int, float, float] = (len(_STRICTEST_FIRST), math.inf, math.inf)
    feeds: Group | None = None  # the group of what it is made of


class Objectives:
    """Those of all works that are wanted and have not ended."""

    def __init__(self) -> None:
        self._places: dict[Work, _Place] = {}
        self._num_groups = 0

    def __len__(self) -> int:
        return len(self._places)

    def of(self, work: Work) -> Objective | None:
        """The objective of a work; None if nobody wants it, or if it has ended."""
        place = self._places.get(work)
        return None if place is None else place.objective

    def group_of(self, work: Work) -> Group | None:
        """The calls that are waited for together with this one; None if it is alone."""
        place = self._places.get(work)
        group = None if place is None else place.group
        return None if group is None or group.size < 2 else group

    def hints(self, work: Work, index: int) -> Hints | None:
        """What the scheduler is told of the request for output `index` of a call."""
        objective = self.of(work)
        if objective is None:
            return None
        group = self.group_of(work)
        later = len(work.outputs) - 1 - index
        return Hints(
            app=_app_of(work.session),
            perf=objective.perf,
            group="" if group is None else str(group.number),
            group_size=0 if group is None else group.size,
            depth=min(objective.depth + later, MAX_DEPTH),
            tpot_ms=objective.tpot_ms if objective.tpot_ms <= MAX_TPOT_MS else 0.0,
            arrival_s=objective.arrival_s,
            due_s=0.0 if objective.due_s == math.inf else objective.due_s,
        )

    def want(self, wanted: Iterable[Variable], objective: Objective) -> None:
        """A get wants these variables."""
        sinks = dict.fromkeys(v.work for v in wanted if v.work is not None and not v.work.ended)
        group = self._new_group() if len(sinks) > 1 else None
        again = {work for work in sinks if work in self._places}
        changed = [work for work in sinks if self._offer(work, objective, group)]
        for work, producers in self._consumers_first(changed, again):
            place = self._places[work]
            before = place.objective.before(work)
            feeds = self._fed_group(work, place)
            for producer in producers:
                self._offer(producer, before, feeds)

    def _consumers_first(
        self, works: Iterable[Work], again: set[Work]
    ) -> Iterator[tuple[Work, list[Work]]]:
        """The works and what they are made of, each after those of them that need it, with what
        makes its inputs; of those that were wanted before, as are those of `works` in `again`, only
        so many."""
        producers: dict[Work, list[Work]] = {}
        consumers = dict.fromkeys(works, 0)
        fresh = [work for work in consumers if work not in again]
        known, left = deque(work for work in consumers if work in again), MOST_AGAIN
        while fresh or (known and left > 0):
            is_new = bool(fresh)
            work = fresh.pop() if is_new else known.popleft()
            producers[work] = found = list(_producers(work))
            left -= 0 if is_new else 1 + len(found)
            for producer in found:
                if producer not in consumers:
                    consumers[producer] = 0
                    (known if producer in self._places else fresh).append(producer)
                consumers[producer] += 1
        ready = deque(work for work, count in consumers.items() if count == 0)
        while ready:
            work = ready.popleft()
            if work not in producers:
                continue
            yield work, producers[work]
            for producer in producers[work]:
                consumers[producer] -= 1
                if consumers[producer] == 0:
                    ready.append(producer)

    def forget(self, work: Work) -> None:
        """A work has ended."""
        place = self._places.pop(work, None)
        if place is not None and place.group is not None and isinstance(work, CallWork):
            place.group.left -= 1

    def _offer(self, work: Work, objective: Objective, group: Group | None) -> bool:
        """Have a work made for this too; whether that changes anything for what it is made of."""
        place = self._places.get(work)
        if place is None:
            place = self._places[work] = _Place(objective)
            is_new = True
        else:
            both = place.objective.and_also(objective)
            is_new, place.objective = both != place.objective, both
        if objective.urgency < place.urgency:
            place.urgency = objective.urgency
            if group is not place.group:
                self._move(work, place, group)
                is_new = True
        return is_new

    def _move(self, work: Work, place: _Place, group: Group | None) -> None:
        """Put a work into another group. Only calls count: transforms take no time."""
        old, place.group = place.group, group
        if isinstance(work, CallWork):
            for each, more in ((old, -1), (group, 1)):
                if each is not None:
                    each.size += more
                    each.left += more

    def _fed_group(self, work: Work, place: _Place) -> Group | None:
        """The group of what `work` is made of: of a transform it is its own, since what waits for
        the transform waits for them."""
        if not isinstance(work, CallWork) and place.group is not None:
            return place.group
        if place.feeds is None:
            place.feeds = self._new_group()
        return place.feeds

    def _new_group(self) -> Group:
        self._num_groups += 1
        return Group(self._num_groups)


def _producers(work: Work) -> Iterator[Work]:
    """What makes the inputs of a work that are not there yet."""
    made = dict.fromkeys(v.work for v in work.inputs.values() if not v.has_ended)
    return (each for each in made if each is not None and not each.ended)


def _app_of(session: Session) -> str:
    """A name of a session that is not its id, which is a secret."""
    return hashlib.blake2b(session.id.encode(), digest_size=8).hexdigest()
