"""The scheduler process: sockets, clock and one compute thread around the `Scheduler` core.

The loop keeps one step running in the compute thread. With overlap (lag 1) it plans the next step
while one runs; messages are taken at any time, because the loop itself never computes.
"""

import asyncio
import contextlib
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import zmq

from scheduler_proc.batch import StepResult
from scheduler_proc.executor import make_executor
from scheduler_proc.executor.base import Executor
from scheduler_proc.invariants import check_invariants
from scheduler_proc.plan import Step
from scheduler_proc.scheduler import Scheduler, SchedulerConfig
from scheduler_proc.stats import StatsLog, stats_of
from scheduler_proc.trace import TraceRecorder
from srt.actor import Actor
from srt.args import ServerArgs
from srt.errors import CONFLICT, ErrorInfo
from srt.messages import (
    Abort,
    ClientGone,
    Control,
    ControlReply,
    SchedulerMessage,
    TokenizedReq,
)
from srt.model.files import resolve_model

log = logging.getLogger(__name__)

MAX_FLUSH_WAIT_S = 600.0
BLOCKED_RETRY_S = 0.05


class SchedulerActor(Actor):
    """Drives the core: prepare, finalize, run, commit, tell."""

    name = "scheduler"

    async def start(self) -> None:
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        self._executor: Executor = await loop.run_in_executor(self._compute, self._load)
        self._core = Scheduler(core_config(self.args, self._executor), self.epoch)
        self._trace = TraceRecorder(self.args.record_trace, self._core.config)
        self._stats_log = StatsLog(self._core)
        self._overlap = not self.args.disable_overlap_schedule
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self.info = {**facts_of(self._executor), "load_s": round(time.monotonic() - started, 2)}
        self._detokenizer = self.connect(zmq.PUSH, self.ring.detokenizer)
        self._inbox = self.bind(zmq.PULL, self.ring.scheduler)
        self.receive(self._inbox, SchedulerMessage, self._on_message)
        self.background(self._serve())

    async def stop(self) -> None:
        self._trace.close()
        self._compute.shutdown(wait=False, cancel_futures=True)

    def new_epoch(self, epoch: int) -> None:
        self._core.reset(epoch)
        self._trace.reset(epoch)

    @property
    def in_flight(self) -> int:
        return len(self._core.running) + len(self._core.waiting)

    def _load(self) -> Executor:
        return make_executor(
            self.args.executor,
            resolve_model(self.args.model),
            max_total_tokens=self.args.max_total_tokens,
            device=self.args.device,
            dtype=self.args.dtype,
            num_threads=self.args.threads or None,
        )

    # ---- messages ------------------------------------------------------------------------------

    def _on_message(self, message: SchedulerMessage) -> None:
        if message.epoch != self.epoch:
            return
        now = time.monotonic()
        if isinstance(message, Control):
            self.spawn(self._control(message))
            return
        self._trace.message(message, now)
        if isinstance(message, TokenizedReq):
            self._core.add(message, now)
        elif isinstance(message, Abort):
            self._core.abort(message)
        elif isinstance(message, ClientGone):
            self._core.drop_client(message.client)
        self._tell()
        self._wake.set()

    async def _control(self, control: Control) -> None:
        error, data = None, b"{}"
        if control.op == "stats":
            data = msgspec.json.encode(stats_of(self._core, self._executor))
        elif not await self._flush(min(control.timeout_s, MAX_FLUSH_WAIT_S)):
            error = ErrorInfo(CONFLICT, "the cache is in use: requests are running or waiting")
        reply = ControlReply(control.client, control.rid, control.epoch, data, error)
        self.send(self._detokenizer, reply)

    async def _flush(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._core.has_work:
                    await self._idle.wait()
        flushed = self._core.flush_cache()
        if flushed:
            self._trace.flushed()
        return flushed

    def _tell(self) -> None:
        batch = self._core.take_output()
        if batch is not None:
            self.send(self._detokenizer, batch)

    # ---- steps ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        running: tuple[Step, asyncio.Future[StepResult]] | None = None
        while True:
            step = self._prepare() if self._overlap or running is None else None
            previous = None
            if running is not None:
                previous = await self._result(*running)
            if step is not None and (previous is not None or not step.late_tokens):
                self._core.finalize(step, previous)
                ahead = (step, self._launch(step))
            else:
                if step is not None:  # it builds on a step that failed
                    self._core.fail(step, "the step before failed")
                    self._tell()
                ahead = None
            if running is not None and previous is not None:
                self._commit(running[0], previous)
            running = ahead
            if running is None and previous is None:
                await self._sleep()

    async def _sleep(self) -> None:
        """Until a message comes. With work that cannot run yet, look again soon."""
        self._wake.clear()
        if not self._core.has_work:
            self._idle.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLOCKED_RETRY_S if self._core.has_work else None):
                await self._wake.wait()
        self._idle.clear()

    def _prepare(self) -> Step | None:
        now = time.monotonic()
        step = self._core.prepare(now)
        self._trace.prepared(step, now)
        self._stats_log.tick(now)
        return step

    def _launch(self, step: Step) -> "asyncio.Future[StepResult]":
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._compute, self._executor.run, step.batch)

    async def _result(self, step: Step, future: "asyncio.Future[StepResult]") -> StepResult | None:
        """The step's result, or None if it failed: then its reqs have been told."""
        try:
            return await future
        except Exception:
            log.exception("a step of %d rows failed", len(step.rows))
            self._core.fail(step, "the model failed on this request's step")
            self._trace.failed()
            self._tell()
            return None

    def _commit(self, step: Step, result: StepResult) -> None:
        self._trace.committed(result)
        self._core.commit(step, result)
        self._tell()
        if self.args.check_invariants:
            check_invariants(self._core)


def facts_of(executor: Executor) -> dict[str, Any]:
    """What the start-up log says of the executor."""
    return {
        "executor": executor.name,
        "dtype": str(executor.dtype).removeprefix("torch."),
        "weight_bytes": executor.weight_bytes,
        "pool_bytes": executor.pool_bytes,
    }


def core_config(args: ServerArgs, executor: Executor) -> SchedulerConfig:
    """The core's limits for these arguments and this model."""
    seed = args.random_seed
    return SchedulerConfig(
        max_total_tokens=args.max_total_tokens,
        context_len=executor.context_len,
        max_running_requests=args.max_running_requests,
        chunked_prefill_size=args.chunked_prefill_size,
        schedule_policy=args.schedule_policy,
        max_wait_s=args.schedule_max_wait,
        disable_radix_cache=args.disable_radix_cache,
        random_seed=seed if seed >= 0 else int.from_bytes(os.urandom(8), "little"),
    )
