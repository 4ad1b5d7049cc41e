"""Runs a step that raised again, by halves, so that only rows that raise by themselves are ended.
The others get the tokens that they would have had.

The actor owns one, and runs the parts that it names. A step is split MAX_SPLITS times at most; what
is left then is run once more unchanged. That finds five failing rows of 64, and bounds the time
spent on a lost device. After MAX_HOPELESS steps in a row that failed in all parts, steps that raise
are no longer split until one succeeds.
"""

from collections.abc import Generator

from scheduler_proc.batch import StepResult
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.step import Step

MAX_SPLITS = 32
MAX_HOPELESS = 3
_REASON = "the model failed on this request's step"


class Recovery:
    """Commits, fails and splits steps of `core`."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._hopeless = 0  # steps of several rows in a row that raised, as did all their parts

    def commit(self, step: Step, result: StepResult) -> None:
        """A step, or a part of one, was computed."""
        self._hopeless = 0
        self._core.commit(step, result)

    def parts(self, step: Step) -> Generator[Step, StepResult | None, None]:
        """The parts of a step that raised, each to be run at once; send its result back, or None
        if it raised too. At the end every row of the step is committed, or its req has ended."""
        self._hopeless += len(step.rows) > 1
        splits_left = MAX_SPLITS if self._hopeless <= MAX_HOPELESS else 0
        todo = self._halves(step, splits_left)
        while todo:
            part = todo.pop(0)
            result = yield part
            if result is not None:
                self.commit(part, result)
                continue
            splits_left -= 1
            todo = self._halves(part, splits_left) + todo

    def _halves(self, step: Step, splits_left: int) -> list[Step]:
        """The halves of a step that raised; none if its rows have ended with it."""
        if splits_left > 0 and len(step.rows) > 1:
            return self._core.split(step)
        self._core.fail(step, _REASON)
        return []
