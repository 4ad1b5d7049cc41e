"""Who has rows and prompts in the next step: by callers, by classes and by targets for tokens.

Part of the scheduler core. The planner asks here before it plans a step.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from scheduler_proc.core.giving_way import GivingWay
from scheduler_proc.core.requests.overtaking import is_latency
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.sharing.latency_room import LEAST_SHARE, LatencyRoom
from scheduler_proc.core.sharing.token_pace import EVERYBODY, TokenPace
from scheduler_proc.core.state import SchedulerConfig, SchedulerState
from scheduler_proc.core.steps.step_target import StepCosts


class Turns(NamedTuple):
    """Reqs that are partly prefilled: the `first`, which leave a part of `1 / kept` of the prompt
    tokens (0: none), then waiting ones that go first, then those that are `held_up`."""

    first: list[Req]
    held_up: list[Req]
    goes_first: Callable[[Req], bool]
    kept: int = 0


class StepShares:
    """Looks at the reqs of `state` before each step."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._state, self._usual_s = state, config.step_target_s
        self._giving_way = GivingWay(config, state)
        self._latency = LatencyRoom(state, self._giving_way)
        self._pace = TokenPace(state)
        self.newest = EVERYBODY

    def make_room(self, now: float) -> None:
        """See who waits and has credit left, and send one back to the queue that has to go."""
        self._giving_way.look(now)
        victim = self._giving_way.victim(now) or self._latency.victim()
        if victim is not None:
            victim.yielded = victim.tokens.num_outputs
            self._state.retract(victim, for_memory=False)

    def choose(self, reqs: Iterable[Req], costs: StepCosts | None) -> None:
        """Choose which of these running reqs are in the next step: `newest` from now on."""
        self.newest = self._pace.sharing(reqs, costs)

    def target_s(self, costs: StepCosts, decodes: int) -> float:
        """How long the step may last with as many decodes: see `Beside.spare_s` for 0."""
        return self.newest.step_target_s(costs, decodes, self._usual_s)

    def turns(self, cut: list[Req]) -> Turns:
        """The order of those that are partly prefilled."""
        in_debt = [req for req in cut if self._giving_way.holds_up(req)]
        of_class = self._latency.held_up(cut)
        if of_class:
            cut = sorted(cut, key=lambda req: not is_latency(req))
        held_up = [req for req in of_class if req not in in_debt] + in_debt
        first = [req for req in cut if req not in held_up] if held_up else cut
        if in_debt:
            return Turns(first, held_up, self._giving_way.is_first)
        return Turns(first, held_up, is_latency, LEAST_SHARE)
