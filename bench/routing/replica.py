"""One replica without a model: a real scheduler core, and what its actor tells the router."""

from collections.abc import Iterator

from bench.hit_rate.families import VOCAB
from bench.hit_rate.simulator import DEFAULTS, StepCost
from bench.scheduler import null_result
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_target import CostMeter
from scheduler_proc.process.load_reports import CacheNews, PaceMeter
from srt.wire.ring_messages import CacheEvents, ReplicaLoad, TokenizedReq

MODEL = "bench"
CONTEXT = 8192


class Replica:
    """A turn ends a step, begins the one that was planned meanwhile, and plans another."""

    def __init__(self, incarnation: int, pool: int, cost: StepCost) -> None:
        config = SchedulerConfig(
            max_total_tokens=pool,
            context_len=CONTEXT,
            vocab_size=VOCAB,
            max_running_requests=DEFAULTS.max_running_requests,
            chunked_prefill_size=DEFAULTS.chunked_prefill_size,
            block_model=MODEL,
        )
        self.core = Scheduler(config, incarnation)
        self.busy_s = 0.0
        self._cost, self._pace, self._costs = cost, PaceMeter(self.core), CostMeter()
        self._news = CacheNews(self.core)
        self._news.ask()
        self._running: Step | None = None
        self._next: Step | None = None
        self._rids: dict[int, str] = {}

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def add(self, wire: TokenizedReq, now: float) -> None:
        """A request comes. If the replica is idle, it needs a turn."""
        self._pace.entered(wire)
        self.core.add(wire, now)

    def turn(self, now: float) -> float:
        """End the step that runs, if any. Returns the seconds of the next one, 0 if there is
        nothing to do."""
        if self._running is not None:
            self._end(self._running)
        self._running, self._next = self._next, None
        if self._running is None:
            self._running = self._plan(now, None)
        if self._running is None:
            return 0.0
        self._next = self._plan(now, self._running)
        return self._cost.of(self._running)

    def take_ended(self) -> list[str]:
        """The requests that have ended since the last call. Their own times are not read."""
        batch = self.core.take_output(0.0)
        if batch is None:
            return []
        self._rids.update((start.handle, start.rid) for start in batch.starts)
        return [self._rids.pop(end.handle) for end in batch.ends]

    def news(self, now: float) -> Iterator[CacheEvents | ReplicaLoad]:
        """What the actor would send after a step."""
        assert self.core.state.memory.cache.hashes is not None
        events = self._news.tell(self.core.state.memory.cache.hashes.take())
        if events is not None:
            yield events
        yield from self.load(now, at_once=self.is_idle)

    def load(self, now: float, *, at_once: bool = False) -> Iterator[ReplicaLoad]:
        """What it would report while a step runs, if it is time."""
        if at_once or self._pace.is_news or not self.is_idle:
            pace = self._pace.report(now, at_once=at_once)
            if pace is not None:
                yield self._pace.load(pace)

    def _plan(self, now: float, running: Step | None) -> Step | None:
        plan = self.core.prepare(now)
        step = None if plan is None else self.core.seal(plan)
        if step is not None:
            step.finalize(None if running is None else null_result(running.batch))
        return step

    def _end(self, step: Step) -> None:
        seconds = self._cost.of(step)
        size = step.size
        self.core.commit(step, null_result(step.batch))
        self.busy_s += seconds
        self._pace.stepped(size, seconds)
        self._costs.add(size, seconds)
        costs = self._costs.news()
        if costs is not None:
            self.core.measure(costs)
