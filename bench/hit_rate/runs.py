"""The runs of each table, with the server's default options unless a column says otherwise.

A row is a family at one size of the pool (a share of the working set, which is the tokens of all
the prompts' common tree), or one attack. Reuse is a share of what the offline optimum reuses,
which computes every edge of the tree once.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bench.hit_rate.arrivals import ATTACKS, attack, poisson
from bench.hit_rate.families import FAMILIES, Prompt, prompts_of
from bench.hit_rate.offline import PromptTree, belady_reuse
from bench.hit_rate.simulator import DEFAULTS, UNBOUNDED_S, Outcome, Setting, simulate
from scheduler_proc.core.queueing.queue_order import POLICIES as ALL_POLICIES

POOL_SHARES = (0.25, 0.5)
LOADS = (1.0, 1.5)  # times the service rate: that of the whole family as a batch
POLICIES = tuple(name for name in ALL_POLICIES if name != "app")  # without hints it is lpm
CACHE_AWARE = ("lpm", "dfs-weight")  # policies that the bound can disturb
BATCH_TARGET, ONLINE_TARGET = 0.97, 0.95
ATTACKED_POOL = 8192


class Case(NamedTuple):
    """A family at one size of the pool."""

    family: str
    pool_share: float
    prompts: list[Prompt]
    tree: PromptTree

    @property
    def setting(self) -> Setting:
        """Its pool has room for any one request at least."""
        least = 64 + max(len(prompt) for prompt in self.prompts)
        return Setting(max(least, int(self.pool_share * self.tree.distinct)))

    @property
    def optimum(self) -> int:
        """Prompt tokens that the best schedule does not compute."""
        return self.tree.total - self.tree.distinct

    def batch(self, setting: Setting) -> Outcome:
        """All prompts arrive at once."""
        return simulate(self.prompts, [0.0] * len(self.prompts), setting)

    def arrivals(self, load: float, seed: int) -> list[float]:
        service_s = self.batch(replace(self.setting, max_wait_s=UNBOUNDED_S)).seconds
        rate = load * len(self.prompts) / service_s
        return poisson(random.Random(f"{self.family} {load} {seed}"), len(self.prompts), rate)


class BatchRow(NamedTuple):
    """One policy on one case: the run's share of the optimum, and that of Belady's eviction under
    the same admissions."""

    case: Case
    policy: str
    reuse: float
    belady: float
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.policy not in CACHE_AWARE or self.reuse >= BATCH_TARGET


class OnlineRow(NamedTuple):
    """One policy on one case under one load, with a bound on the wait and without."""

    case: Case
    load: float
    policy: str
    max_wait_s: float
    reuse: float
    unbounded: float
    belady: float
    p99_wait_s: float
    seconds: float
    overtaking_s: float

    @property
    def is_good(self) -> bool:
        holds = self.overtaking_s <= self.max_wait_s
        return holds and self.reuse >= ONLINE_TARGET * self.unbounded


class AttackRow(NamedTuple):
    """One policy under one attack: how long the cold ones waited, with a bound and without."""

    attack: str
    policy: str
    max_wait_s: float
    overtaking_s: float
    unbounded_overtaking_s: float
    cold_wait_s: float
    unbounded_cold_wait_s: float

    @property
    def is_good(self) -> bool:
        return self.overtaking_s <= self.max_wait_s


def cases(families: Sequence[str], scale: float, seed: int) -> Iterator[Case]:
    """Each family at each size of the pool."""
    for family in families or FAMILIES:
        prompts = prompts_of(family, scale, seed)
        tree = PromptTree(prompts)
        yield from (Case(family, share, prompts, tree) for share in POOL_SHARES)


def batch_rows(case: Case) -> Iterator[BatchRow]:
    """All policies."""
    for policy in POLICIES:
        setting = replace(case.setting, policy=policy)
        outcome = case.batch(setting)
        reuse = outcome.reused / case.optimum
        yield BatchRow(case, policy, reuse, _belady(case, outcome, setting), outcome.seconds)


def online_rows(
    case: Case,
    seed: int,
    policies: Sequence[str] = POLICIES,
    max_waits_s: Sequence[float] = (DEFAULTS.schedule_max_wait,),
) -> Iterator[OnlineRow]:
    """These policies with each of these bounds under each load."""
    for load in LOADS:
        arrived_s = case.arrivals(load, seed)
        for policy in policies:
            setting = replace(case.setting, policy=policy, max_wait_s=UNBOUNDED_S)
            unbounded = simulate(case.prompts, arrived_s, setting).reused / case.optimum
            for max_wait_s in max_waits_s:
                setting = replace(setting, max_wait_s=max_wait_s)
                outcome = simulate(case.prompts, arrived_s, setting)
                yield OnlineRow(
                    case,
                    load,
                    policy,
                    max_wait_s,
                    reuse=outcome.reused / case.optimum,
                    unbounded=unbounded,
                    belady=_belady(case, outcome, setting),
                    p99_wait_s=float(np.percentile(outcome.waits_s, 99)),
                    seconds=outcome.seconds,
                    overtaking_s=outcome.worst_overtaking_s,
                )


def attack_rows(scale: float, seed: int, max_wait_s: float) -> Iterator[AttackRow]:
    """The policies that prefer some requests to others, under all attacks."""
    for name in ATTACKS:
        for policy in CACHE_AWARE:
            setting = Setting(ATTACKED_POOL, policy, max_wait_s)
            prompts, arrived_s, cold = attack(name, scale, seed, setting)
            bounded = simulate(prompts, arrived_s, setting)
            unbounded = simulate(prompts, arrived_s, replace(setting, max_wait_s=UNBOUNDED_S))
            yield AttackRow(
                name,
                policy,
                max_wait_s,
                bounded.worst_overtaking_s,
                unbounded.worst_overtaking_s,
                max(bounded.waits_s[i] for i in cold),
                max(unbounded.waits_s[i] for i in cold),
            )


def _belady(case: Case, outcome: Outcome, setting: Setting) -> float:
    found = belady_reuse(case.tree, outcome.events, setting.pool, setting.outputs)
    return found / case.optimum
