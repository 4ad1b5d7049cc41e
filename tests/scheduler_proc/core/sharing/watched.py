"""A driver that notes which requests have how many tokens in each step."""

from typing import Any

from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import Step
from tests.scheduler_proc.driver import Driver


class WatchedDriver(Driver):
    """`steps` has a dict of tokens by rid for each step."""

    def __init__(self, **config: Any) -> None:
        super().__init__(schedule_policy="app", **config)
        self.steps: list[dict[str, int]] = []
        seal = self.core.seal

        def noting(plan: Plan) -> Step | None:
            step = seal(plan)
            if step is not None:
                self.steps.append({row.req.wish.rid: row.extend_len for row in step.rows})
            return step

        self.core.seal = noting  # type: ignore[method-assign]

    def steps_of(self, rid: str) -> list[int]:
        """The numbers of the steps that it is in."""
        return [number for number, rows in enumerate(self.steps) if rid in rows]
