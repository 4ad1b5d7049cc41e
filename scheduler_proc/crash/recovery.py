"""Runs a step that raised again, by halves, until it is clear which rows raise by themselves. The
others get the tokens that they would have had.

The actor runs the parts. A step is split MAX_SPLITS times at most; what
is left then is run once more unchanged. That finds five failing rows of 64, and bounds the time
spent. If a single request has failed, it ends. If several have, it may be the
process that has failed: UnclearFailure names them, and no request has ended. Not so if all that
they lacked was memory: then they end, and nothing else does.
"""

from collections.abc import Generator

from scheduler_proc.batch import StepResult
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.steps.step import Step
from scheduler_proc.executor.failures import is_out_of_memory
from srt.ring.crash_file import Name

MAX_SPLITS = 32
_REASON = "the model failed on this request's step"
_NO_MEMORY = "the device has too little memory for this request's step"


class UnclearFailure(Exception):
    """Parts of one step have raised, with the requests `names`, more than one."""

    def __init__(self, names: list[Name]) -> None:
        super().__init__(f"the model failed on the steps of {len(names)} requests at once")
        self.names = names


def parts_of_failed(
    core: Scheduler, step: Step, error: Exception
) -> Generator[Step, StepResult | Exception, None]:
    """The parts of a step of `core` that raised `error`, each to be run at once; send its result
    back, or what it has raised too. At the end every row of the step is committed, or its req has
    ended.

    Raises UnclearFailure.
    """
    splits_left = MAX_SPLITS
    failed = list[Step]()
    lacked_memory = True
    todo = [step]
    result: StepResult | Exception = error
    while todo:
        part = todo.pop(0)
        if part is not step:
            result = yield part
        if isinstance(result, StepResult):
            core.commit(part, result)
        elif splits_left > 0 and len(part.rows) > 1:
            splits_left -= 1
            todo = core.split(part) + todo
        else:
            failed.append(part)
            lacked_memory &= is_out_of_memory(result)
    names = [row.req.key for part in failed for row in part.rows if row.req.finish is None]
    if len(names) > 1 and not lacked_memory:
        raise UnclearFailure(names)
    for part in failed:
        core.fail(part, _NO_MEMORY if lacked_memory else _REASON)
