"""What the compile worker does with requests: finds what there is, queues the rest, remembers.

The worker's actor calls it and sends its answers. Each constraint is compiled once however many
ask for it, and not at all once nobody waits for it; a few are compiled at once, a bounded number
waits, with a bounded part for each asker, and failures are remembered. Compiling itself is
`run`'s work, so that nothing a constraint does can harm the service.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import NamedTuple

from cachetools import TLRUCache

from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.worker.job import SHORTAGES, Outcome
from scheduler_proc.grammar.worker.lanes import Lanes
from scheduler_proc.grammar.worker.room import QueueRoom
from srt.tasks import TaskSet
from srt.wire.constraint import Constraint
from srt.wire.errors import BAD_REQUEST, INTERNAL, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.ring_messages import CompileCancel, CompileReply, CompileReq

log = logging.getLogger(__name__)

MAX_FAILURES = 4096
_TIMER_S = 0.01  # added to timers, so that what they are for is due when they fire
FORGET_AFTER_S = 30.0  # failures that may not happen again
# The scheduler maps an artefact soon after the front hears of it: if it were removed before, it
# would be compiled again. If too much was used recently, the second time applies.
KEEP_S = (30.0, 2.0)

Run = Callable[[str, Constraint], Awaitable[Outcome]]


class Rules(NamedTuple):
    """Limits of the service; `seconds` of CPU time, `wall_s` of time and `mib` are those of one
    compilation, for messages."""

    workers: int
    seconds: float
    wall_s: float
    mib: int
    max_wait_s: float  # after this time in the queue, nobody waits any more
    quantum_s: float  # a compilation that takes longer may have to make way for new ones


class _Failure(NamedTuple):
    """A constraint's error, which answers those who ask for it within so many seconds."""

    error: ErrorInfo
    seconds: float


@dataclass
class Counters:
    """Totals since the start, in requests but for `seconds`, which compilations took."""

    reused: int = 0  # found in the ring's folder
    cached: int = 0  # found in the on-disk cache
    compiled: int = 0
    invalid: int = 0
    timed_out: int = 0
    failed: int = 0  # over the memory limit, for want of room on the machine, or crashed
    refused: int = 0  # the queue was full
    cancelled: int = 0  # nobody waited for it any more
    seconds: float = 0.0

    def totals(self) -> dict[str, float]:
        """The counters by their names in the server's statistics."""
        return {
            "num_grammar_compiled_total": self.compiled,
            "num_grammar_cache_hit_total": self.reused + self.cached,
            "num_grammar_invalid_total": self.invalid,
            "num_grammar_timed_out_total": self.timed_out,
            "num_grammar_failed_total": self.failed,
            "num_grammar_refused_total": self.refused,
            "num_grammar_cancelled_total": self.cancelled,
            "grammar_compilation_seconds_total": self.seconds,
        }


@dataclass(eq=False)
class _Pending:
    """A constraint that is queued or being compiled, and the ids that ask for it."""

    key: str
    constraint: Constraint
    asker: bytes  # the first one
    since: float
    epoch: int
    asking: list[int] = field(default_factory=list)
    was_begun: bool = False
    task: "asyncio.Task[None] | None" = None

    @property
    def num_chars(self) -> int:
        return len(self.constraint.source)


def _newest_first(waiting: Collection[_Pending]) -> Iterable[_Pending]:
    """The order in which jobs give way: those that have been begun once come last."""
    jobs = list(waiting)[::-1]
    return [*(job for job in jobs if not job.was_begun), *(job for job in jobs if job.was_begun)]


class _Queue(NamedTuple):
    """Which of the jobs are compiled now, and how many may wait."""

    lanes: Lanes[_Pending]
    room: QueueRoom[_Pending]


class CompileService:
    """Answers each CompileReq once, through `answer`, at once or later."""

    def __init__(
        self,
        folder: ArtefactFolder,
        key_of: Callable[[Constraint], str],
        run: Run,
        answer: Callable[[CompileReply], None],
        rules: Rules,
        tasks: TaskSet,
    ) -> None:
        """`run(key, constraint)` puts an artefact into `folder`, or says why not. It runs in
        `tasks`, whose owner ends them; a defect of the service is a failure of theirs."""
        self._folder, self._key_of, self._run, self._answer = folder, key_of, run, answer
        self._rules, self._tasks = rules, tasks
        self._pending: dict[str, _Pending] = {}
        lanes: Lanes[_Pending] = Lanes(rules.workers, rules.quantum_s)
        self._queue = _Queue(lanes, QueueRoom(self._give_way, _newest_first))
        self._timer: asyncio.TimerHandle | None = None
        self._failures: TLRUCache[str, _Failure, float] = TLRUCache(
            MAX_FAILURES, lambda _, failure, now: now + failure.seconds, lambda: monotonic()
        )
        self.counters = Counters()

    @property
    def num_queued(self) -> int:
        return len(self._queue.lanes.waiting)

    @property
    def num_running(self) -> int:
        return self._queue.lanes.num_running

    @property
    def is_busy(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._pending)

    def ask(self, req: CompileReq) -> None:
        """Answer a request, now or once its constraint is compiled."""
        key = self._key_of(req.constraint)
        failure = self._failures.get(key)
        if failure is not None:
            self._answer(CompileReply(req.id, req.epoch, error=failure.error))
        elif self._folder.touch(key):
            self.counters.reused += 1
            self._answer(CompileReply(req.id, req.epoch, key))
        elif self._enqueue(key, req):
            self._schedule()
        else:
            self.counters.refused += 1
            self._answer(CompileReply(req.id, req.epoch, error=self._overloaded(req.asker)))

    def cancel(self, req: CompileCancel) -> None:
        """Forget a request; what nobody else waits for is not compiled any further."""
        for pending in self._pending.values():
            if req.id in pending.asking and req.epoch == pending.epoch:
                pending.asking.remove(req.id)
                self.counters.cancelled += 1
                if not pending.asking:
                    self._drop(pending)
                    self._schedule()
                return

    def reset(self, epoch: int) -> None:
        """A new epoch: forget what was queued before it. What is being compiled goes on."""
        for pending in self._queue.lanes.waiting:
            if pending.epoch < epoch:
                self._drop(pending)

    def close(self) -> None:
        """Start nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    # ---- the queue -----------------------------------------------------------------------------

    def _enqueue(self, key: str, req: CompileReq) -> bool:
        """Let a request wait for its constraint; False if there is no room for that."""
        pending = self._pending.get(key)
        if pending is None:
            pending = _Pending(key, req.constraint, req.asker, monotonic(), req.epoch)
            if not self._queue.room.take(req.asker, pending, pending.num_chars):
                return False
            self._pending[key] = pending
        else:
            self._queue.room.join(req.asker, pending, pending.num_chars)
        self._queue.lanes.add(pending, req.asker)
        if req.epoch != pending.epoch:  # those who asked in the previous epoch are gone
            pending.asking, pending.epoch = [], req.epoch
        if req.id not in pending.asking:  # a front asks again when the compiler has started
            pending.asking.append(req.id)
        return True

    def _give_way(self, pending: _Pending) -> None:
        self._refuse(pending, self._overloaded(pending.asker))

    def _schedule(self) -> None:
        """Start and stop what the lanes say, now and when they next change by themselves."""
        now = monotonic()
        for pending in self._queue.lanes.waiting:
            if now - pending.since > self._rules.max_wait_s:
                self._refuse(pending, self._too_late())
        changes = self._queue.lanes.changes(now)
        for pending in changes.stop:
            self._stop(pending)
            pending.since, pending.was_begun = now, True
            self._queue.room.put(pending.asker, pending, pending.num_chars)
        for pending in changes.start:  # also one that has just been stopped
            self._queue.room.give_back(pending)
            pending.task = self._tasks.start(self._work(pending))
        self._set_timer()

    def _set_timer(self) -> None:
        """Act on what only time changes: a quantum ends, or a request has waited too long."""
        if self._timer is not None:
            self._timer.cancel()
        due = [p.since + self._rules.max_wait_s + _TIMER_S for p in self._queue.lanes.waiting]
        quantum = self._queue.lanes.next_change_s()
        if quantum is not None:
            due.append(quantum)
        if due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, min(due) - monotonic()), self._schedule)

    def _refuse(self, pending: _Pending, error: ErrorInfo) -> None:
        """Remove a job that waits and is not to be compiled."""
        self.counters.refused += len(pending.asking)
        self._queue.room.give_back(pending)
        self._queue.lanes.remove(pending)
        self._settle(pending, error)

    def _drop(self, pending: _Pending) -> None:
        """Drop a job that nobody waits for any more."""
        del self._pending[pending.key]
        self._queue.room.give_back(pending)
        self._queue.lanes.remove(pending)
        self._stop(pending)

    def _stop(self, pending: _Pending) -> None:
        if pending.task is not None:
            pending.task.cancel()
            pending.task = None

    async def _work(self, pending: _Pending) -> None:
        started = monotonic()
        try:
            outcome = await self._run(pending.key, pending.constraint)
        except Exception as error:  # this one fails, no other
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                outcome = Outcome("full", os.strerror(error.errno))
            else:
                log.exception("a grammar could not be compiled")
                outcome = Outcome("crash", str(error))
        seconds = monotonic() - started
        if pending.task is not asyncio.current_task():
            return  # it was stopped and failed while ending: nobody waits for it any more
        self._queue.lanes.remove(pending)
        self._settle(pending, self._conclude(pending, outcome, seconds))
        self._schedule()

    def _settle(self, pending: _Pending, error: ErrorInfo | None) -> None:
        """Answer everyone who asked."""
        del self._pending[pending.key]
        key = "" if error is not None else pending.key
        for request_id in pending.asking:
            self._answer(CompileReply(request_id, pending.epoch, key, error))

    # ---- outcomes ------------------------------------------------------------------------------

    def _conclude(self, pending: _Pending, outcome: Outcome, seconds: float) -> ErrorInfo | None:
        """Count, log and remember; what to answer those who asked, if it failed."""
        counters, kind = self.counters, pending.constraint.kind
        counters.seconds += seconds
        if outcome.status in ("ok", "cached"):
            counters.compiled += outcome.status == "ok"
            counters.cached += outcome.status == "cached"
            log.debug("%s: %s after %.3f s %s", kind, outcome.status, seconds, outcome.reason)
            return self._make_room(pending.key)
        counters.invalid += outcome.status == "invalid"
        counters.timed_out += outcome.status in ("time", "starved")
        counters.failed += outcome.status in ("memory", "full", "crash")
        if outcome.status != "invalid":
            log.warning("%s: %s after %.1f s %s", kind, outcome.status, seconds, outcome.reason)
        error = self._error(outcome)
        if not error.retryable:
            lasts = outcome.status in ("invalid", "memory")
            self._failures[pending.key] = _Failure(error, inf if lasts else FORGET_AFTER_S)
        return error

    def _error(self, outcome: Outcome) -> ErrorInfo:
        rules = self._rules
        if outcome.status == "invalid":
            return ErrorInfo(BAD_REQUEST, outcome.reason, outcome.at or None)
        if outcome.status == "time":
            limit = f"compiling it took longer than {rules.seconds:g} s of CPU time"
            return ErrorInfo(BAD_REQUEST, limit)
        if outcome.status == "starved":
            reason = f"the server is at its limit: compiling it did not end in {rules.wall_s:g} s"
            return ErrorInfo(OVERLOADED, reason, retryable=True)
        if outcome.status == "memory":
            return ErrorInfo(BAD_REQUEST, f"compiling it needed more than {rules.mib} MiB")
        if outcome.status == "full":
            reason = f"the server is at its limit: it cannot be compiled now ({outcome.reason})"
            return ErrorInfo(UNAVAILABLE, reason, retryable=True)
        return ErrorInfo(INTERNAL, "compiling it failed (the server's log says why)")

    def _overloaded(self, asker: bytes) -> ErrorInfo:
        mine = len(self._queue.lanes.waiting_for(asker))
        reason = (
            f"the server is at its limit: {self.num_queued} grammars wait to be compiled, "
            f"{mine} of them this client's"
        )
        return ErrorInfo(OVERLOADED, reason, retryable=True)

    def _too_late(self) -> ErrorInfo:
        reason = f"the server is at its limit: waited over {self._rules.max_wait_s:g} s to compile"
        return ErrorInfo(OVERLOADED, reason, retryable=True)

    def _make_room(self, key: str) -> ErrorInfo | None:
        """Hold the folder to its bound, but keep what was used just now."""
        try:
            if any(map(self._folder.trim, KEEP_S)):
                return None
        except OSError as error:  # such as no file left: the next one makes room
            log.warning("no old grammars were removed: %s", error)
            return None
        self._folder.discard(key)
        reason = "the server is at its limit: too many grammars are in use"
        return ErrorInfo(OVERLOADED, reason, retryable=True)
