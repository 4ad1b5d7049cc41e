"""What the parts of the scheduler core share: every req, where it is, and the memory it holds.

The core moves reqs from the queue into the batch, back (retracted), and out of it, only by
the methods here. Invariant: a req that has not ended is in `waiting` or in `running`, not in both.
"""

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from scheduler_proc.core.drafting.speculation import Speculation
from scheduler_proc.core.quarantine import Trials
from scheduler_proc.core.requests.admission import NewTokenRatio
from scheduler_proc.core.requests.allocations import ReqMemory
from scheduler_proc.core.requests.outputs import OutputBuffer
from scheduler_proc.core.requests.queue import WaitingQueue
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.steps.step import STEP_KINDS
from scheduler_proc.media.encoder_cache import EncoderCache
from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.memory.block_hashes import BlockHashes
from scheduler_proc.memory.pools import ReqToTokenPool, TokenPool
from scheduler_proc.memory.prefix_cache import NoCache, PrefixCache
from scheduler_proc.memory.radix_cache import RadixCache
from srt.wire.errors import ErrorInfo
from srt.wire.messages import DRAFT_SOURCES, Finish


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
    schedule_policy: str = "lpm"
    max_wait_s: float = 30.0
    disable_radix_cache: bool = False
    random_seed: int = 0
    media: MediaFacts | None = None  # None: the model sees none
    media_cache_bytes: int = 1 << 29
    block_model: str | None = None
    speculative: str = "off"
    speculative_max_tokens: int = 8


def _by_source() -> dict[str, int]:
    return dict.fromkeys(DRAFT_SOURCES, 0)


@dataclass(slots=True)
class Counters:
    """Totals since the start, in requests, tokens and steps."""

    requests: int = 0
    admitted: int = 0  # into the batch, for the first time
    ended: int = 0  # of those, and the outputs that they had
    ended_outputs: int = 0
    aborted: int = 0
    retracted: int = 0
    prompt_tokens: int = 0  # of admitted reqs
    cached_tokens: int = 0  # of those, found in the tree
    computed_prompt_tokens: int = 0  # run through the model, retracted reqs' again
    generation_tokens: int = 0
    jump_forward_tokens: int = 0  # of those, forced by a grammar
    forward_steps: int = 0
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEP_KINDS, 0))
    closed: int = 0  # constrained outputs that were steered to their end
    resumed: int = 0  # requests that an earlier scheduler had
    recomputed_tokens: int = 0  # of these, when they were admitted: all that was not cached
    verified_drafts: int = 0  # rows with guessed tokens; these by their source, and the right ones
    drafted_tokens: dict[str, int] = field(default_factory=_by_source)
    accepted_draft_tokens: dict[str, int] = field(default_factory=_by_source)

    def verified(self, source: str, drafted: int, accepted: int) -> None:
        """A row has verified `drafted` guessed tokens, of which `accepted` were right."""
        self.verified_drafts += 1
        for counts, more in (
            (self.drafted_tokens, drafted),
            (self.accepted_draft_tokens, accepted),
        ):
            counts[source] = counts.get(source, 0) + more


class SchedulerState:
    """The reqs of one core. `memory_changed` says whether one has left the batch or come into the
    queue since it was last cleared: then admission is worth another look. `now` is the time of the
    newest plan."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.rng = random.Random(config.random_seed)
        self.pool = TokenPool(config.max_total_tokens)
        self.table = ReqToTokenPool(config.max_running_requests, config.context_len)
        hashes = None if config.block_model is None else BlockHashes(config.block_model)
        self.cache: PrefixCache = (
            NoCache() if config.disable_radix_cache else RadixCache(self.pool, hashes)
        )
        self.waiting = WaitingQueue(config.schedule_policy, config.max_wait_s, self.rng, self.cache)
        self.running: dict[int, Req] = {}  # by handle, in order of admission
        self.memory = ReqMemory(self.pool, self.table, self.cache, self.running)
        self.counters = Counters()
        self.new_token_ratio = NewTokenRatio()
        self.outputs = OutputBuffer()
        self.trials = Trials()
        self.speculation = Speculation(
            config.speculative, config.speculative_max_tokens, self.cache
        )
        embedding_bytes = 0 if config.media is None else config.media.embedding_bytes
        self.media = EncoderCache(config.media_cache_bytes, embedding_bytes)
        self.by_key: dict[tuple[bytes, str], Req] = {}
        self._timed: dict[int, Req] = {}  # by handle: those of them that have a deadline
        self.memory_changed = False
        self.now = 0.0

    def add(self, req: Req) -> None:
        """Queue a new req."""
        self.by_key[req.key] = req
        if req.wish.deadline_s:
            self._timed[req.handle] = req
        self.waiting.add(req)
        self.trials.add(req)
        self.memory_changed = True

    def start(self, req: Req) -> None:
        """Lock the cached prefix of a waiting req and give it a table row that begins with it."""
        prefix_len = self.memory.enter(req)
        if req.cached_tokens is None:
            req.cached_tokens = min(prefix_len, req.tokens.prompt_len)
            req.queued_s = self.now - req.came_s
            self.counters.admitted += 1
            self.counters.prompt_tokens += req.tokens.prompt_len
            self.counters.cached_tokens += req.cached_tokens
            self.counters.resumed += req.is_resumed
            self.counters.recomputed_tokens += (
                req.tokens.known_len - prefix_len if req.is_resumed else 0
            )
            self.outputs.admitted(req)
        self.waiting.remove(req)
        self.running[req.handle] = req

    def retract(self, req: Req) -> None:
        """Send a running req back to the queue; it will be extended again from what is cached."""
        self._release(req)
        self.media.release(req.handle)
        self.counters.retracted += 1
        self.new_token_ratio.raise_after_retraction(self.running.values())
        self.waiting.add(req)

    def finish(self, req: Req, finish: Finish) -> None:
        """End a req, wherever it is, and report it."""
        if req.num_steered and (finish.type != "stop" or req.is_whole):
            finish = replace(finish, steered=req.num_steered)
        req.finish = finish
        if req.residency is not None:
            self._release(req)
        else:
            self.waiting.remove(req)
        del self.by_key[req.key]
        self._timed.pop(req.handle, None)
        self.trials.remove(req)
        self.speculation.ended(req)
        self.media.release(req.handle)
        self.counters.aborted += finish.type == "abort"
        self.counters.closed += finish.closed
        if req.cached_tokens is not None:
            self.counters.ended += 1
            self.counters.ended_outputs += req.tokens.known_len - req.tokens.prompt_len
        self.outputs.end(req, finish)

    def abort(self, req: Req, code: str, reason: str) -> None:
        """End a req as failed."""
        self.finish(req, Finish("abort", error=ErrorInfo(code, reason)))

    def late(self, now: float) -> list[Req]:
        """The reqs whose time is over."""
        return [req for req in self._timed.values() if req.wish.deadline_s <= now]

    def _release(self, req: Req) -> None:
        self.memory.release(req)
        self.memory_changed = True
