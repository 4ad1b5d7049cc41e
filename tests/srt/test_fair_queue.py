"""Askers take turns with their jobs, whatever is added and removed meanwhile."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.fair_queue import FairQueue, SerialQueue, SlotQueue


def filled(*jobs: str) -> FairQueue[str, str]:
    """Jobs named after their askers: a1 is of asker a."""
    queue: FairQueue[str, str] = FairQueue()
    for job in jobs:
        queue.add(job[0], job)
    return queue


def by_turns(queue: FairQueue[str, str]) -> list[str]:
    """All jobs, of the asker whose turn is first each time."""
    order = []
    while queue:
        order.append(queue.pop(next(iter(queue.askers))))
    return order


def test_askers_take_turns() -> None:
    queue = filled("a1", "a2", "a3", "b1", "c1", "b2")
    assert list(queue.askers) == ["a", "b", "c"] and list(queue.lane("b")) == ["b1", "b2"]
    assert by_turns(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not queue.askers and not queue.lane("a")


def test_a_job_stands_once_in_a_lane() -> None:
    queue = filled("a1", "a2", "a1")
    assert list(queue.lane("a")) == ["a1", "a2"]
    queue.add("b", "a2")
    assert list(queue) == ["a1", "a2"] and "a2" in queue and "b1" not in queue


def test_a_pop_leaves_the_other_lanes() -> None:
    queue = filled("a1", "a2", "b1")
    queue.add("b", "a1")
    assert queue.pop("a") == "a1" and "a1" in queue
    assert queue.remove("a1") == ["b"] and "a1" not in queue
    assert list(queue.askers) == ["b", "a"]


def test_removal_keeps_the_turns() -> None:
    queue = filled("a1", "b1", "c1", "a2", "b2")
    assert queue.discard("a", "a1") and not queue.discard("a", "a1")
    assert not queue.discard("d", "a1") and queue.remove("x") == []
    assert by_turns(queue) == ["a2", "b1", "c1", "b2"]


def test_an_asker_who_comes_back_is_last() -> None:
    queue = filled("a1", "b1")
    queue.discard("a", "a1")
    queue.add("a", "a2")
    assert by_turns(queue) == ["b1", "a2"]


def test_clear_removes_all() -> None:
    queue = filled("a1", "b1")
    queue.clear()
    assert not queue and list(queue) == []


def test_one_job_of_each_asker_is_in_progress() -> None:
    queue: SerialQueue[str, int] = SerialQueue()
    for job in range(3):
        queue.add("a", job)
    assert queue.take() == ("a", 0) and queue.take() is None
    queue.add("b", 9)
    assert queue.take() == ("b", 9) and queue.in_progress == {"a": 0, "b": 9}
    queue.done("a")
    assert queue.take() == ("a", 1)


def test_jobs_in_progress_outlast_a_clear() -> None:
    queue: SerialQueue[str, int] = SerialQueue()
    queue.add("a", 1)
    queue.take()
    queue.clear()
    queue.add("a", 2)
    assert queue.take() is None
    queue.done("a")
    queue.done("a")  # nothing is in progress: nothing happens
    assert queue.take() == ("a", 2)


@given(st.lists(st.sampled_from("aaaab"), max_size=40), st.integers(0, 40))
def test_nobody_waits_for_more_than_one_job_of_another(askers: list[str], taken: int) -> None:
    queue: SerialQueue[str, int] = SerialQueue()
    for number, asker in enumerate(askers):
        queue.add(asker, number)
    for _ in range(taken):
        if (job := queue.take()) is not None:
            queue.done(job[0])
    queue.add("late", -1)
    before: Counter[str] = Counter()
    while (job := queue.take()) is not None and job[0] != "late":
        queue.done(job[0])
        before[job[0]] += 1
    assert job == ("late", -1) and max(before.values(), default=0) <= 1


def test_slots_are_left_to_the_next_asker() -> None:
    queue: SlotQueue[str, int] = SlotQueue(16)
    for asker in "abc":
        for job in range(20):
            queue.add(asker, job)
        started = list(iter(queue.take, None))
        assert started[0][0] == asker
    taken = Counter({"a": 8, "b": 4, "c": 2})
    assert queue._taken == taken
    for _ in range(100):  # in the end each has a fourth, and a fourth is left
        for asker in "abc":
            queue.done(asker, 0)
            queue.take()
    assert sorted(queue._taken.values()) == [4, 4, 4] or queue._taken.total() <= 13
    queue.add("d", 0)
    assert queue.take() == ("d", 0)


def test_who_has_none_is_waited_for() -> None:
    queue: SlotQueue[str, int] = SlotQueue(8, 4, lambda job: job)
    for asker, job in [("a", 1), ("a", 2), ("b", 3), ("c", 9), ("a", 1), ("d", 1)]:
        queue.add(asker, job)
    assert queue.take() == ("a", 1) and queue.take() == ("b", 3)
    assert queue.take() == ("c", 9)  # four: more than one may have
    assert queue.take() is None
    queue.done("b", 3)
    assert queue.take() == ("d", 1) and queue.take() is None  # "a" has one, and two are left
    queue.add("e", 4)
    queue.done("d", 1)
    assert queue.take() == ("a", 2)  # it was its turn, before that of "e"
    queue.done("a", 1)
    assert queue.take() is None  # two are left, and "e" wants four
    queue.done("c", 9)
    assert queue.take() == ("e", 4)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200), st.randoms())
def test_four_askers_leave_a_slot_to_the_fifth(
    jobs: list[tuple[str, bool]], rng: random.Random
) -> None:
    queue: SlotQueue[str, int] = SlotQueue(16)
    running: list[tuple[str, int]] = []
    for number, (asker, ends) in enumerate(jobs):
        queue.add(asker, number)
        running += iter(queue.take, None)
        if ends and running:
            queue.done(*running.pop(rng.randrange(len(running))))
    queue.add("e", -1)
    assert ("e", -1) in list(iter(queue.take, None))


@pytest.mark.parametrize("cost", [5, 7, 8])
def test_small_jobs_that_take_turns_do_not_keep_out_a_large_one(cost: int) -> None:
    """Each of four askers has one job at a time, and none for a moment. It waits for all slots
    of each at most."""
    queue: SlotQueue[str, int] = SlotQueue(32, 16, lambda job: job)
    for asker in "abcd":
        queue.add(asker, cost)
    running = deque(iter(queue.take, None))
    assert len(running) == 4
    queue.add("e", 16)
    started: list[tuple[str, int]] = []
    for _ in range(4 * 32 + 2):
        asker, job = running.popleft()
        queue.done(asker, job)
        queue.add(asker, job)
        running += (now := list(iter(queue.take, None)))
        started += now
        if ("e", 16) in started:
            break
    assert started[-1] == ("e", 16)
