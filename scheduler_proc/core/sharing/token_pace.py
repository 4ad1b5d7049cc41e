"""Who shares a step with reqs that have a target for the time from one token to the next.

Part of the scheduler core. Of the rows that decode, those of the class `throughput` stay out of a
step as far as it would last longer than the strictest target of those that decode: they keep their
memory, and the ones that have been left out for longest are in the next one. What else a step has,
prompts above all, fits into the target too. Whatever the target is, each row is in one of any
`LEAST_SHARE` steps, and others have this part at least of the time that a step would have for them:
where a target cannot be met, it is missed by little.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from scheduler_proc.core.decode_planner import retraction_key, wants_decode
from scheduler_proc.core.prompts import is_cut
from scheduler_proc.core.queueing.overtaking import is_throughput, target_s
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.sharing.latency_room import LEAST_SHARE
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.core.steps.step_target import AUTO_STEPS, StepCosts


class Sharing(NamedTuple):
    """Who is in a step, who decodes and is not, and the target of the time that it may last
    (infinite: none)."""

    reqs: Iterable[Req]
    left_out: list[Req]
    target_s: float = math.inf

    def step_target_s(self, costs: StepCosts, decodes: int, usual_s: float) -> float:
        """The time that a step with as many decodes may last, which is `usual_s` without a target
        (0: a multiple of what the decodes take), or less."""
        if self.target_s == math.inf:
            return usual_s
        rows_s = costs.decode_s(decodes)
        usual_s = usual_s or AUTO_STEPS * rows_s
        return min(usual_s, max(self.target_s, rows_s + (usual_s - rows_s) / LEAST_SHARE))


EVERYBODY = Sharing((), [])


class TokenPace:
    """Looks at the reqs of `state` before each step."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._left_out: dict[int, int] = {}  # steps in a row without it, by handle

    def sharing(self, reqs: Iterable[Req], costs: StepCosts | None) -> Sharing:
        """Which of these running reqs are in the next step."""
        strictest_s = self._strictest_s()
        if strictest_s == math.inf or costs is None:
            self._left_out.clear()
            return Sharing(reqs, [])
        reqs = list(reqs)
        decoding = [req for req in reqs if wants_decode(req)]
        rest = sorted(filter(is_throughput, decoding), key=self._turn)
        spare_s = strictest_s - costs.decode_s(len(decoding) - len(rest))
        if len(self._state.waiting) > 0 or any(map(is_cut, reqs)):
            spare_s /= 2  # prompts have the other half
        overdue = sum(self._left_out.get(req.handle, 0) >= LEAST_SHARE - 1 for req in rest)
        least = max(overdue, math.ceil(len(rest) / LEAST_SHARE))
        fits = int(min(len(rest), max(0.0, spare_s) / costs.row_s)) if costs.row_s else len(rest)
        left_out = rest[max(least, fits) :]
        self._left_out = {r.handle: self._left_out.get(r.handle, 0) + 1 for r in left_out}
        taken = [req for req in reqs if req.handle not in self._left_out]
        return Sharing(taken, left_out, strictest_s)

    def _strictest_s(self) -> float:
        """The strictest target of those that decode; infinite if none has one."""
        paced = self._state.waiting.overtaking.paced
        for req in [req for req in paced.values() if req.residency is None]:
            del paced[req.handle]
        return min((target_s(req) for req in paced.values() if wants_decode(req)), default=math.inf)

    def _turn(self, req: Req) -> tuple[int, int, int]:
        """Longest left out first; then as `DecodePlanner` orders rows."""
        outputs, handle = retraction_key(req)
        return -self._left_out.get(req.handle, 0), -outputs, -handle
