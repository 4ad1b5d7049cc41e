"""The order of admission: the policy's, within a bound on who may overtake whom."""

import random
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.hit_rate.families import OUTPUT_TOKEN
from bench.hit_rate.simulator import Setting, simulate
from scheduler_proc.core.queueing.overtaking import MOST_PASSES, is_latency
from scheduler_proc.core.queueing.queue import MATCHED, WaitingQueue
from scheduler_proc.core.queueing.queue_order import POLICIES, _Sorted
from scheduler_proc.core.requests.request import Req
from scheduler_proc.fairness.credits import Credits
from scheduler_proc.memory.match_trackers import Cursor
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.memory.tree_node import TreeNode
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints, PerfClass
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import TokenizedReq
from tests.running.profiles import examples
from tests.scheduler_proc.driver import Driver

PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
GAPS = st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.0, 5.0])


def req(
    handle: int,
    prompt: list[int],
    arrival_s: float,
    is_resumed: bool = False,
    hints: Hints | None = None,
) -> Req:
    sampling = FilledParams(max_new_tokens=1)
    wire = TokenizedReq(b"c", str(handle), 0, pack_ids(prompt), sampling, hints=hints)
    waiting = Req.of(handle, wire, arrival_s, 1000)
    if is_resumed:
        waiting.meta = replace(waiting.meta, queued_s=0.0)
    return waiting


def queue_of(reqs: list[Req], policy: str, max_wait_s: float, cache: RadixCache) -> WaitingQueue:
    credits = Credits(512)
    queue = WaitingQueue(policy, max_wait_s, random.Random(0), cache, credits)
    for waiting in reqs:
        credits.join(waiting.wish.caller, waiting.wish.weight)
        queue.add(waiting)
    return queue


def cache_with(*prompts: list[int]) -> RadixCache:
    pool = TokenPool(1000)
    cache = RadixCache(pool)
    for prompt in prompts:
        slots = pool.alloc(len(prompt))
        assert slots is not None
        cache.insert(np.array(prompt, np.int32), slots)
    return cache


@pytest.mark.parametrize("policy", POLICIES)
@given(
    arrivals=st.lists(st.tuples(PROMPTS, GAPS, st.booleans()), min_size=1, max_size=25),
    cached=st.lists(PROMPTS, max_size=5),
    max_wait_s=st.sampled_from([0.0, 0.5, 3.0, 1e9]),
)
def test_nobody_comes_after_a_req_that_arrived_more_than_max_wait_later(
    policy: str,
    arrivals: list[tuple[list[int], float, bool]],
    cached: list[list[int]],
    max_wait_s: float,
) -> None:
    """Reqs that have been admitted before come first, in the order of their arrival."""
    now, reqs = 0.0, []
    for handle, (prompt, gap_s, is_resumed) in enumerate(arrivals):
        now += gap_s
        reqs.append(req(handle, prompt, now, is_resumed))
    queue = queue_of(reqs, policy, max_wait_s, cache_with(*cached))
    order = list(queue.ordered())
    assert sorted(r.handle for r in order) == list(range(len(reqs)))
    resumed = [r for r in reqs if r.is_admitted]
    assert order[: len(resumed)] == resumed
    for before, after in combinations(order[len(resumed) :], 2):
        assert before.arrival_s <= after.arrival_s + max_wait_s  # a difference would round


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_a_batch_is_the_policys_as_a_whole_however_long_it_waits(policy: str) -> None:
    """All came within max_wait of the oldest, so no boundary in time divides them."""
    reqs = [req(i, [1 + i % 2, 5, 5, 9 + i], 4.9 + 0.02 * i) for i in range(10)]
    order = queue_of(reqs, policy, 1.0, cache_with([2, 5, 5])).ordered()
    assert [r.handle for r in order] == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


def test_the_bound_moves_as_the_oldest_is_admitted() -> None:
    """A better match that came too late for the oldest may go before the next one."""
    cache = cache_with([7, 7, 7])
    first, second, better = req(0, [1], 0.0), req(1, [2], 2.0), req(2, [7, 7, 7, 1], 4.0)
    queue = queue_of([first, second, better], "lpm", 3.0, cache)
    assert list(queue.ordered()) == [first, second, better]
    queue.remove(first)
    assert list(queue.ordered()) == [better, second]


@settings(max_examples=examples(5))
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    max_wait_s=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    pool=st.sampled_from([150, 400, 2000]),
)
def test_the_bound_holds_for_admissions_in_any_traffic(
    seed: int, policy: str, max_wait_s: float, pool: int
) -> None:
    """Also for reqs that stand aside while their prefix is being computed."""
    rng = random.Random(seed)
    prompts = [np.array([rng.randint(1, 2) for _ in range(rng.randint(1, 60))]) for _ in range(50)]
    for prompt in rng.sample(prompts, 20):
        prompt[: rng.randint(0, len(prompt))] = 1
    assert all(OUTPUT_TOKEN not in prompt for prompt in prompts)
    now, arrived_s = 0.0, []
    for _ in prompts:
        now += rng.choice([0.0, rng.expovariate(15.0)])
        arrived_s.append(now)
    setting = Setting(pool, policy, max_wait_s, outputs=5)
    assert simulate(prompts, arrived_s, setting).worst_overtaking_s <= max_wait_s


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.full), 1])
def test_no_new_req_takes_the_memory_of_a_retracted_one(lag: int) -> None:
    driver = Driver(lag, max_total_tokens=80, check=False)
    rng, start = random.Random(1), driver.core.state.start

    def start_in_order(req: Req, now: float) -> None:
        waiting = list(driver.core.state.waiting)
        is_new = not req.is_admitted
        assert not is_new or not any(other.is_admitted for other in waiting)
        start(req, now)

    driver.core.state.start = start_in_order  # type: ignore[method-assign]
    for i in range(300):
        driver.add(str(i), [i, 1], max_new=rng.choice([1, 1, 1, 40]))
        driver.step()
    driver.run()
    assert driver.core.state.counters.retracted > 0


class Queued:
    """A queue and a tree of few slots, changed at random as a scheduler changes them."""

    def __init__(self, seed: int, policy: str, max_wait_s: float, num_slots: int) -> None:
        self.rng = random.Random(seed)
        self.policy, self.max_wait_s = policy, max_wait_s
        self.pool = TokenPool(num_slots)
        self.cache = RadixCache(self.pool)
        self.queue = WaitingQueue(policy, max_wait_s, random.Random(0), self.cache, Credits(512))
        self.waiting: list[Req] = []  # by arrival
        self.admitted: list[Req] = []
        self.locked: list[TreeNode] = []
        self.now, self.handles = 0.0, 0
        self.passes = 0  # of the class latency, since another req was admitted
        self.unhinted = 0.3  # the share of reqs without hints
        self.texts = [[self.rng.randint(1, 3) for _ in range(40)] for _ in range(4)]

    def text(self) -> list[int]:
        """A random text. Some share long beginnings, some none, and some begin others."""
        rng = self.rng
        text = rng.choice(self.texts)[: rng.randint(0, 40)]
        return text + [rng.randint(1, 3) for _ in range(rng.choice([0, 1, 1, 20]))] or [9]

    def hints(self) -> Hints | None:
        """Those of a request that comes now: some have none."""
        rng = self.rng
        if rng.random() < self.unhinted:
            return None
        classes: list[PerfClass] = ["", "", "latency", "throughput"]
        return Hints(
            app=rng.choice(["", "a", "b"]),
            perf=rng.choice(classes),
            group=rng.choice(["", "g", "h"]),
            depth=rng.randrange(3),
            arrival_s=max(0.01, self.now - rng.choice([0.0, 0.3, 2.0])),
            due_s=rng.choice([0.0, 0.0, self.now + 0.2]),
        )

    def change(self) -> None:
        rng = self.rng
        what = rng.choice(["arrive", "arrive", "admit", "abort", "insert", "evict", "retract"])
        if what == "arrive":
            self.now += rng.choice([0.0, 0.1, 1.0])
            for _ in range(rng.choice([1, 1, 4])):
                hints = self.hints() if self.policy == "app" else None
                self.waiting.append(req(self.handles, self.text(), self.now, hints=hints))
                self.queue.add(self.waiting[-1])
                self.handles += 1
        elif what == "admit" and self.waiting:
            admitted = next(iter(self.queue.ordered()))
            is_one = self.policy == "app" and is_latency(admitted)
            self.passes = self.passes + 1 if is_one else 0
            self.forget(admitted)
            self.cache.inc_lock_ref(self.cache.match_prefix(admitted.tokens.known[:-1]).node)
            self.locked.append(self.cache.match_prefix(admitted.tokens.known[:-1]).node)
            self.admitted.append(admitted)
        elif what == "abort" and self.waiting:
            gone = rng.choice(self.waiting)
            gone.finish = Finish("abort")
            self.forget(gone)
        elif what == "insert":
            self.insert(np.array(self.text(), np.int32))
        elif what == "evict":
            self.cache.evict(rng.choice([1, 3, 30]))
        elif what == "retract" and self.admitted:
            retracted = self.admitted.pop(rng.randrange(len(self.admitted)))
            retracted.meta = replace(retracted.meta, queued_s=0.0)
            self.waiting.append(retracted)
            self.queue.add(retracted)
        if self.locked and rng.random() < 0.2:
            self.cache.dec_lock_ref(self.locked.pop(rng.randrange(len(self.locked))))

    def insert(self, tokens: np.ndarray) -> None:
        self.cache.evict(len(tokens) - self.pool.free_size)
        slots = self.pool.alloc(len(tokens))
        if slots is not None:
            done = self.cache.insert(tokens, slots)
            self.pool.free(slots[: done.existing])

    def forget(self, gone: Req) -> None:
        self.queue.remove(gone)
        self.waiting.remove(gone)
        if all(map(is_latency, self.waiting)):
            self.passes = 0

    def sorted_anew(self) -> list[int]:
        """The handles of all that wait, sorted by the policy's definition."""
        fresh = sorted((r for r in self.waiting if not r.is_admitted), key=lambda r: r.handle)
        before = sorted(r.handle for r in self.waiting if r.is_admitted)
        passing = {r.handle for r in self.waiting if self.policy == "app" and is_latency(r)}
        order: list[int] = []
        while fresh:
            latest = fresh[0].arrival_s + self.max_wait_s
            window = [r for r in fresh if r.arrival_s <= latest or r.handle in passing]
            order += {
                "lpm": self.by_match,
                "dfs-weight": self.by_weight,
                "fcfs": handles_of,
                "app": self.by_application,
            }[self.policy](window)
            fresh = [r for r in fresh if r not in window]
        ones = [h for h in before if h in passing] + [h for h in order if h in passing]
        rest = [h for h in before + order if h not in passing]
        if ones and rest and self.passes >= MOST_PASSES:
            ones.insert(0, rest.pop(0))
        return ones + rest

    def by_match(self, window: list[Req]) -> list[int]:
        return handles_of(sorted(window, key=self.gain, reverse=True))

    def gain(self, waiting: Req) -> int:
        length = self.cache.match_len(waiting.tokens.known)
        return length - length % max(1, waiting.tokens.known_len // 16)

    def by_application(self, window: list[Req]) -> list[int]:
        classes = ["latency", "", "throughput"]
        plain = [waiting for waiting in window if waiting.wish.hints is None]

        def key(waiting: Req) -> tuple[Any, ...]:
            hints = waiting.wish.hints
            if hints is None:  # as one application that came with the oldest
                return (1, plain[0].arrival_s + self.max_wait_s, 1, -self.gain(waiting))
            due_s = hints.arrival_s + self.max_wait_s
            due_s = min(due_s, hints.due_s) if hints.due_s else due_s
            of_app = (hints.app, -hints.depth, hints.group)
            return (classes.index(hints.perf), due_s, 0, of_app, -self.gain(waiting))

        return handles_of(sorted(window, key=key))

    def by_weight(self, window: list[Req]) -> list[int]:
        paths: dict[int, list[TreeNode]] = {}
        for waiting in window:
            cursor = Cursor()
            self.cache.track(cursor, waiting.tokens.known)
            paths[waiting.handle] = list(cursor.path())[::-1]
        weights = Counter(node.uid for path in paths.values() for node in path)

        def key(waiting: Req) -> tuple[tuple[int, int], ...]:
            steps = tuple((-weights[node.uid], node.uid) for node in paths[waiting.handle])
            return (*steps, (1, 0))

        return handles_of(sorted(window, key=key))


def handles_of(reqs: list[Req]) -> list[int]:
    return [waiting.handle for waiting in reqs]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "fcfs", "app"])
@settings(max_examples=examples(5))
@given(
    seed=st.integers(0, 100_000),
    max_wait_s=st.sampled_from([0.0, 0.5, 3.0, 1e9]),
    num_slots=st.sampled_from([60, 200, 1000]),
    looks=st.sampled_from([1.0, 0.3]),
)
def test_the_order_that_is_kept_is_the_one_of_a_full_sort(
    policy: str, seed: int, max_wait_s: float, num_slots: int, looks: float
) -> None:
    """Whatever arrives, is admitted, aborted, retracted, inserted and evicted between looks."""
    queued = Queued(seed, policy, max_wait_s, num_slots)
    for _ in range(120):
        queued.change()
        if queued.rng.random() < looks:
            expected = queued.sorted_anew()  # first: looking splits edges and so renames branches
            assert handles_of(list(queued.queue.ordered())) == expected


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 100_000),
    max_wait_s=st.sampled_from([0.0, 0.5, 3.0, 1e9]),
    num_slots=st.sampled_from([60, 200, 1000]),
)
def test_without_hints_applications_are_in_the_order_of_lpm(
    seed: int, max_wait_s: float, num_slots: int
) -> None:
    queues = [Queued(seed, policy, max_wait_s, num_slots) for policy in ("lpm", "app")]
    queues[1].hints = lambda: None  # type: ignore[method-assign]  # draws nothing at random
    for _ in range(120):
        for queued in queues:
            queued.change()
        first, second = (handles_of(list(queued.queue.ordered())) for queued in queues)
        assert first == second


def test_the_turns_of_applications() -> None:
    """Classes, then the arrival of applications, depth, groups, and the longest match."""
    given = {
        0: Hints(perf="throughput", app="a", arrival_s=0.1),
        1: Hints(app="late", arrival_s=3.0),
        2: Hints(app="early", arrival_s=1.0),
        3: Hints(app="early", arrival_s=1.0, depth=2),
        4: Hints(app="early", arrival_s=1.0, depth=1, group="2"),
        5: Hints(app="early", arrival_s=1.0, depth=1, group="1"),
        6: Hints(app="early", arrival_s=1.0, depth=1, group="2"),
        7: None,
        8: None,
        9: Hints(perf="latency", app="new", arrival_s=4.0),
        10: Hints(perf="latency", app="due", arrival_s=4.5, due_s=5.0),
    }
    prompts = {6: [7, 7, 7, 1], 8: [7, 7, 7, 2]}
    reqs = [
        req(i, prompts.get(i, [20 + i]), 2.0 + 0.01 * i, hints=hints) for i, hints in given.items()
    ]
    order = queue_of(reqs, "app", 10.0, cache_with([7, 7, 7])).ordered()
    assert handles_of(list(order)) == [10, 9, 3, 5, 6, 4, 2, 8, 7, 1, 0]


def test_an_urgent_req_that_has_passed_older_ones_is_not_taken_for_the_oldest() -> None:
    """Else who came long after those would pass them too."""
    reqs = [req(number, [number + 1], 0.0) for number in range(MATCHED + 2)]
    queue = queue_of(reqs, "app", 10.0, cache_with([500, 501]))
    queue.ordered()
    urgent = req(100, [300], 6.0, hints=Hints(perf="latency", arrival_s=6.0))
    queue.add(urgent)
    assert handles_of(list(queue.ordered()))[0] == urgent.handle
    for waiting in reqs[:MATCHED]:  # their client is gone
        queue.remove(waiting)
    queue.add(req(101, [500, 501, 502], 12.0))
    for _ in range(3):
        assert handles_of(list(queue.ordered())) == [100, MATCHED, MATCHED + 1, 101]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "fcfs", "app"])
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 100_000), max_wait_s=st.sampled_from([0.5, 1e9]))
def test_a_long_queue_comes_into_order_look_by_look(
    policy: str, seed: int, max_wait_s: float
) -> None:
    """A look takes over some of what has changed, and offers everybody once, nobody after one that
    came more than max_wait later, except of the class latency."""
    queued = Queued(seed, policy, max_wait_s, num_slots=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler_proc.core.queueing.queue.MATCHED", 2)
        patch.setattr("scheduler_proc.core.queueing.queue.MARKED", 3)
        for _ in range(120):
            queued.change()
            offered = list(queued.queue.ordered())
            assert sorted(handles_of(offered)) == sorted(handles_of(queued.waiting))
            passing = {r.handle for r in offered if policy == "app" and is_latency(r)}
            fresh = [r for r in offered if not r.is_admitted and r.handle not in passing]
            for before, after in combinations(fresh, 2):
                assert before.arrival_s <= after.arrival_s + max_wait_s
        for _ in range(len(queued.waiting) + 1):
            list(queued.queue.ordered())
        expected = queued.sorted_anew()
        assert handles_of(list(queued.queue.ordered())) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gap_s", [0.0, 0.1])
def test_a_look_goes_on_while_reqs_are_admitted(policy: str, gap_s: float) -> None:
    """However many, if there is room for them."""
    reqs = [req(i, [1 + i % 3, 4, i], gap_s * i) for i in range(600)]
    queue = queue_of(reqs, policy, 1.0, cache_with([1, 4]))
    for waiting in queue.ordered():
        queue.remove(waiting)
    assert len(queue) == 0


@given(
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=120),
    reads=st.sets(st.integers(0, 119)),
)
def test_entries_in_parts_stay_sorted(changes: list[tuple[bool, int]], reads: set[int]) -> None:
    """Also for one who reads on while they come and go: each that stays is read once, in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler_proc.core.queueing.queue_order.MOST_TOGETHER", 4)
        entries, expected = _Sorted[int](), set[int]()
        reader, read, stayed = iter(entries), list[int](), set[int]()
        for number, (comes, entry) in enumerate(changes):
            if comes and entry not in expected:
                entries.add(entry)
                expected.add(entry)
            elif not comes and entry in expected:
                entries.remove(entry)
                expected.discard(entry)
            stayed &= expected
            if number in reads and (one := next(reader, None)) is not None:
                stayed = stayed if read else expected.copy()
                read.append(one)
            assert list(entries) == sorted(expected)
        read += reader if read else ()
        assert read == sorted(set(read)) and stayed <= set(read)


def test_nothing_is_kept_of_those_that_have_left() -> None:
    queued = Queued(1, "dfs-weight", 1.0, 200)
    for _ in range(300):
        queued.change()
        list(queued.queue.ordered())
    for waiting in list(queued.waiting):
        queued.forget(waiting)
    assert list(queued.cache.watchers.spots()) == []
    assert not queued.cache.watchers.moved
    assert len(queued.queue) == 0
