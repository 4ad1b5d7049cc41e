"""What a scheduler reports besides outputs: to the front its pace, its load and the blocks of its
tree, to subscribers of KV events these blocks.

The pace is how fast the scheduler works, for the front's estimate of how long a new request waits.
The actor reports every step; a line through recent steps gives the time of a step by its tokens.
While requests wait, the time expected for the tokens done is compared with the time that passes.
All sums decay with busy time only: an idle server keeps what it knows. Nothing here changes the
core, except that it is given what its steps cost.
"""

import math
import time
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter

from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.queueing.overtaking import is_throughput
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.steps.step_cost import MEMORY_S, StepCost, StepSize, TimedSteps
from scheduler_proc.core.steps.step_target import CostMeter
from scheduler_proc.events.kv_events import KvEvents
from scheduler_proc.memory.block_hashes import Changes, all_hashes
from scheduler_proc.process.metrics import StepClock
from srt.ring.crash_file import Name
from srt.ring.recent_prompts import RecentPrompts
from srt.wire.ring_messages import CacheEvents, Pace, ReplicaLoad, TokenizedReq

REPORT_INTERVAL_S = 0.1
MAX_ERROR = 4.0  # what was expected is corrected by this many times at most
MOST_COUNTED = 1024  # reqs of the queue, of which a long one has many more
TRUST_S = 1.0  # of waiting, before the correction counts for as much as none
_TOTALS = attrgetter(
    "admitted", "computed_prompt_tokens", "generation_tokens", "ended", "ended_outputs"
)


class PaceMeter:
    """What the front must know of one core. `entered` counts the requests sent to this
    incarnation."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._steps = _Steps()
        self._work = [0.0] * len(self._totals())
        # Seconds that passed while requests waited, and seconds expected for what was done.
        self._queued = [0.0, 0.0]
        self._seen = self._totals()
        self._mean_outputs = 0.0
        self.reset()

    def reset(self) -> None:
        """A new incarnation: nothing has entered. What was measured still holds."""
        self._arrivals, self._uncomputed = _Arrivals(), 0
        self._reported_at = -math.inf
        self._reported = (0, 0)

    @property
    def is_news(self) -> bool:
        """Whether requests have come or gone since the last report."""
        return self._reported != (self._arrivals.num, len(self._core.state.waiting))

    def entered(self, req: TokenizedReq) -> None:
        """A request has arrived; it enters the core now, or once its grammar is loaded."""
        self._arrivals.add(req)

    def stepped(self, size: StepSize, seconds: float) -> None:
        """A step of this size has been run; `seconds` is the time since the one before, or
        since it began if nothing was to be done in between."""
        keep = math.exp(-seconds / MEMORY_S)
        self._steps.add(size, seconds, keep)
        totals = self._totals()
        new = [now - before for now, before in zip(totals, self._seen, strict=True)]
        self._work = [keep * old + value for old, value in zip(self._work, new, strict=True)]
        self._seen = totals
        if self._core.state.waiting:
            _, computed, generated, *_ = new
            outputs = self._outputs()
            output_s = self._request_s(outputs) / max(1.0, outputs)
            expected_s = computed * self._steps.all.line()[1] + generated * output_s
            passed, expected = self._queued
            self._queued = [keep * passed + seconds, keep * expected + expected_s]

    def report(self, now: float, *, at_once: bool = False) -> Pace | None:
        """The present pace, if it is time to report it again."""
        if not at_once and now < self._reported_at + REPORT_INTERVAL_S:
            return None
        self._reported_at = now
        self._reported = (self._arrivals.num, len(self._core.state.waiting))
        return self._pace()

    def load(self, pace: Pace) -> ReplicaLoad:
        """What the router is to know when `pace` is reported. There a request costs at least its
        rows: of a batch that is not full, the pace says only what the next one waits for."""
        core, state, costs = self._core, self._core.state, self._core.costs
        rows_s = 0.0 if costs is None else self._mean_outputs * costs.row_s
        return ReplicaLoad(
            core.incarnation,
            received=self._arrivals.num,
            running=len(but_ahead(state.running.values())),
            waiting=len(state.waiting),
            uncomputed=self._uncomputed,
            free=state.memory.pool.free_size,
            evictable=state.memory.cache.evictable_size,
            prompt_token_s=pace.prompt_token_s,
            request_s=max(pace.request_s, rows_s),
            extend_len=self._steps.extends.mean_tokens,
            extend_s=self._steps.extends.mean_s,
            decode_len=self._steps.decodes.mean_tokens,
            decode_s=self._steps.decodes.mean_s,
        )

    def _totals(self) -> tuple[int, ...]:
        return _TOTALS(self._core.state.counters)

    def _pace(self) -> Pace:
        core, running = self._core, but_ahead(self._core.state.running.values())
        base_s, token_s = self._steps.all.line()
        outputs, places = self._outputs(), core.places
        self._mean_outputs = outputs
        output_s = token_s + base_s / places
        passed, expected = self._queued
        error = (passed + TRUST_S) / (expected + TRUST_S)
        error = min(MAX_ERROR, max(1 / MAX_ERROR, error))
        done = sum(min(outputs, req.tokens.num_outputs) for req in running)
        waiting = core.state.waiting
        self._arrivals.forget_others(waiting, len(waiting))
        waiting_tokens = self._uncomputed = self._arrivals.needs(waiting, len(waiting)) + sum(
            req.held.prefill_left for req in running
        )
        first = core.state.waiting.overtaking
        first_tokens = self._arrivals.needs(first.waiting.values(), len(first.waiting)) + sum(
            req.held.prefill_left for req in running if not is_throughput(req)
        )
        giving_way = sum(map(is_throughput, running)) if first.has_classes else 0
        return Pace(
            incarnation=core.incarnation,
            left=self._arrivals.num - len(core.state.waiting),
            left_tokens=self._arrivals.num_tokens - waiting_tokens,
            prompt_token_s=error * token_s,
            request_s=error * self._request_s(outputs),
            free_places=max(0, places - len(running)),
            step_s=self._steps.all.mean_s,
            # On average they are halfway; those that began together are not, and end together.
            running_s=max(0.0, (len(running) * outputs / 2 - done) * output_s),
            left_first=self._arrivals.num_first - len(first.waiting),
            left_first_tokens=self._arrivals.num_first_tokens - first_tokens,
            giving_way=giving_way,
        )

    def _outputs(self) -> float:
        """The outputs of a request, on average: of those that have ended, or so far if more, since
        of requests that began together none ends for a while, of others the short ones first.
        What is so far is capped by the longest: admissions decay out of the sums."""
        admitted, _, generated, ended, ended_outputs = self._work
        running = self._core.state.running.values()
        longest = max((req.tokens.num_outputs for req in running), default=0)
        so_far = min(generated / max(1.0, admitted), longest)
        return max(so_far, ended_outputs / max(1.0, ended))

    def _request_s(self, outputs: float) -> float:
        """Seconds that a request takes beyond its prompt's tokens. Its share of a full step's fixed
        time is that of its outputs in the places, or of its prompt in the token budget, whichever
        is larger."""
        base_s, token_s = self._steps.all.line()
        prompt = self._work[1] / max(1.0, self._work[0])
        share = max(outputs / self._core.places, prompt / self._core.config.chunked_prefill_size)
        return token_s * outputs + base_s * share


class _Steps:
    """What they took: all, and in two kinds, by what most of their tokens are."""

    def __init__(self) -> None:
        self.all, self.extends, self.decodes = StepCost(), StepCost(), StepCost()

    def add(self, size: StepSize, seconds: float, keep: float) -> None:
        """Add one; the earlier ones now count `keep` times what they did."""
        kind = self.extends if 2 * size.others > size.tokens else self.decodes
        for cost in (self.all, kind):
            cost.add(size.tokens, seconds, keep)


class _Arrivals:
    """The requests that were sent to an incarnation, and the tokens of their prompts that no
    earlier prompt has too: their own. The first are those of the class `latency`."""

    def __init__(self) -> None:
        self.num = self.num_tokens = 0
        self.num_first = self.num_first_tokens = 0
        self._recent = RecentPrompts()
        self._own: dict[Name, int] = {}  # of those that wait, and some that have

    def add(self, req: TokenizedReq) -> None:
        """A request has come."""
        own = self._recent.own_len(req)
        self.num += 1
        self.num_tokens += own
        if req.hints is not None and req.hints.perf == "latency":
            self.num_first += 1
            self.num_first_tokens += own
        self._own[req.client, req.rid] = own

    def forget_others(self, queue: Iterable[Req], length: int) -> None:
        """Forget those that are not in the queue, of this length, if they are most."""
        if len(self._own) > 2 * length + MOST_COUNTED:
            self._own = {r.key: self._own[r.key] for r in queue if r.key in self._own}

    def needs(self, queue: Iterable[Req], length: int) -> int:
        """The tokens of queued prompts that must be computed: not what the queue's last look found
        in the tree, nor what earlier prompts have too. Does not match again: that would change the
        core's state, which must depend on its recorded inputs alone. Of a queue of more than
        `MOST_COUNTED`, every second one speaks for all, or every third, and so on."""
        counted = list(islice(queue, 0, None, max(1, math.ceil(length / MOST_COUNTED))))
        owns = (
            min(self._own.get(r.key, r.tokens.prompt_len), r.tokens.prompt_len - r.cursor.length)
            for r in counted
        )
        tokens = sum(max(0, own) for own in owns)
        return tokens if length <= len(counted) else round(tokens * length / len(counted))


class CacheNews:
    """Reports the blocks of one core's tree to the router: all of them when it asks, then their
    changes. Before it has asked it gets nothing."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self.reset()

    def reset(self) -> None:
        """A new incarnation: nobody has asked."""
        self._seq = -1
        self._is_asked = self._is_heard = False

    def ask(self) -> None:
        """Somebody wants to know of all blocks, and of their changes from then on."""
        self._is_asked = self._is_heard = True

    def tell(self, changes: Changes) -> CacheEvents | None:
        """What to tell, given what has changed since the last call."""
        incarnation = self._core.incarnation
        if self._is_asked:
            self._is_asked = False
            self._seq += 1
            hashes = [*all_hashes(self._core.state.memory.cache.nodes())]
            return CacheEvents(incarnation, self._seq, hashes, is_snapshot=True)
        if not self._is_heard or not (changes.added or changes.removed):
            return None
        self._seq += 1
        added = [block.hash for block in changes.added]
        return CacheEvents(incarnation, self._seq, added, changes.removed)


class Reports:
    """Of one core, whose steps `clock` times. `send` sends to the front, which has a router if
    `has_router`. The core itself is told what its steps cost, at first by the steps that have
    warmed up the executor. These say nothing of the pace: nobody has been served yet."""

    def __init__(
        self,
        core: Scheduler,
        clock: StepClock,
        send: Callable[[Pace | ReplicaLoad | CacheEvents], object],
        *,
        has_router: bool,
        kv_events: KvEvents | None = None,
        warm_steps: TimedSteps = (),
    ) -> None:
        self._core, self._clock, self._send = core, clock, send
        self._has_router, self._kv_events = has_router, kv_events
        self.pace = PaceMeter(core)
        self._costs = CostMeter(warm_steps)
        self._cache = CacheNews(core)
        self._tell_costs()

    def reset(self) -> None:
        """A new incarnation: nothing has come, and nobody has asked."""
        self.pace.reset()
        self._cache.reset()

    def ask_blocks(self) -> None:
        """The front wants to know all blocks, and from then on what changes."""
        self._cache.ask()
        self.tell_blocks()

    def tell_blocks(self) -> None:
        """Tell what has come and gone in the tree since the last call: after each step, and as soon
        as a flush has emptied it."""
        cache = self._core.state.memory.cache
        if cache.hashes is None:
            return
        changes = cache.hashes.take()
        events = self._cache.tell(changes)
        if events is not None:
            self._send(events)
        if self._kv_events is not None:
            is_empty = cache.evictable_size + cache.protected_size == 0
            cleared = is_empty and bool(changes.removed)
            self._kv_events.publish(changes.added, changes.removed, cleared)

    def tell_pace(self, *, at_once: bool = False) -> None:
        """Tell the front the pace, if it is time to, and the core what steps cost."""
        while self._clock.steps:
            size, seconds = self._clock.steps.popleft()
            self.pace.stepped(size, seconds)
            self._costs.add(size, seconds)
        self._tell_costs()
        pace = self.pace.report(time.monotonic(), at_once=at_once)
        if pace is not None:
            self._send(pace)
            if self._has_router:
                self._send(self.pace.load(pace))

    def _tell_costs(self) -> None:
        costs = self._costs.news()
        if costs is not None:
            self._core.measure(costs)
