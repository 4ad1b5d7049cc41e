"""Shares: bounds, who gives way, and that no caller is shut out by what others hold."""

import random
from collections.abc import Collection, Iterable

import pytest

from srt.callers.shares import Shares
from tests.running.profiles import seeds


class Held:
    """Shares whose items are numbers; `gone` have given way. Those in `busy` may not; the idle ones
    go first."""

    def __init__(
        self, bound: int, bound_of_one: int | None = None, *, takes_any: bool = False
    ) -> None:
        self.gone: list[int] = []
        self.busy: set[int] = set()
        self.shares: Shares[str, int] = Shares(
            bound, bound_of_one, give_way=self.gone.append, order=self._order, takes_any=takes_any
        )

    def _order(self, items: Collection[int]) -> Iterable[int]:
        return [item for item in reversed(list(items)) if item not in self.busy]


def test_the_newest_of_who_has_most_gives_way() -> None:
    held = Held(4)
    for number in range(3):
        assert held.shares.take("a", number) == ""
    assert held.shares.take("b", 10) == "" and not held.gone
    assert held.shares.take("c", 20) == "" and held.gone == [2]
    assert held.shares.take("c", 21) == "server"  # it would have as much as "a"
    assert held.shares.take("a", 3) == "server"
    assert held.shares.take("d", 30) == "" and held.gone == [2, 1]
    assert held.shares.take("e", 40) == "server" and held.gone == [2, 1]  # all have one
    assert (held.shares.total, held.shares.held("a"), held.shares.held("e")) == (4, 1, 0)


def test_bounds() -> None:
    held = Held(100, 60)
    assert held.shares.take("a", 0, 61) == "caller"
    assert held.shares.take("a", 0, 40) == "" and held.shares.take("a", 0, 20) == ""
    assert held.shares.take("a", 1, 1) == "caller"
    assert held.shares.full("b", 61) == "caller" and held.shares.full("b", 60) == "server"
    assert held.shares.take("b", 2, 30) == "" and held.shares.take("b", 2, 20) == ""
    assert held.gone == [0] and 0 not in held.shares and held.shares.held("a") == 0
    held.shares.give_back(0)  # it has given way
    held.shares.give_back(2, 20)
    assert held.shares.total == held.shares.held("b") == 30
    held.shares.give_back(2)
    assert held.shares.total == 0 and 2 not in held.shares


def test_nobody_gives_way_in_vain() -> None:
    held = Held(10)
    held.shares.take("a", 0, 4)
    held.shares.take("b", 1, 6)
    held.busy = {1}
    assert held.shares.take("c", 2, 3) == "" and held.gone == [0]  # that of "b" is busy
    assert held.shares.take("d", 3, 2) == "" and held.gone == [0, 2]
    held.busy = {1, 3}
    assert held.shares.take("e", 4, 3) == "server" and held.gone == [0, 2]
    held.busy = set()
    assert held.shares.take("e", 4, 3) == "" and held.gone == [0, 2, 1]


def test_too_much_for_the_bound() -> None:
    held = Held(10, 5, takes_any=True)
    assert held.shares.take("a", 0, 20) == ""
    assert held.shares.take("a", 1, 1) == "caller" and held.shares.take("b", 2, 20) == "server"
    assert held.shares.take("b", 3, 1) == "" and held.gone == [0]
    assert held.shares.take("c", 4, 20) == "server"


def test_a_rest_is_left_to_the_next() -> None:
    shares: Shares[str, int] = Shares(16, 12, give_way=lambda item: None, leaves_rest=True)
    assert shares.take("a", 0, 12) == "" and shares.take("a", 1, 1) == "caller"
    shares.give_back(0, 4)
    assert shares.take("a", 1, 1) == "caller"  # as much as is left
    assert [shares.take("b", number, 2) for number in (2, 3, 4)] == ["", "", "caller"]
    assert shares.take("c", 5, 4) == "" and shares.take("c", 6, 1) == "caller"


def test_what_is_put_counts_whatever_the_bounds() -> None:
    held = Held(10, 5)
    held.shares.take("a", 0, 5)
    held.shares.put("b", 0, 20)
    assert (held.shares.held("a"), held.shares.held("b"), held.shares.total) == (0, 20, 20)
    assert held.shares.take("a", 1, 1) == "" and held.gone == [0]


@pytest.mark.parametrize("seeds_of", seeds(6))
def test_nobody_is_shut_out(seeds_of: int) -> None:
    for seed in range(50 * seeds_of, 50 * (seeds_of + 1)):
        _fill_and_ask(seed)


def _fill_and_ask(seed: int) -> None:
    """Two to four callers take what they can, in any sizes and order; then one that holds nothing
    asks for as much as its part, and gets it."""
    rng = random.Random(seed)
    others = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    bound = rng.choice((len(others) + 1, 20, 1000))
    held = Held(bound, rng.choice((bound, bound // 2, bound // 4)) or 1)
    shares, number = held.shares, 0
    model: dict[str, dict[int, int]] = {other: {} for other in others}
    for _ in range(rng.choice((10, 100, 400))):
        other, before = rng.choice(others), len(held.gone)
        if model[other] and rng.random() < 0.2:
            item = rng.choice(list(model[other]))
            shares.give_back(item)
            del model[other][item]
            continue
        number, more = number + 1, rng.randint(1, max(1, bound // rng.choice((1, 4, 20))))
        mine = shares.held(other) + more
        if shares.take(other, number, more):
            assert len(held.gone) == before
        else:
            model[other][number] = more
        for gone in held.gone[before:]:
            loser = next(one for one in others if gone in model[one])
            assert loser != other and sum(model[loser].values()) > mine
            del model[loser][gone]
        assert {one: shares.held(one) for one in others} == {
            one: sum(items.values()) for one, items in model.items()
        }
        assert shares.total == sum(map(shares.held, others)) <= bound
    part = min(bound // (len(others) + 1), held.shares._bound_of_one)
    taken = 0
    while taken < part:
        number, more = number + 1, rng.randint(1, part - taken)
        assert shares.take("new", number, more) == ""
        taken += more
    assert shares.held("new") == part and shares.total <= bound
