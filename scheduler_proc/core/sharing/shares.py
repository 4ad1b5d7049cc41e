"""Who has rows and prompts in the next step: by callers, by classes and by targets for tokens.

Part of the scheduler core. The planner asks here before it plans a step.
"""

from collections.abc import Iterable
from typing import NamedTuple

from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.giving_way import GivingWay
from scheduler_proc.core.prompts import is_cut
from scheduler_proc.core.queueing.overtaking import is_latency, is_throughput
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.sharing.latency_room import LatencyRoom
from scheduler_proc.core.sharing.preemption import preempted
from scheduler_proc.core.sharing.token_pace import EVERYBODY, TokenPace
from scheduler_proc.core.state import SchedulerConfig, SchedulerState
from scheduler_proc.core.steps.step_target import StepCosts


class Turns(NamedTuple):
    """Reqs that are partly prefilled: the `urgent` ones, others in the order of admission, and
    those that are `held_up` until waiting ones have been looked at, of callers with credit left.
    If it `is_urgent`, waiting ones of the class `latency` come after the urgent ones; and if it is
    `is_unlimited`, nobody who decodes minds a long step for these."""

    urgent: list[Req]
    first: list[Req]
    held_up: list[Req]
    is_urgent: bool = False
    is_unlimited: bool = False


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
        giving_way = self._giving_way
        giving_way.look(now)
        victim = giving_way.victim(now) or self._latency.victim(now)
        victim = victim or preempted(self._state, giving_way.is_able, now)
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
        held_up = [req for req in cut if self._giving_way.holds_up(req)]
        if not self._latency.is_urgent(cut):
            first = [req for req in cut if req not in held_up] if held_up else cut
            return Turns([], first, held_up)
        urgent = [req for req in cut if is_latency(req) and req not in held_up]
        first = [req for req in cut if not (is_latency(req) or req in held_up)]
        running = but_ahead(self._state.running.values())
        decoding = [req for req in running if not is_cut(req)]
        return Turns(urgent, first, held_up, True, all(map(is_throughput, decoding)))

    def is_in_debt(self, req: Req) -> bool:
        """Whether a running req has to wait for those that wait for memory."""
        return self._giving_way.is_in_debt(req)

    def is_first(self, req: Req) -> bool:
        """Whether a waiting req is of a caller with credit left."""
        return self._giving_way.is_first(req)

    @property
    def are_some_first(self) -> bool:
        """Whether some of the waiting callers have credit left, and others have none."""
        return self._giving_way.are_some_first

    def rest(self, budget: int, taken: int) -> int:
        """What callers in debt have of a step's prompt tokens: see `GivingWay.rest`."""
        return self._giving_way.rest(budget, taken)
