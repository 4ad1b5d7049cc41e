"""The lanes of compilations: which run, which make way, and that none is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.worker.lanes import Changes, Lanes

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
    """It continues, as the long lane has room, and the new one gets its slot."""
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
    """It begins again when its turn comes, in the order in which jobs were put off."""
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


# ---- askers ----------------------------------------------------------------------------------


def test_askers_take_turns() -> None:
    lanes: Lanes[str] = Lanes(1, QUANTUM_S)
    for job in ("a1", "a2", "a3", "b1", "c1", "b2"):
        lanes.add(job, job[:1].encode())
    order = []
    for _ in range(6):
        (job,) = lanes.changes(0.0).start
        order.append(job)
        lanes.remove(job)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


@given(st.integers(2, 4), st.integers(1, 200), st.integers(0, 300))
def test_a_flood_delays_its_own_asker_only(slots: int, flood: int, ticks: int) -> None:
    """No job of the flood ever ends, but one of another asker starts as soon as it comes."""
    lanes: Lanes[int] = Lanes(slots, QUANTUM_S)
    for job in range(flood):
        lanes.add(job, b"a")
    now = 0.0
    for _ in range(ticks):
        lanes.changes(now)
        now += QUANTUM_S / 3
    lanes.changes(now)
    lanes.add(-1, b"b")
    assert lanes.changes(now).start == [-1]
    lanes.add(-2, b"b")
    for _ in range(3 * slots + 3):
        now += QUANTUM_S
        lanes.changes(now)
        assert {-1, -2} - set(lanes.waiting)  # they keep a share of the slots


def test_one_slot_is_shared_after_a_quantum() -> None:
    lanes: Lanes[str] = Lanes(1, QUANTUM_S)
    lanes.add("long", b"a")
    lanes.changes(0.0)
    lanes.add("b1", b"b")
    assert lanes.changes(0.1) == Changes() and lanes.next_change_s() == QUANTUM_S
    assert lanes.changes(1.0) == Changes([], ["b1"])


def test_a_job_of_several_goes_by_the_best() -> None:
    lanes: Lanes[str] = Lanes(1, QUANTUM_S)
    for job in ("a1", "a2", "a3", "a4"):
        lanes.add(job, b"a")
    lanes.add("a4", b"b")
    assert lanes.waiting_for(b"a")[-1] == "a4" and lanes.waiting_for(b"b") == ["a4"]
    order = []
    for _ in range(4):
        (job,) = lanes.changes(0.0).start
        order.append(job)
        lanes.remove(job)
    assert order == ["a1", "a4", "a2", "a3"] and not lanes.waiting


def test_who_joins_a_job_that_runs_keeps_it_running() -> None:
    """A job with several askers counts for the one for whom least runs."""
    lanes: Lanes[str] = Lanes(2, QUANTUM_S)
    for job in ("a1", "a2", "a3"):
        lanes.add(job, b"a")
    lanes.changes(0.0)
    lanes.add("a2", b"b")
    lanes.add("c1", b"c")
    assert lanes.changes(0.1) == Changes()
    lanes.add("a2", b"b")  # again, as after a restart
    assert lanes.changes(1.0).stop == []


ASKERS = [*[[b"a"]] * 4, *[[b"b"]] * 2, [b"c"], [b"a", b"b"], [b"b", b"c"], [b"d"]]
KINDS = ["add", "end", "drop", "wait", "join"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), max_size=60)


@given(ACTIONS, st.integers(1, 3))
def test_nobody_is_forgotten(actions: list[tuple[str, int]], slots: int) -> None:
    """Every job waits or runs, within the bounds, and a new one starts after at most one quantum
    for each job before it."""
    lanes: Lanes[int] = Lanes(slots, QUANTUM_S)
    now, last = 0.0, 0
    running: list[int] = []
    for kind, number in actions:
        everyone = [*running, *lanes.waiting]
        if kind == "add":
            last += 1
            for asker in ASKERS[number]:
                lanes.add(last, asker)
        elif kind == "join" and everyone:
            lanes.add(everyone[number % len(everyone)], ASKERS[number][0])
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
        shares = lanes._shares()
        assert max(shares.values(), default=0) < 2 or all(map(shares.get, lanes._new.askers))
    while lanes.waiting:  # until all have begun
        now += QUANTUM_S
        changes = lanes.changes(now)
        running = [job for job in running if job not in changes.stop] + changes.start
        if not changes.start:
            lanes.remove(running.pop(0))


@given(st.integers(1, 3), st.integers(0, 20), st.integers(1, 8))
def test_a_new_one_waits_a_quantum_for_each_before_it(slots: int, long: int, before: int) -> None:
    """This holds however many jobs never end."""
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
