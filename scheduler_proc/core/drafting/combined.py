"""Which of several sources' guesses to take."""

from collections.abc import Callable, Iterable

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.drafting.ngrams import LONGEST

ENOUGH = 0.5  # the chance of a match of `LONGEST` tokens, with which no further one is asked for


def best(
    matches: Iterable[tuple[str, Match | None]], chance: Callable[[str, int], float] | None = None
) -> tuple[str, Match] | None:
    """Of matches, which are given with the names of their sources, that with the best `chance` of a
    source and a length to be right, if that is known; of those as good as each other the longest,
    of these the first. None if there is none. After one of `LONGEST` tokens or more, unless it is
    more likely wrong, no further one is asked for."""
    found: tuple[str, Match] | None = None
    best_value = 0.0, 0
    for name, match in matches:
        if match is None:
            continue
        likely = 1.0 if chance is None else chance(name, match.length)
        if (value := (likely, match.length)) > best_value:
            found, best_value = (name, match), value
        if match.length >= LONGEST and likely >= ENOUGH:
            break
    return found
