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
