"""Which blocks recent requests have."""

from tokenizer_proc.routing.demand import RECENT, Demand


def test_blocks_are_counted_by_request() -> None:
    demand = Demand()
    demand.add([b"a", b"b"])
    demand.add([b"a", b"c"])
    assert demand.of([b"a", b"b", b"x"]).tolist() == [2, 1, 0] and demand.total == 2


def test_what_is_old_is_forgotten_in_halves() -> None:
    demand = Demand()
    for _ in range(RECENT):
        demand.add([b"old"])
    for _ in range(RECENT):
        demand.add([b"new"])
    assert demand.of([b"old", b"new"]).tolist() == [RECENT, RECENT]
    demand.add([b"new"])
    assert demand.of([b"old", b"new"]).tolist() == [0, RECENT + 1]
    assert demand.total == RECENT + 1


def test_what_a_group_has_in_common_counts_once_in_a_half() -> None:
    demand = Demand()
    for number in range(RECENT + 2):
        demand.add([b"all", b"many" if number % 2 else b"few", bytes([number])], "group")
    assert demand.of([b"all"]).tolist() == [2]
    assert demand.of([b"many"])[0] > RECENT / 2  # no more than some of the group have it
    demand.add([b"all"], "other")
    assert demand.of([b"all"]).tolist() == [3]
