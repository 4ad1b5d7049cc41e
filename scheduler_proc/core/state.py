"""What the parts of the scheduler core share: every req, where it is, and the memory it holds.

The core moves reqs from the queue into the batch, back (retracted), and out of it, only by the
methods here; others only read where they are. Invariant: a req that has not ended is in `waiting`
or in `running`, not in both.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush

from msgspec.structs import replace

from scheduler_proc.core.counters import Counters
from scheduler_proc.core.drafting.speculation import Speculation
from scheduler_proc.core.quarantine import Trials
from scheduler_proc.core.queueing.queue import WaitingQueue
from scheduler_proc.core.requests.admission import Admissions
from scheduler_proc.core.requests.allocations import ReqMemory
from scheduler_proc.core.requests.outputs import OutputBuffer
from scheduler_proc.core.requests.request import Req
from scheduler_proc.fairness.credits import Credits
from scheduler_proc.media.encoder_cache import EncoderCache
from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.memory.block_hashes import BlockHashes
from scheduler_proc.memory.pools import ReqToTokenPool, TokenPool
from scheduler_proc.memory.radix_cache import NoCache, RadixCache
from srt.ring.crash_file import Name
from srt.wire.answer_meta import PrefixIds
from srt.wire.errors import ErrorInfo
from srt.wire.hints import CLASSES
from srt.wire.messages import Finish, pack_ids
from srt.wire.pause import NO_PAUSE

PREFIX_TOKENS = 48  # behind the place where a prompt leaves the tree: enough for some words
MOST_PAST = 1024  # deadlines that are kept although their reqs have ended, and no more than half


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies. `chunked_prefill_size` is the token budget of one step, `step_target_s`
    how long one may last while others decode (0: see `step_target`). If there is a `block_model`,
    the tree's blocks are hashed with it, and their changes kept (`BlockHashes`).

    `speculative`: "off"; "own" or "tree" guesses up to `speculative_max_tokens` from that source
    wherever it can, "auto" from all sources as many as pay."""

    max_total_tokens: int
    context_len: int
    vocab_size: int
    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    step_target_s: float = 0.0
    schedule_policy: str = "app"
    max_wait_s: float = 30.0
    fair_wait_s: float = 2.0
    disable_radix_cache: bool = False
    random_seed: int = 0
    media: MediaFacts | None = None  # None: the model sees none
    media_cache_bytes: int = 1 << 29
    block_model: str | None = None
    speculative: str = "off"
    speculative_max_tokens: int = 8


class LiveReqs:
    """Finds the reqs of one core that have not ended, wherever they are. In a `pause` none of them
    runs, and none times out."""

    def __init__(self) -> None:
        self.pause = NO_PAUSE
        self.by_name: dict[Name, Req] = {}  # in order of arrival
        self._deadlines: list[tuple[float, int]] = []  # a heap; the second is the handle
        self._timed: dict[int, Req] = {}  # by handle: those of them that have a deadline
        self.ahead: dict[int, Req] = {}  # by handle: those that are ahead of time

    def add(self, req: Req) -> None:
        """A req has come."""
        self.by_name[req.key] = req
        if req.wish.is_ahead:
            self.ahead[req.handle] = req
        if req.wish.deadline_s:
            self._timed[req.handle] = req
            heappush(self._deadlines, (req.wish.deadline_s, req.handle))

    def remove(self, req: Req) -> None:
        """A req has ended."""
        del self.by_name[req.key]
        self._timed.pop(req.handle, None)
        self.ahead.pop(req.handle, None)
        if len(self._deadlines) > MOST_PAST + 2 * len(self._timed):
            timed = self._timed.items()
            self._deadlines = sorted((other.wish.deadline_s, handle) for handle, other in timed)

    def with_handles(self, handles: Collection[int]) -> list[Req]:
        """Those with these handles, in order of arrival."""
        return [req for req in self.by_name.values() if req.handle in handles]

    def late(self, now: float) -> list[Req]:
        """Those whose time is over, which are to be ended."""
        served_s, late = self.pause.served_s(now), []
        while self._deadlines and self._deadlines[0][0] <= served_s:
            _, handle = heappop(self._deadlines)
            if handle in self._timed:
                late.append(self._timed[handle])
        return sorted(late, key=lambda req: req.handle)


class SchedulerState:
    """The reqs of one core, and those that must hear of each that comes, is admitted or ends."""

    def __init__(self, config: SchedulerConfig) -> None:
        pool = TokenPool(config.max_total_tokens)
        longest = min(config.context_len, config.max_total_tokens)
        table = ReqToTokenPool(config.max_running_requests, longest)
        hashes = None if config.block_model is None else BlockHashes(config.block_model)
        cache = NoCache(pool) if config.disable_radix_cache else RadixCache(pool, hashes)
        rng = random.Random(config.random_seed)
        self.live = LiveReqs()
        credits = Credits(config.chunked_prefill_size)
        policy, max_wait_s = config.schedule_policy, config.max_wait_s
        self.waiting = WaitingQueue(policy, max_wait_s, rng, cache, credits)
        self.running: dict[int, Req] = {}  # by handle, in order of admission
        self.memory = ReqMemory(pool, table, cache, self.running)
        self.admissions = Admissions()
        self.counters = Counters()
        self.outputs = OutputBuffer()
        self.trials = Trials()
        self.speculation = Speculation(config.speculative, config.speculative_max_tokens, cache)
        embedding_bytes = 0 if config.media is None else config.media.embedding_bytes
        self.media = EncoderCache(config.media_cache_bytes, embedding_bytes)

    def add(self, req: Req) -> None:
        """Queue a new req."""
        self.live.add(req)
        req.account = self.waiting.credits.join(req.wish.caller, req.wish.weight)
        if not req.wish.is_ahead:
            self.waiting.add(req)
        self.trials.add(req)
        if req.wish.is_ahead and self.trials.is_suspect(req):
            self.finish(req, Finish("abort"))  # nobody needs it, and it may end this scheduler too
        self.admissions.memory_changed()

    def start(self, req: Req, now: float) -> None:
        """Lock the cached prefix of a waiting req and give it a table row that begins with it."""
        prefix, cost = self._prefix_of(req), 0
        prefix_len = self.memory.enter(req)
        if not req.is_admitted:
            num_cached = min(prefix_len, req.tokens.prompt_len)
            queued_s = now - req.came_s
            req.meta = replace(req.meta, cached_tokens=num_cached, queued_s=queued_s)
            if not req.wish.is_ahead:  # its call counts
                self.counters.admitted += 1
                self.waiting.classes.counts[CLASSES[req.wish.rank]] += 1
            self.counters.prompt_tokens += req.tokens.prompt_len
            self.counters.cached_tokens += num_cached
            self.counters.resumed += req.is_resumed
            self.counters.recomputed_tokens += (
                req.tokens.known_len - prefix_len if req.is_resumed else 0
            )
            if not req.is_resumed:  # else an earlier scheduler has computed and charged it
                uncached = req.tokens.prompt_len - num_cached
                self.waiting.credits.charge(req.wish.caller, uncached)
                cost = uncached + self.admissions.ratio.expected_outputs(req)
            self.outputs.admitted(req, prefix)
        if not req.wish.is_ahead:
            self.waiting.classes.admitted(req, cost)
            self.waiting.remove(req)
        self.running[req.handle] = req

    def _prefix_of(self, req: Req) -> PrefixIds | None:
        """Where the prompt of a req that is to be admitted leaves the tree, if it wants to know."""
        sampling = req.wish.sampling
        if req.is_admitted or not sampling.return_prefix:
            return None
        cache = self.memory.cache
        length = min(cache.track(*req.tracked), req.tokens.prompt_len)
        end = min(length + PREFIX_TOKENS, req.tokens.prompt_len)
        other = None
        if sampling.reveals_prefix:
            other = pack_ids(cache.following(req.cursor, PREFIX_TOKENS))
        return PrefixIds(length, pack_ids(req.tokens.known[:end]), other)

    def retract(self, req: Req, *, for_memory: bool = True) -> None:
        """Send a running req back to the queue; it will be extended again from what is cached. If
        it was `for_memory`, fewer reqs are admitted from now on. One ahead of time ends."""
        if req.wish.is_ahead:
            self.finish(req, Finish("abort"))
            return
        self._release(req)
        self.media.release(req.handle)
        req.told.count("retractions")
        self.counters.retracted += 1
        if for_memory:
            self.admissions.ratio.raise_after_retraction(self.running.values())
        self.waiting.add(req)

    def finish(self, req: Req, finish: Finish) -> None:
        """End a req, wherever it is, and report it."""
        if req.num_steered and (finish.type != "stop" or req.is_whole):
            finish = replace(finish, steered=req.num_steered)
        req.finish = finish
        if req.residency is not None:
            if not req.is_resumed and "retractions" not in req.told.counts:
                uncomputed = req.tokens.prompt_len - req.held.computed_len
                self.waiting.credits.charge(req.wish.caller, -max(0, uncomputed))
            self._release(req)
        elif not req.wish.is_ahead:
            self.waiting.remove(req)
        self.waiting.credits.leave(req.wish.caller)
        self.live.remove(req)
        self.trials.remove(req)
        self.speculation.ended(req)
        self.media.release(req.handle)
        self.counters.aborted += finish.type == "abort"
        self.counters.closed += finish.closed
        if req.is_admitted and not req.wish.is_ahead:
            self.counters.ended += 1
            self.counters.ended_outputs += req.tokens.known_len - req.tokens.prompt_len
        self.outputs.end(req, finish)

    def count_outputs(self, req: Req, num_tokens: int) -> None:
        """The req has that many more."""
        self.counters.generation_tokens += num_tokens
        req.account.fresh += num_tokens

    def abort(self, req: Req, code: str, reason: str) -> None:
        """End a req as failed."""
        self.finish(req, Finish("abort", error=ErrorInfo(code, reason)))

    def _release(self, req: Req) -> None:
        self.memory.release(req)
        self.admissions.memory_changed()
