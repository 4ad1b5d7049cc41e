"""Which of several sources' guesses to take."""

from collections.abc import Iterable

from scheduler_proc.drafting.base import Match


def best(matches: Iterable[tuple[str, Match | None]]) -> tuple[str, Match] | None:
    """The longest of matches, which are given with the names of their sources; of those as long as
    each other the first. None if there is none."""
    found = [(name, match) for name, match in matches if match is not None]
    return max(found, key=lambda one: one[1].length, default=None)
