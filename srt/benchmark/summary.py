"""What `srt bench` says of a run."""

import datetime
from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from srt.benchmark.load import Run


class Spread(Struct):
    """Of a kind of times, in ms; percentiles are the nearest rank's."""

    mean: float
    p50: float
    p90: float
    p99: float


class Summary(Struct):
    """Of the requests that succeeded, unless it says otherwise. TTFT is the time to the first piece
    of text, TPOT that of each further token of a request that came in several pieces, ITL that
    between two pieces, latency that of the whole request. Rates are per second. `cached_share` of
    prompt tokens is what the server says, None if it does not; `loop_share` is that of the answers
    that end in a loop; `client_cpu_share` is what this client took of a core."""

    ok: int
    failed: int
    seconds: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    cached_share: float | None
    loop_share: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    latency_ms: Spread | None
    client_cpu_share: float


def summary_of(run: Run) -> Summary:
    """The figures of a run."""
    good = [record for record in run.records if record.error is None]
    seconds = max(run.wall_s, 1e-9)
    prompt, output = sum(r.prompt_tokens for r in good), sum(r.completion_tokens for r in good)
    told = [r for r in good if r.cached_tokens is not None]
    seen = sum(r.prompt_tokens for r in told)
    timed = [r for r in good if r.chunk_times]
    gaps = array("d")
    for record in good:
        gaps.extend(later - earlier for earlier, later in pairwise(record.chunk_times))
    return Summary(
        ok=len(good),
        failed=len(run.records) - len(good),
        seconds=run.wall_s,
        requests_per_s=len(good) / seconds,
        prompt_tokens_per_s=prompt / seconds,
        output_tokens_per_s=output / seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_share=sum(r.cached_tokens or 0 for r in told) / seen if seen else None,
        loop_share=sum(r.loops for r in good) / max(1, len(good)),
        ttft_ms=spread([r.chunk_times[0] - r.started for r in timed]),
        tpot_ms=spread([r.token_s for r in good if r.token_s is not None]),
        itl_ms=spread(gaps),
        latency_ms=spread([r.ended - r.started for r in good]),
        client_cpu_share=run.cpu_s / seconds,
    )


def spread(seconds: Sequence[float]) -> Spread | None:
    """Of these times; None if there are none."""
    if not len(seconds):
        return None
    ordered = np.sort(np.array(seconds, np.float64)) * 1000
    ranks = [max(1, -(-len(ordered) * percent // 100)) for percent in (50, 90, 99)]
    return Spread(float(ordered.mean()), *(float(ordered[rank - 1]) for rank in ranks))


def text_of(name: str, summary: Summary) -> str:
    """The figures, for the terminal."""
    s = summary
    cached = "" if s.cached_share is None else f", {100 * s.cached_share:.1f} % cached"
    prompt = f"{s.prompt_tokens} in all{cached}"
    lines = [
        f"{name}: {s.ok} requests ok, {s.failed} failed, in {s.seconds:.1f} s",
        f"  {'requests/s':18} {s.requests_per_s:10.2f}",
        f"  {'prompt tokens/s':18} {s.prompt_tokens_per_s:10.1f}   {prompt}",
        f"  {'output tokens/s':18} {s.output_tokens_per_s:10.1f}   {s.output_tokens} in all",
        f"  {'loops':18} {100 * s.loop_share:10.1f}   % of the answers end in one",
        f"  {'client':18} {100 * s.client_cpu_share:10.1f}   % of a core",
        f"  {'ms':18} {'mean':>10} {'p50':>10} {'p90':>10} {'p99':>10}",
    ]
    for title, times in (
        ("first token", s.ttft_ms),
        ("per output token", s.tpot_ms),
        ("between pieces", s.itl_ms),
        ("whole request", s.latency_ms),
    ):
        cells = [] if times is None else [times.mean, times.p50, times.p90, times.p99]
        lines.append(f"  {title:18} " + " ".join(f"{value:10.1f}" for value in cells))
    return "\n".join(lines)


def now() -> str:
    """The date and time of a report, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
