"""Every policy on a workload, compared with one tree that has all memory, and the bars."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.hit_rate.simulator import StepCost
from bench.routing.fleet import Fleet, Outcome, Setting
from bench.routing.shapes import SHAPES, Words, source_of
from srt.benchmark.workloads import Workload

POLICY = "cache-aware"
OTHERS = ("least-loaded", "round-robin", "random")
SHARING = ("fewshot", "multiturn", "tree", "groups", "zipf")  # the others share nothing
MAIN_REPLICAS = 4
# With as many replicas, and with all news in time; otherwise only LENGTH.
CACHED_BAR, BUSIEST_BAR, MAIN_LENGTH_BAR = 0.98, 1.15, 1.05
LENGTH_BAR = 1.10


class Row(NamedTuple):
    """One policy's run: cached tokens as a share of those of one tree (None where nothing is
    shared), the busiest replica over the mean, seconds, and these over the best other policy's."""

    workload: str
    replicas: int
    delay_s: float
    policy: str
    cached: float | None
    cached_bar: float
    busiest: float
    seconds: float
    length: float

    @property
    def missed(self) -> list[str]:
        """The bars that it misses; the other policies have none."""
        is_main = self.replicas == MAIN_REPLICAS and self.delay_s == 0.0
        length_bar = MAIN_LENGTH_BAR if is_main else LENGTH_BAR
        missed = ["length"] if self.length > length_bar else []
        if is_main and self.cached is not None and self.cached < self.cached_bar:
            missed.append("cached")
        if is_main and self.busiest > BUSIEST_BAR:
            missed.append("busiest")
        return missed if self.policy == POLICY else []


def rows(
    names: Sequence[str],
    replicas: Sequence[int],
    delays_s: Sequence[float],
    pool: int,
    scale: float,
    seed: int,
    slower: float = 1.0,
) -> Iterator[Row]:
    """Each workload with each number of replicas and each delay; `slower` is the last replica."""
    for name in names:
        workload = SHAPES[name](source_of(seed), scale)
        cost = StepCost()
        one = Fleet(workload, Setting(1, OTHERS[0], pool, 0.0, cost)).run()
        for number in replicas:
            for delay_s in delays_s:
                settings = [
                    Setting(number, policy, pool, delay_s, cost, slower)
                    for policy in (POLICY, *OTHERS)
                ]
                outcomes = [Fleet(workload, setting).run() for setting in settings]
                yield from _compared(workload, settings, outcomes, one)


def _compared(
    workload: Workload, settings: Sequence[Setting], outcomes: Sequence[Outcome], one: Outcome
) -> Iterator[Row]:
    for setting, outcome in zip(settings, outcomes, strict=True):
        others = [
            other.seconds
            for its, other in zip(settings, outcomes, strict=True)
            if its.policy not in (POLICY, setting.policy)
        ]
        is_shared = workload.name in SHARING
        yield Row(
            workload.name,
            setting.replicas,
            setting.delay_s,
            setting.policy,
            outcome.cached / one.cached if is_shared else None,
            _cached_bar(workload, setting.replicas, one),
            outcome.busiest,
            outcome.seconds,
            outcome.seconds / min(others),
        )


def _cached_bar(workload: Workload, replicas: int, one: Outcome) -> float:
    """A prefix that all have must be computed once by each replica; and in a smaller tree a request
    may find a token less than its own text and another one have in common by chance."""
    if workload.name != "fewshot":
        return CACHED_BAR
    prompts = [Words().ids(root.text) for root in workload.roots[:2]]
    length = min(map(len, prompts))
    differ = (prompts[0][:length] != prompts[1][:length]).nonzero()[0]
    shared = int(differ[0]) if len(differ) else length
    return 1 - ((replicas - 1) * shared + len(workload.roots)) / one.cached
