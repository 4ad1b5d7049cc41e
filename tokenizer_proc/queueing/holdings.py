"""What callers hold of what all share: requests in flight, and the tokens of their prompts.

A caller's level is what it holds by its weight. Room is shared as if callers were filled from the
lowest level up: who would be at a lower level than another, with what it asks for, comes before
that one. Levels are kept as what is held changes: in a flood of many callers, each refusal asks
for the highest one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

Kind = Literal["requests", "tokens"]
KINDS: tuple[Kind, ...] = ("requests", "tokens")
_NOTHING: Mapping[str, int] = {}


class Holdings:
    """The holdings of all callers with something in flight; `weight` has the weights (above 0),
    which count as they are when a caller begins to hold something, or at `reweigh`."""

    def __init__(self, weight: Callable[[str], float] = lambda caller: 1.0) -> None:
        self._weight = weight
        self.clear()

    def clear(self) -> None:
        """Nothing is in flight."""
        self._counts: dict[Kind, Counter[str]] = {"requests": Counter(), "tokens": Counter()}
        self._levels: dict[Kind, dict[str, float]] = {"requests": {}, "tokens": {}}
        self._weights: dict[str, float] = {}  # of those with requests in flight

    def reweigh(self, weight: Callable[[str], float]) -> None:
        """Weights have changed."""
        self._weight = weight
        self._weights = {caller: weight(caller) for caller in self._weights}
        for kind, counts in self._counts.items():
            self._levels[kind] = {one: count / weight(one) for one, count in counts.items()}

    def add(self, kind: Kind, caller: str, amount: int) -> None:
        """Count what a caller takes, or gives back if it is negative."""
        counts, levels = self._counts[kind], self._levels[kind]
        counts[caller] += amount
        if counts[caller]:
            if kind == "requests" and caller not in self._weights:
                self._weights[caller] = self._weight(caller)
            levels[caller] = counts[caller] / self.weight(caller)
            return
        del counts[caller]
        levels.pop(caller, None)
        if kind == "requests":
            self._weights.pop(caller, None)

    def weight(self, caller: str) -> float:
        """The caller's weight."""
        known = self._weights.get(caller)
        return self._weight(caller) if known is None else known

    def of(self, caller: str, kind: Kind = "requests") -> int:
        """What a caller holds."""
        return self._counts[kind].get(caller, 0)

    @property
    def callers(self) -> Iterable[str]:
        """Those with requests in flight."""
        return self._counts["requests"].keys()

    def is_alone(self, caller: str) -> bool:
        """Whether no other has requests in flight."""
        return self._counts["requests"].keys() <= {caller}

    def lowest(self) -> str | None:
        """The caller with the lowest level of requests; None if there are none."""
        levels = self._levels["requests"]
        return min(levels, key=levels.__getitem__, default=None)

    def above(
        self, kind: Kind, caller: str, more: int, leaving: Mapping[str, int] = _NOTHING
    ) -> list[str]:
        """The callers whose level is above that of `caller` with `more`, the highest first.
        `leaving` do not count: they have been asked to go."""
        levels = self._levels[kind]
        own = (self.of(caller, kind) + more) / self.weight(caller)
        if max(levels.values(), default=0.0) <= own:
            return []
        left = {other: level for other, level in levels.items() if level > own and other != caller}
        for other in left.keys() & leaving.keys():
            left[other] -= leaving[other] / self.weight(other)
        found = [other for other, level in left.items() if level > own]
        return sorted(found, key=left.__getitem__, reverse=True)

    def is_within_share(self, kind: Kind, caller: str, more: int, bound: int) -> bool:
        """Whether the caller with `more` holds at most its share of `bound`, beside those who hold
        something."""
        weight = self.weight(caller)
        others = sum(self._weights.values()) - self._weights.get(caller, 0.0)
        return self.of(caller, kind) + more <= bound * weight / (others + weight)

    def part_before(self, caller: str, more: int) -> float:
        """The part (0 to 1) of what is in flight that comes before the last of `more` requests of a
        caller: its own, and of the others' as much as they get meanwhile. 1 of one caller alone."""
        total = self._counts["requests"].total()
        if self.is_alone(caller) or not total:
            return 1.0
        own, levels = self.of(caller), self._levels["requests"]
        turns = (own + more) / self.weight(caller)
        if max(levels.values()) <= turns:
            return 1.0
        others = (
            min(level, turns) * self._weights[other]
            for other, level in levels.items()
            if other != caller
        )
        return min(1.0, (own + sum(others)) / total)
