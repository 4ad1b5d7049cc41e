"""When requests arrive: at random at a given rate, or so that cold ones are always overtaken."""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from bench.hit_rate.families import Prompt, random_text
from bench.hit_rate.simulator import Setting, simulate

ATTACK_S = 120.0  # how long an attack lasts at scale 1
COLD_EVERY_S = 4.0
PRESSURE = 2.0  # times the rate at which the hot ones can be served


def poisson(rng: random.Random, count: int, rate: float) -> list[float]:
    """`count` arrivals in seconds, `rate` per second on average."""
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


class Attack(NamedTuple):
    """Prompts by arrival; `cold` are the indices of those that the others overtake."""

    prompts: list[Prompt]
    arrived_s: list[float]
    cold: list[int]


def hot_stream(rng: random.Random) -> tuple[list[Prompt], list[Prompt]]:
    """Questions to 4 documents, which stay cached; the cold ones share nothing."""
    documents = [random_text(rng, 800) for _ in range(4)]
    hot = [np.concatenate((rng.choice(documents), random_text(rng, 60))) for _ in range(1500)]
    return hot, [random_text(rng, 300) for _ in range(100)]


def large_and_small(rng: random.Random) -> tuple[list[Prompt], list[Prompt]]:
    """The same, but each cold one takes half of the memory."""
    hot, cold = hot_stream(rng)
    return hot, [random_text(rng, 4000) for _ in cold]


ATTACKS: dict[str, Callable[[random.Random], tuple[list[Prompt], list[Prompt]]]] = {
    "hot stream": hot_stream,
    "large and small": large_and_small,
}


def attack(name: str, scale: float, seed: int, setting: Setting) -> Attack:
    """Hot prompts at `PRESSURE` times the rate of their service, and cold ones among them."""
    rng = random.Random(f"{name} {seed}")
    hot, cold = ATTACKS[name](rng)
    sample = hot[:200]
    rate = PRESSURE * len(sample) / simulate(sample, [0.0] * len(sample), setting).seconds
    duration_s = ATTACK_S * scale
    come = [(at, prompt, False) for at, prompt in _spread(hot, 1 / rate, duration_s)]
    come += [(at, prompt, True) for at, prompt in _spread(cold, COLD_EVERY_S, duration_s)]
    come.sort(key=lambda arrival: arrival[0])
    cold_at = [i for i, (_, _, is_cold) in enumerate(come) if is_cold]
    return Attack([prompt for _, prompt, _ in come], [at for at, _, _ in come], cold_at)


def _spread(prompts: Sequence[Prompt], gap_s: float, until_s: float) -> list[tuple[float, Prompt]]:
    count = min(len(prompts), int(until_s / gap_s) + 1)
    return [(gap_s * i, prompts[i]) for i in range(count)]
