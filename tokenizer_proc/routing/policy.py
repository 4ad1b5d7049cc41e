"""How the router chooses among replicas.

`cache-aware` minimises the seconds that a request costs everybody: what has to be computed before
it, its own blocks that are not cached, and the requests that it joins. A block that would be
computed again is charged many times, because those there wait for it too, and it takes the place of
something else: so chats stay where they are. It is charged less if more of the recent requests have
it than one replica's share of them: so a hot prefix spreads. The requests at a replica count by
their square over the mean: a few more than elsewhere hardly matter, twice as many do, as when all
branches of one prompt come at once.

The requests of a group, of which the last one's end counts, go each to where it ends first
(`ends_first`): they stay with their prefix as long as it takes more seconds to compute that
elsewhere than to wait. One after the other: a group that had to be placed whole would starve when
it is large.

The constants are those with which `python -m bench.routing` meets its bars; see bench/README.md.
"""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from srt.block_hash import BLOCK

ROWS = 0.5  # of what a request costs beyond its prompt: on average half of it is over
CROWD = 1.0  # the same, if it joins as many as there are at a replica on average
RECOMPUTED = 10.0  # times a block's seconds at a replica that is idle
JOINED = 0.5  # times more for each request there
MIXED = 2.0  # of a request's seconds, for one of the other class that is there
DELAYED = 2.0  # times a block's seconds of a group's request, for each one that waits for it there
SPREAD = 2.0  # the power of one replica's share over how many have a block, at least


class View(NamedTuple):
    """What a policy sees of the candidates, arrays of one value for each: the blocks of the prompt
    that it has (`matched`), and the tokens and requests that it has to do. Each of these takes
    `token_s` and `request_s` seconds there, and on average over the replicas `mean_token_s` and
    `mean_request_s`. `wanted_by` is of the prompt's blocks: how many of the `recent` requests have
    each. From `others` of the requests there this one is to be apart."""

    matched: np.ndarray
    backlog: np.ndarray
    requests: np.ndarray
    token_s: np.ndarray
    request_s: np.ndarray
    mean_token_s: float
    mean_request_s: float
    wanted_by: np.ndarray
    recent: int
    others: np.ndarray


# Gives a float for each candidate: the least is chosen, of equal ones that with the longest match,
# then the one that was chosen longest ago.
Policy = Callable[[View], np.ndarray]


def cache_aware(view: View) -> np.ndarray:
    """See above."""
    requests = view.requests
    share = max(1.0, (1 + view.recent) / len(requests))
    # One that all recent requests have is charged at most its own seconds.
    spread = max(SPREAD, math.log(RECOMPUTED) / math.log(max(2, len(requests))))
    weights = np.minimum(1.0, share / (1.0 + view.wanted_by)) ** spread
    missing = np.append(np.cumsum(weights[::-1])[::-1], 0.0)  # from each block on
    charged = BLOCK * missing[view.matched] * (RECOMPUTED + JOINED * requests)
    # In requests of the mean length. Those of one replica may be longer, or it is slower.
    means = requests * (view.request_s / view.mean_request_s)
    crowd = means * means / max(1.0, means.mean())
    costs: np.ndarray = view.token_s * (view.backlog + charged)
    costs += view.mean_request_s * (CROWD * crowd + MIXED * view.others + _slower(view))
    return costs


def ends_first(view: View) -> np.ndarray:
    """The seconds until a request has ended that goes to each of them, and those for which it
    delays the others there by what it has to compute."""
    missing = BLOCK * (len(view.wanted_by) - view.matched) * (1.0 + DELAYED * view.requests)
    waits = view.token_s * (view.backlog + missing) + view.request_s * view.requests
    ends: np.ndarray = waits + view.mean_request_s * (MIXED * view.others + _slower(view))
    return ends


def _slower(view: View) -> np.ndarray:
    """The difference in the request's own seconds, by means: 0 where replicas are equal."""
    slower: np.ndarray = view.token_s / view.mean_token_s - 1.0
    return slower


def least_loaded(view: View) -> np.ndarray:
    """The shortest wait, whatever is cached."""
    waits: np.ndarray = view.backlog * view.token_s + ROWS * view.requests * view.request_s
    return waits


def round_robin(view: View) -> np.ndarray:
    """One after the other."""
    return np.zeros(len(view.matched))


def _any(generator: random.Random, view: View) -> np.ndarray:
    costs = np.ones(len(view.matched))
    costs[generator.randrange(len(costs))] = 0.0
    return costs


def make_policy(name: str, seed: int) -> Policy:
    """The policy of `--router-policy`. `seed` -1 is a fresh one."""
    policies: dict[str, Policy] = {
        "cache-aware": cache_aware,
        "least-loaded": least_loaded,
        "round-robin": round_robin,
        "random": partial(_any, random.Random(seed if seed >= 0 else None)),
    }
    return policies[name]
