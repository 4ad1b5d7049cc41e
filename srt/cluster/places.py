"""Which agent has which of the places for other machines' schedulers, and which of these run.

A place's scheduler is started with an incarnation that no other one has had: after a loss not
before the supervisor has given the place the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N")  # an agent


@dataclass(slots=True)
class _Place(Generic[N]):
    """`running` is the incarnation of the scheduler that has been started, 0 if there is none;
    `spent` the latest that has been lost."""

    node: N | None = None
    running: int = 0
    spent: int = 0


class Places(Generic[N]):
    """The places with these `numbers`."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._places: dict[int, _Place[N]] = {number: _Place() for number in numbers}

    def take(self, node: N, count: int, wanted: Sequence[int] = ()) -> list[int]:
        """Give an agent so many places, those that it wants first; none if there are fewer."""
        free = [number for number, place in self._places.items() if place.node is None]
        free.sort(key=lambda number: number not in wanted)
        if len(free) < count:
            return []
        for number in free[:count]:
            self._places[number].node = node
        return sorted(free[:count])

    @property
    def free(self) -> int:
        """How many nobody has."""
        return sum(place.node is None for place in self._places.values())

    def node_at(self, number: int) -> N | None:
        """The agent that has this place."""
        return self._places[number].node

    def is_of(self, number: int, node: N) -> bool:
        """Whether the place is this agent's, and its scheduler has been started."""
        place = self._places.get(number)
        return place is not None and place.node is node and place.running > 0

    def start(self, incarnations: Sequence[int]) -> list[tuple[int, N]]:
        """The places whose schedulers are to be started now, with these incarnations, and their
        agents."""
        started = []
        for number, place in self._places.items():
            if place.node is not None and not place.running and incarnations[number] > place.spent:
                place.running = incarnations[number]
                started.append((number, place.node))
        return started

    def renew(self, incarnations: Sequence[int]) -> None:
        """In a new epoch the schedulers that run have other incarnations."""
        for number, place in self._places.items():
            if place.running:
                place.running = incarnations[number]

    def end(self, number: int) -> int:
        """The place's scheduler has ended. Returns its incarnation."""
        place = self._places[number]
        lost, place.running = place.running, 0
        place.spent = max(place.spent, lost)
        return lost

    def leave(self, node: N) -> list[tuple[int, int]]:
        """An agent is gone: the places that it had, and the incarnations of the schedulers that ran
        there; 0: none ran."""
        left = []
        for number, place in self._places.items():
            if place.node is node:
                left.append((number, self.end(number)))
                place.node = None
        return left
