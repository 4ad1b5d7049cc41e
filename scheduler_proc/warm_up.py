"""First steps that are nobody's: they bring the weights into memory, do what is slow once, and show
what steps cost, so that even the first burst of requests meets a core that knows how long a step
beside decodes may be.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from scheduler_proc.executor.base import Executor
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.state import SchedulerConfig
from scheduler_proc.step_cost import StepSize, TimedSteps
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import SamplingParams

ROWS, PROMPT = 8, 4  # of the larger steps: a cost for each row needs steps of two sizes
REPEATED_S = 1.0  # a slower round is not repeated: a large model would start noticeably later
MAX_S = 4.0


def warm_up(executor: Executor, config: SchedulerConfig) -> TimedSteps:
    """Compute a token alone, decode it, prompts of ROWS requests, decode these, all of it twice.
    Returns one step of each size, the faster one: the first of a kind may be slow, and so may any
    while other processes start. At most MAX_S and a step are spent."""
    core = Scheduler(replace(config, speculative="off"))
    began = time.monotonic()
    steps: dict[StepSize, float] = {}
    for number in range(2):
        if number == 1 and time.monotonic() - began > REPEATED_S:
            break
        for prompts in ([[0]], _prompts(number, config.vocab_size)):
            for rid, prompt in enumerate(prompts):
                sampling = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
                core.add(TokenizedReq(b"", str(rid), 0, pack_ids(prompt), sampling), 0.0)
            for size, seconds in _steps(core, executor):
                steps[size] = min(seconds, steps.get(size, seconds))
                if time.monotonic() - began > MAX_S:
                    return list(steps.items())
    return list(steps.items())


def _prompts(number: int, vocab_size: int) -> list[list[int]]:
    """No two of them begin alike, nor like the single token, as far as there are tokens."""
    first = [1 + number * ROWS + row for row in range(ROWS)]
    return [[(token + at) % vocab_size for at in range(PROMPT)] for token in first]


def _steps(core: Scheduler, executor: Executor) -> Iterator[tuple[StepSize, float]]:
    """Runs what the core has to do."""
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
