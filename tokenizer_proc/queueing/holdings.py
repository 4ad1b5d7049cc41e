"""What callers hold of what all share: requests in flight, and the tokens of their prompts.

A caller's level is what it holds by its weight. Room is shared as if callers were filled from the
lowest level up: who would be at a lower level than another, with what it asks for, comes before
that one. No state but the counts, which whoever takes and frees places keeps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

Kind = Literal["requests", "tokens"]


class Holdings:
    """The holdings of all callers with something in flight; `weight` has the weights (above 0)."""

    def __init__(self, weight: Callable[[str], float] = lambda caller: 1.0) -> None:
        self.weight = weight
        self._counts: dict[Kind, Counter[str]] = {"requests": Counter(), "tokens": Counter()}

    def add(self, kind: Kind, caller: str, amount: int) -> None:
        """Count what a caller takes, or gives back if it is negative."""
        counts = self._counts[kind]
        counts[caller] += amount
        if not counts[caller]:
            del counts[caller]

    def of(self, caller: str, kind: Kind = "requests") -> int:
        """What a caller holds."""
        return self._counts[kind].get(caller, 0)

    @property
    def callers(self) -> Iterable[str]:
        """Those with requests in flight."""
        return self._counts["requests"].keys()

    def level(self, kind: Kind, caller: str) -> float:
        """What a caller holds by its weight."""
        return self.of(caller, kind) / self.weight(caller)

    def above(
        self, kind: Kind, caller: str, more: int, leaving: Mapping[str, int] | None = None
    ) -> list[str]:
        """The callers whose level is above that of `caller` with `more`, the highest first.
        `leaving` do not count: they have been asked to go."""
        counts, leaving = self._counts[kind], leaving or {}
        own = (self.of(caller, kind) + more) / self.weight(caller)
        levels = {
            other: (count - leaving.get(other, 0)) / self.weight(other)
            for other, count in counts.items()
            if other != caller
        }
        found = [other for other, level in levels.items() if level > own]
        return sorted(found, key=lambda other: -levels[other])

    def is_within_share(self, kind: Kind, caller: str, more: int, bound: int) -> bool:
        """Whether the caller with `more` holds at most its share of `bound`, beside those who hold
        something."""
        callers = {*self._counts[kind], caller}
        share = bound * self.weight(caller) / sum(map(self.weight, callers))
        return self.of(caller, kind) + more <= share

    def part_before(self, caller: str, more: int) -> float:
        """The part (0 to 1) of what is in flight that comes before the last of `more` requests of a
        caller: its own, and of the others' as much as they get meanwhile. 1 of one caller alone."""
        counts = self._counts["requests"]
        total = counts.total()
        if counts.keys() <= {caller} or not total:
            return 1.0
        own, weight = self.of(caller), self.weight(caller)
        turns = (own + more) / weight
        others = (
            min(count, turns * self.weight(other))
            for other, count in counts.items()
            if other != caller
        )
        return min(1.0, (own + sum(others)) / total)

    def clear(self) -> None:
        """Nothing is in flight."""
        for counts in self._counts.values():
            counts.clear()
