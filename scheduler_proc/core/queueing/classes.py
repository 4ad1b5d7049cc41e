"""Who of one caller's waiting reqs takes its turn, where some of them have classes or priorities.

The queue orders the reqs of all callers as if there were no classes: these are the turns. A turn of
a caller that has asked for classes goes to the req that is first by them, and whose turn that was
has the other's place from then on. So nobody passes another caller's req by asking for a high
priority. The queue owns one `Classes`; callers without classes are not in it, and nothing is
decided for them here.

Among classes, the highest is first that has credit left, as callers have among each other: where
all of them wait, they share what their caller is given by `WEIGHTS`. The weight of a class doubles
each time that its oldest req has waited for `max_wait_s`, up to the highest. In a class, those that
have been admitted before come first; then the greatest priority first, and of the same priority
the policy orders; no req comes after one that arrived more than `max_wait_s` later. The class
`latency` of hints passes those of its priority or below, but for one after each `MOST_PASSES`.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain, groupby, islice, takewhile

from scheduler_proc.core.queueing.overtaking import MOST_PASSES
from scheduler_proc.core.queueing.queue_order import LATENCY_TURN, Order
from scheduler_proc.core.requests.request import Req
from scheduler_proc.fairness.credits import Credits
from scheduler_proc.memory.radix_cache import RadixCache
from srt.wire.hints import CLASSES, MIN_PRIORITY

FLEX, DEFAULT = 0, 1  # ranks, the places in `CLASSES`
WEIGHTS = (1.0, 4.0, 16.0)  # by rank
QUANTUM = 512  # tokens, for the first class of a caller at each refill
MOST_TOGETHER = 128  # reqs of one priority that the policy orders, so that it takes a millisecond
MOST_LATER = 256  # reqs after a first window that a look reaches

_Key = tuple[int, int, int]  # priority, negative, turn by its hints, and handle
HintTurn = Callable[[Req], int]


def has_class(req: Req) -> bool:
    """Whether a req is to come before or after others of its caller."""
    return req.wish.rank != DEFAULT or req.wish.priority != 0


class _Line:
    """The waiting reqs of one class."""

    def __init__(self, order: Callable[[], Order], by_hints: HintTurn, max_wait_s: float) -> None:
        self._new_order, self._by_hints, self._max_wait_s = order, by_hints, max_wait_s
        self._resumed: dict[int, Req] = {}  # those that have been admitted before
        self._others: OrderedDict[int, Req] = OrderedDict()  # in order of arrival
        self._window: list[_Key] = []  # of the oldest of these, and of `latency`, sorted
        self._later: OrderedDict[int, Req] = OrderedDict()  # the rest of them
        self._passes = 0  # of `latency`, since another req was admitted

    def __len__(self) -> int:
        return len(self._resumed) + len(self._others)

    def __contains__(self, handle: int) -> bool:
        return handle in self._resumed or handle in self._others

    def __iter__(self) -> Iterator[int]:
        """The handles."""
        yield from self._resumed
        yield from self._others

    def add(self, req: Req) -> None:
        if req.is_admitted or req.is_resumed:
            self._resumed[req.handle] = req
        elif self._is_latency(req):
            self._others[req.handle] = req
            insort(self._window, self._key(req))
        else:
            self._others[req.handle] = self._later[req.handle] = req

    def admitted(self, req: Req) -> None:
        """It is about to leave for memory."""
        self._passes = self._passes + 1 if self._is_latency(req) else 0

    def remove(self, req: Req) -> None:
        if self._resumed.pop(req.handle, None) is not None:
            return
        del self._others[req.handle]
        if self._later.pop(req.handle, None) is None:
            del self._window[bisect_left(self._window, self._key(req))]

    def waited_s(self, now: float) -> float:
        """How long the oldest has waited."""
        oldest = [*self._resumed.values(), *islice(self._others.values(), 1)]
        return now - min(req.arrival_s for req in oldest)

    def first(self) -> Req:
        """The first one, but for the policy, which orders those that are equal."""
        ones, keys, others = self._heads()
        heads = chain(ones, (self._others[key[-1]] for key in keys), others)
        return next(heads, None) or self._others[self._window[0][-1]]

    def in_order(self, cache: RadixCache) -> Iterator[Req]:
        """Those that wait when they are reached."""
        ones, keys, others = self._heads()
        first = list(keys)  # the window changes while it is read
        yield from (req for req in ones if req.handle in self)
        yield from self._ordered(first, cache)
        yield from (req for req in others if req.handle in self)
        passed = set(first)
        yield from self._ordered((key for key in self._window if key not in passed), cache)
        later = list(islice(self._later.values(), MOST_LATER))
        while later:
            latest_s = later[0].arrival_s + self._max_wait_s
            count = sum(req.arrival_s <= latest_s for req in later)
            yield from self._ordered(sorted(map(self._key, later[:count])), cache)
            later = later[count:]

    def _heads(self) -> tuple[list[Req], Iterator[_Key], list[Req]]:
        """What comes before the rest of the window: reqs that have been admitted before, keys of
        the window, and again such reqs. They begin with the class `latency`, or with the one that
        it may not pass."""
        self._fill_window()
        resumed = [self._resumed[handle] for handle in sorted(self._resumed)]
        others = [req for req in resumed if not self._is_latency(req)]
        if self._passes >= MOST_PASSES:
            due = (key for key in self._window if key[1] != LATENCY_TURN)
            first = others[:1]
            keys = islice(due, 0 if first else 1)
            return first, keys, [req for req in resumed if req not in first]
        least = max((req.wish.priority for req in others), default=MIN_PRIORITY)
        ones = [req for req in resumed if self._is_latency(req)]
        passing = takewhile(lambda key: key[1] == LATENCY_TURN and -key[0] >= least, self._window)
        return ones, passing, others

    def _is_latency(self, req: Req) -> bool:
        return self._by_hints(req) == LATENCY_TURN

    def _fill_window(self) -> None:
        """Take those into the window that came soon enough after the oldest."""
        oldest = next(iter(self._others.values()), None)
        while oldest is not None and self._later:
            first = next(iter(self._later.values()))
            if first.arrival_s > oldest.arrival_s + self._max_wait_s:
                break
            del self._later[first.handle]
            insort(self._window, self._key(first))

    def _ordered(self, keys: Iterable[_Key], cache: RadixCache) -> Iterator[Req]:
        """The reqs with these sorted keys; those that are equal but for the handle by the policy,
        some at a time."""
        for _, same in groupby(list(keys), key=lambda key: key[:2]):
            while together := [key[-1] for key in islice(same, MOST_TOGETHER)]:
                order = self._new_order()
                for handle in together:
                    if (req := self._others.get(handle)) is not None:
                        if req.cursor.spot is None:  # else the queue's window keeps its match
                            cache.track(*req.tracked)
                        order.add(req)
                for handle in order.handles():
                    if handle in self._others:
                        yield self._others[handle]

    def _key(self, req: Req) -> _Key:
        return -req.wish.priority, self._by_hints(req), req.handle


class _Caller:
    """The classes of one caller."""

    def __init__(self, lines: list[_Line], max_wait_s: float) -> None:
        self.lines = lines  # by rank
        self._places: dict[int, int] = {}  # by handle: later ones, of those that lost their turns
        self._max_wait_s = max_wait_s
        self._credits = Credits(QUANTUM)
        for name, weight in zip(CLASSES, WEIGHTS, strict=True):
            self._credits.join(name, weight)

    def admitted(self, req: Req, tokens: int) -> None:
        """It is about to leave for memory, and costs as many more tokens."""
        self._credits.charge(CLASSES[req.wish.rank], tokens)
        self.lines[req.wish.rank].admitted(req)

    def has(self, req: Req) -> bool:
        """Whether a req of the caller waits."""
        return req.handle in self.lines[req.wish.rank]

    def place(self, req: Req) -> int:
        """In order of arrival: the handle of the req whose place it has."""
        return self._places.get(req.handle, req.handle)

    def swap(self, loser: Req, winner: Req) -> None:
        """A req was admitted in the turn of another one, which has its place now."""
        self._places[loser.handle] = self.place(winner)

    def remove(self, req: Req) -> None:
        self.lines[req.wish.rank].remove(req)
        self._places.pop(req.handle, None)

    def in_turn(self, cache: RadixCache, now: float) -> Iterator[Req]:
        """The reqs in order, each class as long as it has credit when a req of it is reached."""
        left = {rank: self.lines[rank].in_order(cache) for rank in self._weigh(now)}
        while left:
            rank = self._first(left)
            req = next(left[rank], None)
            if req is None:
                del left[rank]
            else:
                yield req

    def next(self, now: float) -> Req:
        """The first req."""
        return self.lines[self._first(self._weigh(now))].first()

    def _weigh(self, now: float) -> list[int]:
        """The classes that wait, whose weights become those of now."""
        ranks = [rank for rank, line in enumerate(self.lines) if len(line) > 0]
        for rank in ranks:
            weight = self._weight(rank, self.lines[rank].waited_s(now))
            self._credits.reweigh(CLASSES[rank], weight)
        return ranks

    def _first(self, ranks: Collection[int]) -> int:
        """The highest of some classes that has credit left; if none has, there is a refill."""
        able = self._credits.able([CLASSES[rank] for rank in ranks])
        return max(rank for rank in ranks if CLASSES[rank] in able)

    def _weight(self, rank: int, waited_s: float) -> float:
        """That of a class whose oldest has waited so long."""
        doublings = len(WEIGHTS) ** 2 if self._max_wait_s <= 0.0 else waited_s / self._max_wait_s
        return float(min(WEIGHTS[-1], WEIGHTS[rank] * 2.0 ** int(min(max(doublings, 0.0), 9.0))))


class Classes:
    """The callers with classes that have reqs in the queue."""

    def __init__(
        self, order: Callable[[], Order], by_hints: HintTurn, max_wait_s: float, cache: RadixCache
    ) -> None:
        """`order` makes an empty one. `by_hints` gives a number: of two reqs with the same priority
        the one with the smaller is first, whatever the order."""
        self._order, self._by_hints, self._max_wait_s = order, by_hints, max_wait_s
        self._cache = cache
        self._callers: dict[str, _Caller] = {}
        self.counts = dict.fromkeys(map(str, CLASSES), 0)  # reqs that were admitted, by class
        self.num_preempted = 0  # those that gave their places to a higher class of their caller
        self._turn: tuple[Req, Req] | None = None  # whose is taken now, and who takes it

    @property
    def callers(self) -> Collection[str]:
        return self._callers.keys()

    def handles(self, caller: str) -> set[int]:
        """The reqs of one of the callers."""
        return {handle for line in self._callers[caller].lines for handle in line}

    def add(self, req: Req, waiting: Iterable[Req]) -> None:
        """A req has come to the `waiting` ones of its caller."""
        mine = self._callers.get(req.wish.caller)
        if mine is None:
            if not has_class(req):
                return
            lines = [_Line(self._order, self._by_hints, self._max_wait_s) for _ in CLASSES]
            mine = self._callers[req.wish.caller] = _Caller(lines, self._max_wait_s)
            for other in waiting:
                mine.lines[other.wish.rank].add(other)
        mine.lines[req.wish.rank].add(req)

    def remove(self, req: Req) -> None:
        """A req is gone. With the last one of a caller its classes' credit is forgotten."""
        mine = self._callers.get(req.wish.caller)
        if mine is not None:
            mine.remove(req)
            if not any(map(len, mine.lines)):
                del self._callers[req.wish.caller]

    def admitted(self, req: Req, tokens: int) -> None:
        """A waiting req is about to leave the queue for memory, and costs as many more tokens."""
        turn, self._turn = self._turn, None
        mine = self._callers.get(req.wish.caller)
        if mine is not None:
            mine.admitted(req, tokens)
            if turn is not None and turn[1] is req is not turn[0] and mine.has(turn[0]):
                mine.swap(*turn)

    def next(self, caller: str, now: float) -> Req | None:
        """The req that takes the next turn of one who waits; None if no classes were asked for."""
        mine = self._callers.get(caller)
        return None if mine is None else mine.next(now)

    def in_turn(
        self, turns: Iterable[Req], now: float, has_credit: Callable[[str], bool] = lambda _: True
    ) -> Iterable[Req]:
        """The reqs that take these turns, each of which is that of a req's caller."""
        return self._in_turn(turns, now, has_credit) if self._callers else turns

    def _in_turn(
        self, turns: Iterable[Req], now: float, has_credit: Callable[[str], bool]
    ) -> Iterator[Req]:
        """Where a turn has a later place, it is taken before those that came after that, or after
        all others if the caller has no credit left by then."""
        callers = {name: mine.in_turn(self._cache, now) for name, mine in self._callers.items()}
        late: list[tuple[int, int, Req]] = []  # a heap: place and handle
        last: list[Req] = []
        for turn in turns:
            while late and late[0][0] < turn.handle:
                *_, other = heappop(late)
                if has_credit(other.wish.caller):
                    yield from self._taken(other, callers)
                else:
                    last.append(other)
            mine = self._callers.get(turn.wish.caller)
            place = turn.handle if mine is None else mine.place(turn)
            if place > turn.handle:
                heappush(late, (place, turn.handle, turn))
            else:
                yield from self._taken(turn, callers)
        for other in chain(last, (each[-1] for each in sorted(late))):
            yield from self._taken(other, callers)
        self._turn = None
        for left in callers.values():  # a req that was admitted has no turn, which another needs
            yield from left

    def _taken(self, turn: Req, callers: Mapping[str, Iterator[Req]]) -> Iterator[Req]:
        """Who takes a turn, if anybody is left."""
        mine = callers.get(turn.wish.caller)
        chosen = turn if mine is None else next(mine, None)
        if chosen is not None:
            self._turn = turn, chosen
            yield chosen
