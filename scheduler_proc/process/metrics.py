"""The scheduler's numbers: for /metrics and /server_info, and one log line while it is busy; the
clock that times its steps, and how evenly tokens use a mixture's experts.
"""

import logging
from collections import deque
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.core.counters import Counters
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.steps.step import STEP_KINDS
from scheduler_proc.core.steps.step_cost import NOTHING, StepSize
from scheduler_proc.executor.base import Executor, expert_counts
from srt.wire.messages import DRAFT_SOURCES

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0
MAX_STEPS = 256
EXPERTS_WINDOW_S = 300.0
EXPERTS_INTERVAL_S = 15.0


class StepClock:
    """How long steps compute, and how long the executor waits between them although there is work:
    totals in seconds. Times are any monotonic clock's.

    `begin` and `end` are called in the compute thread, `rest` by the loop while no step runs. The
    exposed time is what scheduling costs the requests: with overlap it is next to nothing.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self.exposed_s = 0.0
        self.encode_s = 0.0  # of media; in neither of the two
        # Of each step since the last look: its tokens and its seconds, including the exposed ones
        # before it.
        self.steps: deque[tuple[StepSize, float]] = deque(maxlen=MAX_STEPS)
        self.began_s = 0.0  # when the newest step did
        self._since = 0.0
        self._ended: float | None = None  # None: there was nothing to do since

    def begin(self, now: float) -> None:
        """The executor starts on a step."""
        if self._ended is not None:
            self.exposed_s += now - self._ended
        self._since = now if self._ended is None else self._ended
        self.began_s = now

    def end(self, now: float, size: StepSize = NOTHING) -> None:
        """It has finished a step of this size, or failed one (nothing)."""
        self.step_s += now - self.began_s
        if size.tokens > 0:
            self.steps.append((size, now - self._since))
        self._ended = now

    def encoded(self, seconds: float, *, is_between: bool) -> None:
        """A part of an item, or a slice, took so long. If it was between two steps, the executor
        did not wait meanwhile, nor was it at the next step."""
        self.encode_s += seconds
        ended = self._ended
        if is_between and ended is not None:
            self._ended = ended + seconds

    def rest(self) -> None:
        """There is nothing to run: the time until the next step does not count."""
        self._ended = None


class _Counted(NamedTuple):
    """Tokens of each expert since the start, int64 [layers, experts], and when they were counted,
    in seconds."""

    at: float
    totals: np.ndarray


class ExpertLoad:
    """How unevenly the tokens of the last minutes have used the experts of `executor`'s model.

    The executor counts; here lie copies of its counts, one for each interval of busy time, and the
    newest, so that reading the figure never waits for a device.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._samples = deque[_Counted]()  # from before the window, or its start, on
        self._newest: np.ndarray | None = None

    def tick(self, now: float) -> None:
        """Called at every step, with the time of a monotonic clock."""
        if self._samples and now - self._samples[-1].at < EXPERTS_INTERVAL_S:
            return
        self.look()
        if self._newest is None:
            return
        self._samples.append(_Counted(now, self._newest))
        while len(self._samples) > 1 and now - self._samples[1].at >= EXPERTS_WINDOW_S:
            self._samples.popleft()

    def look(self) -> None:
        """Count anew: when steps have ended that no other one follows."""
        self._newest = expert_counts(self._executor)

    @property
    def max_over_mean(self) -> float:
        """Tokens of a layer's busiest expert by those of its mean one, in the layer where that is
        most; 0 without tokens in the window, or without experts."""
        if self._newest is None or not self._samples:
            return 0.0
        counts = self._newest - self._samples[0].totals
        used = counts[counts.sum(axis=1) > 0]
        return float((used.max(axis=1) / used.mean(axis=1)).max()) if len(used) else 0.0


def stats_of(
    core: Scheduler, executor: Executor, clock: StepClock, experts: ExpertLoad
) -> dict[str, Any]:
    """Gauges and totals, in requests, tokens, bytes, steps and seconds. `cache_hit_rate` is of the
    tokens of all prompts."""
    state, counters, media = core.state, core.state.counters, core.state.media
    pool, cache = state.memory.pool, state.memory.cache
    used = pool.size - pool.free_size - cache.evictable_size
    return {
        "executor": executor.name,
        "num_running_reqs": len(state.running),
        "num_queue_reqs": len(state.waiting),
        "num_used_tokens": used,
        "num_cached_tokens": cache.evictable_size + cache.protected_size,
        "num_free_tokens": pool.free_size,
        "max_total_tokens": pool.size,
        "token_usage": used / pool.size,
        "cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
        "cached_tokens_total": counters.cached_tokens,
        "prompt_tokens_total": counters.prompt_tokens,
        "computed_prompt_tokens_total": counters.computed_prompt_tokens,
        "generation_tokens_total": counters.generation_tokens,
        "jump_forward_tokens_total": counters.jump_forward_tokens,
        "closed_outputs_total": counters.closed,
        "num_requests_total": counters.requests,
        "num_aborted_requests_total": counters.aborted,
        "num_retracted_reqs_total": counters.retracted,
        "num_preempted_reqs_total": state.waiting.classes.num_preempted,
        **{f"num_{name}_reqs_total": count for name, count in state.waiting.classes.counts.items()},
        "num_resumed_reqs_total": counters.resumed,
        "recomputed_tokens_total": counters.recomputed_tokens,
        "verified_drafts_total": counters.verified_drafts,
        **_by_source(counters),
        "evicted_tokens_total": cache.evicted_total,
        "media_cache_bytes": media.num_bytes,
        "media_cache_hits_total": media.num_hits,
        "media_encoded_total": media.num_encoded,
        "media_encode_seconds_total": clock.encode_s,
        "new_token_ratio": state.admissions.ratio.value,
        "expert_load_max_over_mean": experts.max_over_mean,
        "forward_steps_total": counters.forward_steps,
        **{f"{kind}_steps_total": counters.steps[kind] for kind in STEP_KINDS},
        "forward_seconds_total": clock.step_s,
        "exposed_seconds_total": clock.exposed_s,
    }


def _by_source(counters: Counters) -> dict[str, int]:
    """Guessed tokens, one number for each source: numbers can be summed over replicas."""
    return {
        f"{name}_{source}_total": counts[source]
        for name, counts in (
            ("drafted_tokens", counters.drafted_tokens),
            ("accepted_draft_tokens", counters.accepted_draft_tokens),
        )
        for source in DRAFT_SOURCES
    }


class StatsLog:
    """Logs what happened since its last line, every LOG_INTERVAL_S of busy time, and has `experts`
    counted."""

    def __init__(self, core: Scheduler, experts: ExpertLoad) -> None:
        self._core, self._experts = core, experts
        self._since = 0.0
        self._before = deepcopy(core.state.counters)

    def tick(self, now: float) -> None:
        """Called at every step."""
        self._experts.tick(now)
        elapsed_s = now - self._since
        was_idle = self._since == 0.0 or elapsed_s > 4 * LOG_INTERVAL_S
        if not was_idle and elapsed_s < LOG_INTERVAL_S:
            return
        if not was_idle:
            self._log(elapsed_s)
        self._since, self._before = now, deepcopy(self._core.state.counters)

    def rest(self) -> None:
        """Called when there is nothing to run."""
        self._experts.look()

    def _log(self, elapsed_s: float) -> None:
        state, counters, before = self._core.state, self._core.state.counters, self._before
        num_prompt = counters.prompt_tokens - before.prompt_tokens
        hit_rate = (counters.cached_tokens - before.cached_tokens) / max(1, num_prompt)
        used = 1 - state.memory.easy_room / state.memory.pool.size
        log.info(
            "running %d, waiting %d, hit rate %.0f %%, prefill %.0f tok/s, decode %.0f tok/s, "
            "pool %.0f %% used%s",
            len(state.running),
            len(state.waiting),
            100 * hit_rate,
            (counters.computed_prompt_tokens - before.computed_prompt_tokens) / elapsed_s,
            (counters.generation_tokens - before.generation_tokens) / elapsed_s,
            100 * used,
            self._accept_length(),
        )

    def _accept_length(self) -> str:
        """Tokens of a row that verified guesses, as the end of the line; nothing without any."""
        counters, before = self._core.state.counters, self._before
        verified = counters.verified_drafts - before.verified_drafts
        accepted = sum(counters.accepted_draft_tokens.values())
        accepted -= sum(before.accepted_draft_tokens.values())
        return f", accept length {1 + accepted / verified:.2f}" if verified else ""
