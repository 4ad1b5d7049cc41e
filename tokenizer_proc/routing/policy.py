"""How the router chooses among replicas.

`cache-aware` minimises the seconds that a request costs a replica, and so everybody there: what has
to be computed before it, its own blocks that are not cached, and the requests that it joins. A
block that would be computed again is charged several times, because others wait for it too, and it
takes the place of something else: so chats stay where they are. It is charged less the more
requests in flight want it, beyond one replica's share of them: so a hot prefix spreads.
"""

import random
from typing import NamedTuple, Protocol

import numpy as np

from srt.block_hash import BLOCK

ROWS = 0.5  # of what a request costs beyond its prompt: on average half of it is over
RECOMPUTED = 8.0  # times a block's seconds


class View(NamedTuple):
    """What a policy sees of the candidates, arrays of one value for each: the blocks of the prompt
    that it has (`matched`), tokens and requests that it has to do. These have their seconds.
    `wanted_by` is of the prompt's blocks: how many requests in flight have each; these are
    `in_flight`."""

    matched: np.ndarray
    backlog: np.ndarray
    requests: np.ndarray
    token_s: float
    request_s: float
    wanted_by: np.ndarray
    in_flight: int
    replicas: int


class Policy(Protocol):
    """`costs` gives a float for each candidate: the least is chosen, of equal ones that with the
    longest match, then the one that was chosen longest ago."""

    def costs(self, view: View) -> np.ndarray: ...


class CacheAware:
    """See above."""

    def costs(self, view: View) -> np.ndarray:
        share = max(1.0, (1 + view.in_flight) / view.replicas)
        charges = RECOMPUTED * BLOCK * np.minimum(1.0, share / (1.0 + view.wanted_by))
        missing = np.append(np.cumsum(charges[::-1])[::-1], 0.0)  # from each block on
        own = missing[view.matched] * view.token_s
        costs: np.ndarray = own + LeastLoaded().costs(view)
        return costs


class LeastLoaded:
    """The shortest wait, whatever is cached."""

    def costs(self, view: View) -> np.ndarray:
        waits: np.ndarray = view.backlog * view.token_s + ROWS * view.requests * view.request_s
        return waits


class RoundRobin:
    """One after the other."""

    def costs(self, view: View) -> np.ndarray:
        return np.zeros(len(view.matched))


class Random:
    """Any."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed if seed >= 0 else None)

    def costs(self, view: View) -> np.ndarray:
        costs = np.ones(len(view.matched))
        costs[self._random.randrange(len(costs))] = 0.0
        return costs


def make_policy(name: str, seed: int) -> Policy:
    """The policy of `--router-policy`. `seed` -1 is a fresh one."""
    policies: dict[str, Policy] = {
        "cache-aware": CacheAware(),
        "least-loaded": LeastLoaded(),
        "round-robin": RoundRobin(),
        "random": Random(seed),
    }
    return policies[name]
