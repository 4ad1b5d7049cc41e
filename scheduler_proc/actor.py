"""The scheduler process: sockets, clock and one compute thread around the `Scheduler` core.

The loop keeps one step running in the compute thread. With overlap (lag 1) it plans the next step
while one runs and queues it: the compute thread goes from one to the other without waiting
for the loop. Messages are taken at any time, because the loop itself never computes.

A plan that waits for the step that runs is sealed in the compute thread. Only then is the core used
outside the loop: handlers that use it hold `_core_lock`, and `_serve` waits. If the newest tokens
alone decide the step, it starts at once, and the loop seals the plan while it runs.
"""

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial

import zmq

from scheduler_proc.batch import StepResult
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.planning_time import PlanningTime, delay_s
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import Step
from scheduler_proc.crash.journal import GUILTY, Blame
from scheduler_proc.crash.recovery import UnclearFailure, parts_of_failed
from scheduler_proc.events.kv_events import KvEvents
from scheduler_proc.executor.base import Executor
from scheduler_proc.executor.failures import is_device_lost, is_out_of_memory, release_memory
from scheduler_proc.grammar.store import GrammarStore
from scheduler_proc.process import garbage
from scheduler_proc.process.admin import Controls
from scheduler_proc.process.compute import ComputeThread, Launched
from scheduler_proc.process.construction import (
    facts_of,
    load_executor,
    make_core,
    shared_by_grammars,
    take_share,
)
from scheduler_proc.process.core_lock import CoreLock
from scheduler_proc.process.encodes import Encodes
from scheduler_proc.process.entry import CoreEntry
from scheduler_proc.process.grammar_loading import GrammarIntake
from scheduler_proc.process.load_reports import REPORT_INTERVAL_S, Reports
from scheduler_proc.process.metrics import ExpertLoad, StatsLog, StepClock, stats_of
from scheduler_proc.process.watchdog import Doing, LoopProbe, Watch, end_process
from scheduler_proc.trace.recorded import RecordedScheduler
from srt.args import places_of
from srt.ring.actor import Actor
from srt.ring.places import Ring, send_now, with_room_in
from srt.wire.ring_messages import (
    Abort,
    CacheSnapshotReq,
    Control,
    ControlReply,
    GiveWay,
    GrammarLost,
    GrammarMade,
    MediaSent,
    MediaWanted,
    PauseSet,
    SchedulerMessage,
    Stays,
    TokenizedReq,
)
from srt.wire.ring_state import scheduler_part

log = logging.getLogger(__name__)

BLOCKED_RETRY_S = 0.05
# How long the compute thread may wait for the interpreter while the loop is in Python code.
SWITCH_INTERVAL_S = 0.0005


class SchedulerActor(Actor):
    """Drives the core: prepare, seal, finalize, run, commit, report."""

    name = "scheduler"

    def __init__(
        self, ring: Ring, epoch: int, incarnations: Sequence[int], arguments: Sequence[str]
    ) -> None:
        super().__init__(ring, epoch, incarnations, arguments)
        self._replica = int(arguments[0])
        self.name = scheduler_part(self._replica, places_of(self.args))

    @property
    def incarnation(self) -> int:
        """Its own; no message of another one is of use."""
        return self.incarnations[self._replica]

    async def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        kv_events = self._kv_events()
        # On another machine, where it is one of fewer, its number there is the second argument.
        threads = take_share(int(self.arguments[-1]), self.args.dp, self.args.threads)
        self._clock = StepClock()
        self._compute = ComputeThread(self._clock)
        self._executor = await self._compute.load(partial(self._load, threads))
        self._core_lock = CoreLock()
        self._core = make_core(self.args, self._replica, self.incarnation, self._executor)
        has_had_losses = self.incarnation >= 2 * places_of(self.args)
        with with_room_in(self.ring.directory, self.args.dp):
            self._blame = self._compute.blame = Blame(
                self.ring.directory, self.incarnation, self._core, is_wary=has_had_losses
            )
        self._blame.listen()
        self._detokenizer = self.connect(zmq.PUSH, self.ring.detokenizer)
        self._front = self.connect(zmq.PUSH, self.ring.credits)
        self._entry = CoreEntry(self._core, self._core_lock, partial(self.send, self._detokenizer))
        self._encodes = Encodes(
            self._core, self._core_lock, self._compute, self.tasks, self._want, self._entry.changed
        )
        experts = ExpertLoad(self._executor)
        self._stats_log = StatsLog(self._core, experts)
        self._stats = partial(stats_of, self._core, self._executor, self._clock, experts)
        overlap = not self.args.disable_overlap_schedule
        self._planning_time = PlanningTime(self._core.state) if overlap else None
        self._controls = Controls(self._core, self._stats, self._reply)
        self._grammars = GrammarStore(
            partial(shared_by_grammars, self.args),
            self.ring.grammars,
            noted=self._blame.note_grammar,
        )
        self._grammars.warm()
        self._intake = GrammarIntake(
            self._grammars, self._entry, self._recall, self.tasks, self._blame
        )
        self.facts = facts_of(self._executor)
        self._reports = Reports(
            self._core,
            self._clock,
            partial(send_now, self._front),
            has_router=places_of(self.args) > 1,
            kv_events=kv_events,
            warm_steps=self._warm_steps,
        )
        self._inbox = self.bind(zmq.PULL, self.ring.scheduler(self._replica))
        self.receive(self._inbox, SchedulerMessage, self._on_message)
        if self.args.step_timeout > 0:
            probe, limit_s = LoopProbe(asyncio.get_running_loop()), self.args.step_timeout
            doing: Doing = {"a step": lambda: self._compute.job, "the loop": probe}
            Watch(limit_s, doing, self._end_hanging).start()
        garbage.begin()
        self.background(self._serve())
        self.background(self._keep_pace())

    async def stop(self) -> None:
        if self._failure is not None:
            self._blame.own_up(repr(self._failure), threading.get_ident())
        with self._core_lock:
            if isinstance(self._core, RecordedScheduler):
                self._core.close()
        self._intake.clear()
        self._grammars.close()
        self._compute.close()

    def _kv_events(self) -> KvEvents | None:
        """Bound before the model is loaded: errors come early, subscribers connect meanwhile."""
        if not self.args.kv_events:
            return None
        events = KvEvents(self.args, self._replica, self.context, self.tasks, self.dropped)
        events.start()
        return events

    def new_epoch(self) -> None:
        self._controls.clear()
        self._intake.clear()
        with self._core_lock:
            self._core.reset(self.incarnation)
            self._blame.move(self.incarnation)
            self._reports.reset()

    def _load(self, threads: int | None) -> Executor:
        executor, self._warm_steps = load_executor(self.args, threads)
        return executor

    @property
    def has_progressed(self) -> bool:
        return self._blame.has_ended_guilty or self._core.state.counters.computed_prompt_tokens > 0

    @property
    def in_flight(self) -> int:
        return len(self._core.state.running) + len(self._core.state.waiting) + len(self._intake)

    # ---- messages ------------------------------------------------------------------------------

    def _on_message(self, message: SchedulerMessage, blobs: Sequence[bytes] = ()) -> None:
        if message.incarnation != self.incarnation:
            return
        with self._core_lock:
            if isinstance(message, Control):
                self._controls.take(message)
                self._reports.tell_blocks()  # of a flush
            elif isinstance(message, PauseSet):
                self._core.pause(message.pause)
                self._intake.rearm()
            elif isinstance(message, GrammarMade):
                self._intake.made(message)
            elif isinstance(message, TokenizedReq):
                self._on_request(message)
            elif isinstance(message, CacheSnapshotReq):
                self._reports.ask_blocks()
            elif isinstance(message, MediaSent):
                self._encodes.came(message, blobs)
            elif isinstance(message, GiveWay):
                self._give_way(message)
            elif isinstance(message, Abort):
                for req in self._intake.take(message):  # it ends in the core, as all others do
                    self._entry.add(req)
                self._entry.abort(message)
        self._entry.wake.set()  # even if none enters yet: the front hears that nobody waits for it

    def _on_request(self, req: TokenizedReq) -> None:
        self._reports.pace.entered(req)
        if self._blame.takes(req):
            self._entry.fail(req, GUILTY)
        elif req.grammar:
            self._intake.add(req)
        else:
            self._entry.add(req)

    def _give_way(self, message: GiveWay) -> None:
        """Those that still wait for their grammars have not begun: they end in the core."""
        if self._intake.may_give_way(message.client, message.rids):
            for rid in message.rids:
                for req in self._intake.take(Abort(message.client, rid, message.incarnation)):
                    self._entry.fail(req, message.error)
        elif not self._entry.give_way(message):
            self.send(self._front, Stays(message.client, message.rids, self.incarnation))

    def _recall(self, key: str) -> None:
        """Ask the front to have a grammar made again."""
        self.send(self._front, GrammarLost(key, self.incarnation))

    def _want(self, digests: list[bytes]) -> None:
        self.send(self._front, MediaWanted(self.incarnation, digests))

    def _end_hanging(self, what: str) -> None:
        thread = self._compute.thread if what == "a step" else threading.main_thread()
        what = "an encode" if self._compute.is_encoding and what == "a step" else what
        self._blame.own_up(f"{what} hangs", thread.ident)
        end_process(what, self._compute.step, self._stats)

    def _reply(self, reply: ControlReply) -> None:
        self.send(self._detokenizer, reply)

    async def _keep_pace(self) -> None:
        """Report what comes and goes to the front even while a long step runs."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            with self._core_lock:
                if self._reports.pace.is_news:
                    self._reports.tell_pace()

    # ---- steps ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        running: Launched | None = None
        while True:
            plan = self._prepare() if await self._may_plan(running) else None
            # Queued after the step that runs, so that the compute thread goes on by itself.
            finished, running = running, await self._launch(plan, running)
            self._entry.send_outputs()
            succeeded = finished is None or await self._settle(finished)
            self._entry.send_outputs()
            self._reports.tell_blocks()
            self._reports.tell_pace()
            garbage.stepped()
            if plan is not None and not succeeded:
                await self._take_back(plan, running)
                running = None
            await self._encodes.advance(running is not None)
            if plan is None and finished is None and running is None:
                await self._sleep()

    async def _sleep(self) -> None:
        """Wait for a message. If there is work that cannot run yet, look again soon, unless it is
        paused."""
        self._clock.rest()
        self._stats_log.rest()
        if not self._core.has_work:  # a long queue in a pause would be gone through again and again
            garbage.rest()
        self._entry.wake.clear()
        self._reports.tell_pace(at_once=not self._core.has_work)
        if not self._encodes.is_busy:
            self._controls.at_rest()
        self._reports.tell_blocks()  # of a flush
        is_blocked = self._core.has_work and not self._core.state.live.pause.is_on
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLOCKED_RETRY_S if is_blocked else None):
                await self._entry.wake.wait()

    def _prepare(self) -> Plan | None:
        now = time.monotonic()
        plan = self._core.prepare(now)
        self._encodes.prepared()
        self._stats_log.tick(now)
        return plan

    async def _may_plan(self, running: Launched | None) -> bool:
        """Wait until it is time to plan the step after the one that runs, if that may be done
        before it has ended."""
        if running is None or self._planning_time is None:
            return running is None
        if self._planning_time.is_late(time.monotonic()):
            # After a rest the compute thread may not have noted yet that it has begun.
            began_s = max(self._clock.began_s, running.queued_s)
            due_s = began_s + delay_s(running.step.size, self._core.costs)
            if (left_s := due_s - time.perf_counter()) > 0.0:
                await asyncio.wait([running.ended], timeout=left_s)
        return True

    async def _launch(self, plan: Plan | None, before: Launched | None) -> Launched | None:
        """Queue the plan's step after the step `before`, whose tokens it needs. If the plan waits
        for some of these, it is laid out as far as possible meanwhile."""
        if plan is None:
            return None
        if plan.deferred and before is not None:
            self._core.seal_ahead(plan, before.step)
            make = partial(self._seal_deferred, plan, before.step)
            launched = await self._compute.launch_made(make, before)
            with self._core_lock:  # does what is owed
                return launched
        step = self._core.seal(plan)
        return None if step is None else self._compute.launch(step, before)

    def _seal_deferred(self, plan: Plan, step: Step, result: StepResult) -> Step | None:
        """Take over what the plan needs of the finished step's result. Called in the compute thread
        while the loop is in `_launch`, where only its handlers may use the core."""
        with self._core_lock:
            early = self._core.start_early(plan, result)
            if early is None:
                return self._seal_after(plan, step, result)
            self._core_lock.owe(partial(self._seal_after, plan, step, result))
            return early

    def _seal_after(self, plan: Plan, step: Step, result: StepResult) -> Step | None:
        self._core.commit_deferred(plan, step, result)
        return self._core.seal(plan)

    async def _settle(self, launched: Launched) -> bool:
        """Wait for the step and take over its result. False if it raised: by then its parts have
        been run instead, and the step queued after it has ended without running."""
        result = await self._result(launched)
        if isinstance(result, StepResult):
            self._core.commit(launched.step, result)
        else:
            await self._recover(launched.step, result)
        self._compute.settled(launched.step)
        if self.args.check_invariants:
            check_invariants(self._core)
        return isinstance(result, StepResult)

    async def _recover(self, step: Step, error: Exception) -> None:
        """Run a step that raised by parts. If several requests have failed, this process ends, and
        they go on at the next one."""
        if is_out_of_memory(error):
            release_memory(error)
        parts = parts_of_failed(self._core, step, error)
        try:
            with contextlib.suppress(StopIteration):
                part = next(parts)
                while True:
                    part = parts.send(await self._result(self._compute.launch(part, None)))
        except UnclearFailure as failure:
            self._blame.accuse(failure.names)
            raise

    async def _result(self, launched: Launched) -> StepResult | Exception:
        """The step's result, or what it raised. If that means that the device is lost, it is raised
        here and ends this process; the step's requests go on at the next one, as suspects."""
        await launched.ended
        try:
            return launched.result.result()
        except Exception as error:
            log.exception("a step of %d rows failed", len(launched.step.rows))
            if is_device_lost(error):
                self._blame.accuse([row.req.key for row in launched.step.rows])
                raise
            return error

    async def _take_back(self, plan: Plan, launched: Launched | None) -> None:
        """Cancel a plan that builds on a failed step: its step, if it was launched, ended without
        running."""
        if launched is None:
            self._core.cancel(plan)
            return
        await launched.ended
        self._core.cancel(launched.step)
