"""A first step that is nobody's: it brings the weights into memory, and does what is slow once."""

from scheduler_proc.executor.base import Executor
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.state import SchedulerConfig
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import SamplingParams


def warm_up(executor: Executor, config: SchedulerConfig) -> None:
    """Compute one token."""
    core = Scheduler(config)
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, seed=0)
    core.add(TokenizedReq(b"", "", 0, pack_ids([0]), sampling), 0.0)
    plan = core.prepare(0.0)
    step = None if plan is None else core.seal(plan)
    assert step is not None
    executor.run(step.batch)
