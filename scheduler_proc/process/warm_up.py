"""First steps that are nobody's: they bring the weights into memory, do what is slow once, and show
what steps cost, so that even the first burst of requests meets a core that knows how long a step
beside decodes may be.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step_cost import StepSize, TimedSteps
from scheduler_proc.executor.base import Executor
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

ROWS, PROMPT = 8, 4  # of the larger steps: a cost for each row needs steps of two sizes
REPEATED_S = 1.0  # a slower round is not repeated: a large model would start noticeably later
MAX_S = 4.0


def warm_up(executor: Executor, config: SchedulerConfig) -> TimedSteps:
    """Compute a token alone and decode it, which may be as slow as the disk is; then the same, the
    prompts of ROWS requests and their decodes, mostly twice.

    Returns the steps of these two rounds, one of each size, the faster one: the first of a kind may
    be slow, and so may any while other processes start. A step of one prompt token is left out:
    most of it is no token's. At most MAX_S and a step are spent after the first two.
    """
    core, rids = Scheduler(replace(config, speculative="off")), map(str, count())
    steps: dict[StepSize, float] = {}
    list(_steps(core, executor, [[0]], rids))
    began = time.monotonic()
    for number in range(2):
        if number == 1 and time.monotonic() - began > REPEATED_S:
            break
        for prompts in ([[0]], _prompts(number, config)):
            for size, seconds in _steps(core, executor, prompts, rids):
                if size.others != 1:
                    steps[size] = min(seconds, steps.get(size, seconds))
                if time.monotonic() - began > MAX_S:
                    return list(steps.items())
    return list(steps.items())


def _prompts(number: int, config: SchedulerConfig) -> list[list[int]]:
    """No two of them begin alike, nor like the single token, as far as there are tokens."""
    length = max(1, min(PROMPT, config.context_len - 2))
    first = [1 + number * ROWS + row for row in range(ROWS)]
    return [[(token + at) % config.vocab_size for at in range(length)] for token in first]


def _steps(
    core: Scheduler, executor: Executor, prompts: Sequence[Sequence[int]], rids: Iterator[str]
) -> Iterator[tuple[StepSize, float]]:
    """Computes the prompts and decodes each, if the context has room for that."""
    for prompt in prompts:
        outputs = max(1, min(2, core.config.context_len - len(prompt)))
        sampling = FilledParams(max_new_tokens=outputs, temperature=0.0, ignore_eos=True)
        core.add(TokenizedReq(b"", next(rids), 0, pack_ids(prompt), sampling), 0.0)
    while (plan := core.prepare(0.0)) is not None:
        step = core.seal(plan)
        if step is None:
            return
        step.finalize(None)
        began = time.monotonic()
        result = executor.run(step.batch)
        yield step.size, time.monotonic() - began
        core.commit(step, result)
        core.take_output(0.0)
