"""Prometheus metrics: latencies seen by the gateway, counters read from the scheduler.

The registry is private to one gateway, so that tests and embedders can have several. Scheduler
values are fetched at each scrape; nothing is polled.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from srt.client.generation import GenerateOutput
from srt.wire.messages import DRAFT_SOURCES
from srt.wire.ring_state import LAUNCHER, RingEvent

GAUGES = {
    "num_running_reqs": "Requests in the running batch.",
    "num_queue_reqs": "Requests waiting to be scheduled.",
    "generation_paused": "1 from /pause_generation to /continue_generation, 0 otherwise.",
    "num_tokenizing_reqs": "Requests whose text waits to be tokenized, or is.",
    "expected_queue_wait_seconds": "Wait that a request which came now would have.",
    "num_used_tokens": "KV slots that running requests hold.",
    "num_grammar_queue_reqs": "Requests waiting for their constraint to be compiled.",
    "num_media_queue_reqs": "Requests waiting for their images and videos to be decoded.",
    "media_held_bytes": "Files and pixels of requests in flight that the tokenizer holds.",
    "max_total_tokens": "KV slots in the pool.",
    "token_usage": "Fraction of the KV slots in use.",
    "cache_hit_rate": "Cached prompt tokens per prompt token.",
    "media_cache_bytes": "Bytes of embeddings of images and videos, kept or on their way.",
    "new_token_ratio": "Expected share of max_new_tokens that requests will use.",
    "expert_load_max_over_mean": "Tokens of the busiest expert per mean expert, of 5 minutes.",
}
COUNTERS = {
    "cached_tokens_total": "Prompt tokens taken from the prefix cache.",
    "prompt_tokens_total": "Prompt tokens of all requests.",
    "generation_tokens_total": "Generated tokens.",
    "jump_forward_tokens_total": "Of those, forced by a constraint and not sampled.",
    "closed_outputs_total": "Constrained outputs that were steered to their end.",
    "num_requests_total": "Requests that reached the scheduler.",
    "num_aborted_requests_total": "Requests that were aborted.",
    "num_retracted_reqs_total": "Times a running request was put back into the queue.",
    "num_preempted_reqs_total": "Of those, for a higher class of the same caller.",
    "num_flex_reqs_total": "Requests of the class flex that were admitted into the batch.",
    "num_default_reqs_total": "Those of the class default.",
    "num_priority_reqs_total": "Those of the class priority.",
    "num_resumed_reqs_total": "Requests taken over from a scheduler that was lost.",
    "recomputed_tokens_total": "Their tokens that were computed again.",
    "verified_drafts_total": "Rows of forward passes that verified guessed tokens.",
    "evicted_tokens_total": "Cached tokens given up to make room.",
    "media_cache_hits_total": "Images and parts of videos that were needed and found encoded.",
    "media_encoded_total": "Images and parts of videos that were encoded.",
    "media_encode_seconds_total": "Time in which they were encoded, between forward passes.",
    "forward_steps_total": "Forward passes.",
    "decode_steps_total": "Of those, of decodes alone.",
    "verify_steps_total": "Of those, of decodes some of which verified guessed tokens.",
    "prefill_steps_total": "Of those, of parts of prompts alone.",
    "mixed_steps_total": "Of those, of both.",
    "forward_seconds_total": "Time in forward passes.",
    "exposed_seconds_total": "Time between forward passes in which there was work.",
    "num_grammar_compiled_total": "Constraints compiled.",
    "num_grammar_cache_hit_total": "Constraints found compiled.",
    "num_grammar_invalid_total": "Constraints that could not be compiled.",
    "num_grammar_timed_out_total": "Compilations over the time limit.",
    "num_grammar_failed_total": "Compilations over the memory limit, on a full disk, or crashed.",
    "num_grammar_refused_total": "Requests refused because too many constraints waited.",
    "num_grammar_cancelled_total": "Requests that were gone before their constraint was compiled.",
    "num_media_decoded_total": "Images and videos decoded by the tokenizer's children.",
    "num_media_known_total": "Images and videos that were known and not decoded for a request.",
    "grammar_compilation_seconds_total": "Time in compilations that came to an end.",
}
# By the source of the guesses: the statistics have one number for each.
DRAFT_COUNTERS = {
    "drafted_tokens_total": "Guessed tokens that were verified, by what they were guessed from.",
    "accepted_draft_tokens_total": "Of those, taken over: the model would have sampled them.",
}
# Of callers with keys, by name; those beyond a bound, and others, are one. From the front's counts.
CALLER_GAUGES = {"caller_in_flight": "Requests in flight, by caller."}
CALLER_COUNTERS = {
    "caller_requests_total": "Requests that were taken, by caller.",
    "caller_refused_total": "Requests that were refused, by caller.",
    "caller_gave_way_total": "Requests that gave way to other callers', by caller.",
    "caller_prompt_tokens_total": "Tokens of prompts, by caller.",
    "caller_output_tokens_total": "Generated tokens of requests that have ended, by caller.",
}
# Of programs, by the names of the part's counts.
PROGRAM_GAUGES = {
    "sessions": "Open sessions of programs.",
    "vars": "Variables in them.",
    "gets": "Gets that wait.",
    "bytes": "Memory that programs have taken, about.",
    "calls.pending": "Calls that wait for their turn.",
    "calls.running": "Calls that run.",
}
PROGRAM_COUNTERS = {
    "submits.total": "Programs that were submitted.",
    "sessions.gave_way.total": "Sessions that were ended to make room for other callers.",
    "transforms.total": "Transforms that have ended.",
    "ahead.tokens.total": "Prompt tokens that were computed ahead of time.",
    "ahead.wasted_tokens.total": "Of these, tokens of calls that never began.",
}
_FAMILIES = {True: GaugeMetricFamily, False: CounterMetricFamily}  # by whether it is a gauge
CALL_STATES = ("ready", "skipped", "failed", "cancelled")
# What the front counts for all replicas, which comes with the statistics of one of them.
_OF_FRONT = {"num_tokenizing_reqs", "expected_queue_wait_seconds", "generation_paused"} | {
    name
    for name in GAUGES | COUNTERS
    if name.startswith(("num_grammar_", "grammar_", "num_media_", "media_held_"))
}
_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100, 200, 400)
_TOKEN_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.15, 0.3, 0.6, 2)
WINDOW_S = 60.0
_SHARES = (0.5, 0.99)

Counts = list[tuple[float, float]]  # upper bounds in seconds, and how many were at most that


class Latencies(Collector):
    """A histogram of seconds, of one thread: prometheus_client's takes several times as long for
    each value."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, [*bounds, inf]
        self._counts, self._sum = [0] * len(self._bounds), 0.0
        self._created = time.time()

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count a value, so many times."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def collect(self) -> list[Metric]:
        totals = map(float, accumulate(self._counts))
        buckets = list(zip(map(floatToGoString, self._bounds), totals, strict=True))
        metric = HistogramMetricFamily(self._name, self._text, buckets, self._sum)
        metric.add_sample(f"{self._name}_created", {}, self._created)
        return [metric]


class GatewayMetrics:
    """All metrics of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._ttft = Latencies(
            "srt_time_to_first_token_seconds",
            "From the request's arrival to its first token (streamed requests).",
            _LATENCY_BUCKETS_S,
        )
        self._itl = Latencies(
            "srt_inter_token_latency_seconds",
            "Time between tokens (streamed requests).",
            _TOKEN_BUCKETS_S,
        )
        self._e2e = Latencies(
            "srt_e2e_request_latency_seconds",
            "From the request's arrival to its last token.",
            _LATENCY_BUCKETS_S,
        )
        for latencies in (self._ttft, self._itl, self._e2e):
            self._registry.register(latencies)
        text = "Requests with a wrong API key."
        self.failed_keys = Counter("srt_failed_keys", text, registry=self._registry)
        self._windows = Window(self._ttft), Window(self._itl)
        self._scheduler = _SchedulerStats()
        self._registry.register(self._scheduler)

    def latencies(self) -> dict[str, list[float] | None]:
        """p50 and p99 of the last minute, in seconds, as far as this was called in it."""
        return {"ttft_s": self._windows[0].percentiles(), "itl_s": self._windows[1].percentiles()}

    def track(self, started: float) -> "RequestTimer":
        """A timer for one request that arrived at `started` (time.monotonic())."""
        return RequestTimer(self._ttft, self._itl, self._e2e, started)

    def render(
        self,
        stats: Mapping[str, Any] | None,
        ring: RingEvent | None,
        programs: Mapping[str, float] | None = None,
    ) -> bytes:
        """The text exposition with the scheduler's `stats`, None when it did not answer, what was
        last heard of the `ring`, and the counts of `programs`."""
        self._scheduler.stats, self._scheduler.ring = stats, ring
        self._scheduler.programs = programs
        return generate_latest(self._registry)


class RequestTimer:
    """Observes the latencies of one request from its snapshots."""

    def __init__(self, ttft: Latencies, itl: Latencies, e2e: Latencies, started: float) -> None:
        self._ttft = ttft
        self._itl = itl
        self._e2e = e2e
        self._started = started
        self._last = started
        self._tokens = 0

    def on_snapshot(self, output: GenerateOutput) -> None:
        """Account for the tokens that are new in `output`."""
        now = time.monotonic()
        new = output.completion_tokens - self._tokens
        if new > 0 and self._tokens == 0:
            self._ttft.observe(now - self._started)
        elif new > 0:
            self._itl.observe((now - self._last) / new, new)
        if new > 0:
            self._tokens, self._last = output.completion_tokens, now
        if output.finish is not None:
            self.on_result()

    def on_result(self) -> None:
        """Record a complete request."""
        self._e2e.observe(time.monotonic() - self._started)


class Window:
    """What `histogram` has counted in the last WINDOW_S, as far as somebody asked."""

    def __init__(self, histogram: Latencies, clock: Callable[[], float] = time.monotonic) -> None:
        self._histogram, self._clock = histogram, clock
        self._seen: deque[tuple[float, Counts]] = deque()

    def percentiles(self) -> list[float] | None:
        """p50 and p99 in seconds, each within its bucket by rule of three; None where nothing was
        counted since the first call of the window."""
        now, counts = self._clock(), self._counts()
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, counts))
        before = self._seen[0][1]
        gained = [(bound, n - m) for (bound, n), (_, m) in zip(counts, before, strict=True)]
        if not gained or gained[-1][1] <= 0:
            return None
        return [_at(gained, share) for share in _SHARES]

    def _counts(self) -> Counts:
        (metric,) = self._histogram.collect()
        samples = [each for each in metric.samples if each.name.endswith("_bucket")]
        return [(float(each.labels["le"]), each.value) for each in samples]


def _at(counts: Sequence[tuple[float, float]], share: float) -> float:
    """The value that `share` of what was counted does not exceed; the last finite bound where it is
    beyond that."""
    wanted = share * counts[-1][1]
    for (low, below), (high, upto) in pairwise([(0.0, 0.0), *counts]):
        if upto >= wanted:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (upto - below)
    raise AssertionError("the last bucket holds all")


class _SchedulerStats:
    """A prometheus collector over the last statistics that schedulers sent, and the ring's. With
    several replicas there are their sums, and the values of each."""

    def __init__(self) -> None:
        self.stats: Mapping[str, Any] | None = None
        self.ring: RingEvent | None = None
        self.programs: Mapping[str, float] | None = None

    def collect(self) -> Iterator[Metric]:
        up = 0 if self.stats is None else 1
        yield GaugeMetricFamily("srt_up", "Whether the scheduler answered.", value=up)
        stats = self.stats or {}
        for name, text in (GAUGES | COUNTERS).items():
            if name in stats:
                yield _FAMILIES[name in GAUGES](f"srt_{name}", text, value=stats[name])
        yield from _of_drafts(stats)
        yield from _of_callers(stats)
        yield from _of_replicas(stats.get("replicas", []))
        if self.ring is not None:
            yield from _of_ring(self.ring)
        if self.programs is not None:
            yield from _of_programs(self.programs)


def _of_replicas(replicas: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The same of each replica, under names of their own: others are the sums of these."""
    for name, text in (GAUGES | COUNTERS).items():
        kind = _FAMILIES[name in GAUGES]
        family = kind(f"srt_replica_{name}", f"By replica: {text}", labels=("replica",))
        for stats in replicas:
            if name in stats and name not in _OF_FRONT:
                family.add_metric((str(stats["replica"]),), stats[name])
        if family.samples:
            yield family


def drafts_name(counter: str, source: str) -> str:
    """The name that statistics have for one of DRAFT_COUNTERS of one source."""
    return f"{counter.removesuffix('_total')}_{source}_total"


def _of_drafts(stats: Mapping[str, Any]) -> Iterator[Metric]:
    replicas = [((str(each["replica"]),), each) for each in stats.get("replicas", [])]
    for counter, text in DRAFT_COUNTERS.items():
        of_all = CounterMetricFamily(f"srt_{counter}", text, labels=("source",))
        name, note = f"srt_replica_{counter}", f"By replica: {text}"
        of_each = CounterMetricFamily(name, note, labels=("replica", "source"))
        for family, parts in ((of_all, [((), stats)]), (of_each, replicas)):
            for labels, part in parts:
                for source in DRAFT_SOURCES:
                    if (key := drafts_name(counter, source)) in part:
                        family.add_metric((*labels, source), part[key])
            if family.samples:
                yield family


def _of_callers(stats: Mapping[str, Any]) -> Iterator[Metric]:
    """The statistics have each count of a caller under its name, a slash and the caller's."""
    names = CALLER_GAUGES | CALLER_COUNTERS
    families = {
        name: _FAMILIES[name in CALLER_GAUGES](f"srt_{name}", text, labels=("caller",))
        for name, text in names.items()
    }
    for key, value in stats.items():
        name, has_caller, caller = key.partition("/")
        if has_caller and name in families:
            families[name].add_metric((caller,), value)
    yield from (family for family in families.values() if family.samples)


def _of_ring(ring: RingEvent) -> Iterator[Metric]:
    text = "Messages inside the server that made no sense and were dropped."
    yield GaugeMetricFamily("srt_dropped_messages", text, value=ring.dropped)
    text = "Processes of the server that were lost: by a signal, an exit or a hang."
    losses = CounterMetricFamily("srt_losses", text, labels=("part", "kind"))
    for part, kind, count in ring.losses:
        losses.add_metric((part, kind), count)
    yield losses
    text = "Whether nothing is heard of the process: 1, or 0 once it is heard again."
    silent = GaugeMetricFamily("srt_silent", text, labels=("part",))
    for part in (LAUNCHER, *ring.parts):
        silent.add_metric((part,), part in ring.silent)
    yield silent
    text = "Time in which requests waited for the next scheduler."
    yield CounterMetricFamily("srt_pause_seconds", text, value=ring.pause_s)


def _of_programs(counts: Mapping[str, float]) -> Iterator[Metric]:
    for name, text in (PROGRAM_GAUGES | PROGRAM_COUNTERS).items():
        full = f"srt_programs_{name.replace('.', '_')}"
        yield _FAMILIES[name in PROGRAM_GAUGES](full, text, value=counts[name])
    text = "Calls of programs that have ended, by the state of their last output."
    calls = CounterMetricFamily("srt_programs_calls", text, labels=("state",))
    for state in CALL_STATES:
        calls.add_metric((state,), counts[f"calls.{state}.total"])
    yield calls
