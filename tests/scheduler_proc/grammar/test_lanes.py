"""The lanes of compilations: who runs, who makes way, and that nobody is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.lanes import Changes, Lanes

QUANTUM_S = 1.0


def make_lanes(*jobs: str, slots: int = 2) -> Lanes[str]:
    lanes: Lanes[str] = Lanes(slots, QUANTUM_S)
    for job in jobs:
        lanes.add(job)
    return lanes


def test_new_ones_run_in_order() -> None:
    lanes = make_lanes("a", "b", "c", "d")
    assert lanes.changes(0.0) == Changes([], ["a", "b"])
    assert lanes.waiting == ["c", "d"] and lanes.num_running == 2
    lanes.remove("b")
    lanes.remove("d")
    assert lanes.changes(0.5) == Changes([], ["c"])
    assert lanes.changes(0.6) == Changes() and lanes.waiting == []


def test_a_long_one_gives_a_new_one_room() -> None:
    """It goes on, as there is room in the long lane; the new ones have a slot of their own."""
    lanes = make_lanes("a", "b", "c", "d")
    lanes.changes(0.0)
    assert lanes.next_change_s() == QUANTUM_S
    assert lanes.changes(1.0) == Changes([], ["c"])
    assert lanes.num_running == 3
    lanes.remove("a")
    assert lanes.changes(1.5) == Changes([], [])
    lanes.remove("c")
    assert lanes.changes(1.6) == Changes([], ["d"])


def test_a_long_one_makes_way_if_there_is_no_room() -> None:
    """And begins again when its turn comes, in the order in which they were put off."""
    lanes = make_lanes("a", "b", "c", "d", "e", slots=1)
    assert lanes.changes(0.0).start == ["a"]
    assert lanes.changes(1.0) == Changes([], ["b"])  # beside a, which is long
    assert lanes.changes(2.0) == Changes(["b"], ["c"])
    assert lanes.changes(2.5) == Changes()
    assert lanes.changes(3.0) == Changes(["c"], ["d"])
    assert lanes.waiting == ["b", "c", "e"]
    lanes.remove("d")
    assert lanes.changes(3.1) == Changes([], ["e"])
    lanes.remove("a")
    lanes.remove("e")
    assert lanes.changes(9.0) == Changes([], ["b"])
    lanes.remove("b")
    assert lanes.changes(9.1) == Changes([], ["c"])


def test_a_long_one_stays_while_nobody_waits() -> None:
    lanes = make_lanes("a", "b", slots=1)
    lanes.changes(0.0)
    lanes.changes(1.0)
    assert lanes.next_change_s() is None and lanes.changes(50.0) == Changes()
    lanes.add("c")
    assert lanes.changes(51.0) == Changes(["b"], ["c"])


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "end", "drop", "wait"]), st.integers(0, 9)), max_size=60
)


@given(ACTIONS, st.integers(1, 3))
def test_nobody_is_forgotten(actions: list[tuple[str, int]], slots: int) -> None:
    """Every job waits or runs, within the bounds; what is new runs within a quantum for each
    that is before it."""
    lanes: Lanes[int] = Lanes(slots, QUANTUM_S)
    now, last = 0.0, 0
    running: list[int] = []
    for kind, number in actions:
        everyone = [*running, *lanes.waiting]
        if kind == "add":
            last += 1
            lanes.add(last)
        elif kind == "wait":
            now += number / 4
        elif kind == "end" and running:
            lanes.remove(running.pop(number % len(running)))
        elif kind == "drop" and everyone:
            job = everyone[number % len(everyone)]
            lanes.remove(job)
            running = [other for other in running if other != job]
        before = {*running, *lanes.waiting}
        changes = lanes.changes(now)
        running = [job for job in running if job not in changes.stop] + changes.start
        assert {*running, *lanes.waiting} == before
        assert len(running) == lanes.num_running <= slots + 1
        assert len(set(running)) == len(running)
        assert not lanes.waiting or lanes.num_running >= slots
    while lanes.waiting:  # until all have begun
        now += QUANTUM_S
        changes = lanes.changes(now)
        running = [job for job in running if job not in changes.stop] + changes.start
        if not changes.start:
            lanes.remove(running.pop(0))


@given(st.integers(1, 3), st.integers(0, 20), st.integers(1, 8))
def test_a_new_one_waits_a_quantum_for_each_before_it(slots: int, long: int, before: int) -> None:
    """However many never end."""
    lanes: Lanes[int] = Lanes(slots, QUANTUM_S)
    now = 0.0
    for job in range(long):
        lanes.add(job)
        lanes.changes(now)
        now += QUANTUM_S
        lanes.changes(now)
    jobs = range(long, long + before)
    for job in jobs:
        lanes.add(job)
    for _ in range(before):
        if jobs[-1] in lanes.changes(now).start:
            return
        now += QUANTUM_S
    assert jobs[-1] in lanes.changes(now).start
