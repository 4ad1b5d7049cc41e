"""What the compile worker does with requests: finds what there is, queues the rest, remembers.

The worker's actor calls it and sends its answers. Each constraint is compiled once however many
ask for it; a few are compiled at once, a bounded number waits, and failures are remembered.
Compiling itself is `run`'s affair, so that nothing a constraint does can harm the service.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.job import Outcome
from srt.constraint import Constraint
from srt.errors import BAD_REQUEST, INTERNAL, OVERLOADED, ErrorInfo
from srt.messages import CompileReply, CompileReq

log = logging.getLogger(__name__)

MAX_QUEUE = 256
MAX_QUEUE_CHARS = 16 * 2**20
MAX_FAILURES = 4096
FORGET_AFTER_S = 30.0  # failures that another time may not meet
# The scheduler maps an artefact as soon as the front has heard of it: until then it must stay.
KEEP_S = 30.0

Run = Callable[[str, Constraint], Awaitable[Outcome]]


class Rules(NamedTuple):
    """Limits of the service; `seconds` and `mib` are those of one compilation, for messages."""

    workers: int
    seconds: float
    mib: int
    max_wait_s: float  # longer in the queue, and nobody waits any more


@dataclass
class Counters:
    """Totals since the start, in requests but for `seconds`, which compilations took."""

    reused: int = 0  # found in the ring's folder
    cached: int = 0  # found in the on-disk cache
    compiled: int = 0
    invalid: int = 0
    timed_out: int = 0
    failed: int = 0  # over the memory limit, or crashed
    refused: int = 0  # the queue was full
    seconds: float = 0.0


@dataclass
class _Pending:
    """A constraint that is queued or being compiled, and the ids that ask for it."""

    key: str
    constraint: Constraint
    since: float
    epoch: int
    asking: list[int] = field(default_factory=list)


class CompileService:
    """Answers each CompileReq once, through `answer`, at once or later."""

    def __init__(
        self,
        folder: ArtefactFolder,
        key_of: Callable[[Constraint], str],
        run: Run,
        answer: Callable[[CompileReply], None],
        rules: Rules,
    ) -> None:
        """`run(key, constraint)` puts an artefact into `folder`, or says why not."""
        self._folder, self._key_of, self._run, self._answer = folder, key_of, run, answer
        self._rules = rules
        self._pending: dict[str, _Pending] = {}
        self._queue: deque[_Pending] = deque()
        self._queued_chars = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: OrderedDict[str, tuple[float, ErrorInfo]] = OrderedDict()
        self._crashes: asyncio.Queue[BaseException] = asyncio.Queue()
        self.counters = Counters()

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    def ask(self, req: CompileReq) -> None:
        """Answer a request, or see that it will be."""
        key = self._key_of(req.constraint)
        failure = self._failure(key)
        if failure is not None:
            self._answer(CompileReply(req.id, req.epoch, error=failure))
        elif self._folder.touch(key):
            self.counters.reused += 1
            self._answer(CompileReply(req.id, req.epoch, key))
        elif self._enqueue(key, req):
            self._start_more()
        else:
            self.counters.refused += 1
            self._answer(CompileReply(req.id, req.epoch, error=self._overloaded()))

    def reset(self, epoch: int) -> None:
        """A new epoch: forget what was queued before it. What is being compiled goes on."""
        kept = [pending for pending in self._queue if pending.epoch >= epoch]
        for pending in self._queue:
            if pending.epoch < epoch:
                del self._pending[pending.key]
        self._queue = deque(kept)
        self._queued_chars = sum(len(pending.constraint.source) for pending in kept)

    async def watch(self) -> None:
        """Raises what a defect of the service itself raised: it must end the process."""
        raise await self._crashes.get()

    async def close(self) -> None:
        """Kill what is being compiled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- the queue -----------------------------------------------------------------------------

    def _enqueue(self, key: str, req: CompileReq) -> bool:
        """False if there is no room."""
        pending = self._pending.get(key)
        if pending is None:
            size = len(req.constraint.source)
            if len(self._queue) >= MAX_QUEUE or self._queued_chars + size > MAX_QUEUE_CHARS:
                return False
            pending = _Pending(key, req.constraint, monotonic(), req.epoch)
            self._pending[key] = pending
            self._queue.append(pending)
            self._queued_chars += size
        if req.epoch != pending.epoch:  # those who asked in the epoch before have gone
            pending.asking, pending.epoch = [], req.epoch
        pending.asking.append(req.id)
        return True

    def _start_more(self) -> None:
        while self._queue and len(self._tasks) < self._rules.workers:
            pending = self._queue.popleft()
            self._queued_chars -= len(pending.constraint.source)
            if monotonic() - pending.since > self._rules.max_wait_s:
                self.counters.refused += len(pending.asking)
                self._settle(pending, self._too_late())
                continue
            task = asyncio.get_running_loop().create_task(self._work(pending))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._crashes.put_nowait(error)
        else:
            self._start_more()

    async def _work(self, pending: _Pending) -> None:
        started = monotonic()
        try:
            outcome = await self._run(pending.key, pending.constraint)
        except Exception as error:  # such as no process or file left: this one fails, no other
            log.exception("a grammar could not be compiled")
            outcome = Outcome("crash", str(error))
        seconds = monotonic() - started
        self._settle(pending, self._conclude(pending, outcome, seconds))

    def _settle(self, pending: _Pending, error: ErrorInfo | None) -> None:
        """Answer everyone who asked."""
        del self._pending[pending.key]
        key = "" if error is not None else pending.key
        for request_id in pending.asking:
            self._answer(CompileReply(request_id, pending.epoch, key, error))

    # ---- outcomes ------------------------------------------------------------------------------

    def _conclude(self, pending: _Pending, outcome: Outcome, seconds: float) -> ErrorInfo | None:
        """Count, log and remember; what to tell those who asked, if it failed."""
        counters, kind = self.counters, pending.constraint.kind
        counters.seconds += seconds
        if outcome.status in ("ok", "cached"):
            counters.compiled += outcome.status == "ok"
            counters.cached += outcome.status == "cached"
            log.debug("%s: %s after %.3f s %s", kind, outcome.status, seconds, outcome.reason)
            return self._make_room(pending.key)
        counters.invalid += outcome.status == "invalid"
        counters.timed_out += outcome.status == "time"
        counters.failed += outcome.status in ("memory", "crash")
        if outcome.status != "invalid":
            log.warning("%s: %s after %.1f s %s", kind, outcome.status, seconds, outcome.reason)
        error = self._error(outcome)
        lasts = outcome.status in ("invalid", "memory")
        self._remember(pending.key, error, None if lasts else FORGET_AFTER_S)
        return error

    def _error(self, outcome: Outcome) -> ErrorInfo:
        rules = self._rules
        if outcome.status == "invalid":
            return ErrorInfo(BAD_REQUEST, outcome.reason)
        if outcome.status == "time":
            return ErrorInfo(BAD_REQUEST, f"compiling it took longer than {rules.seconds:g} s")
        if outcome.status == "memory":
            return ErrorInfo(BAD_REQUEST, f"compiling it needed more than {rules.mib} MiB")
        return ErrorInfo(INTERNAL, "compiling it failed (the server's log says why)")

    def _overloaded(self) -> ErrorInfo:
        reason = f"the server is at its limit: {len(self._queue)} grammars wait to be compiled"
        return ErrorInfo(OVERLOADED, reason, retryable=True)

    def _too_late(self) -> ErrorInfo:
        reason = f"the server is at its limit: waited over {self._rules.max_wait_s:g} s to compile"
        return ErrorInfo(OVERLOADED, reason, retryable=True)

    def _make_room(self, key: str) -> ErrorInfo | None:
        """Hold the folder to its bound, without what was used just now."""
        if self._folder.trim(KEEP_S):
            return None
        self._folder.discard(key)
        reason = "the server is at its limit: too many grammars are in use"
        return ErrorInfo(OVERLOADED, reason, retryable=True)

    def _failure(self, key: str) -> ErrorInfo | None:
        expires, error = self._failures.get(key, (0.0, None))
        if error is None:
            return None
        if monotonic() > expires:
            del self._failures[key]
            return None
        self._failures.move_to_end(key)
        return error

    def _remember(self, key: str, error: ErrorInfo, seconds: float | None) -> None:
        expires = float("inf") if seconds is None else monotonic() + seconds
        self._failures[key] = expires, error
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
