"""Figures of a run, as results keep them, and the table that is printed."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from bench.guesses import Guesses
from srt.benchmark.load import Record, Run


class Figures(Struct, kw_only=True):
    """What a run measured. Latencies are in ms; None where the server gave no number.

    TPOT is the time of each token of a request after its first, ITL the time between chunks of
    text, which may be several tokens. The hit rate is the server's own count of cached tokens over
    prompt tokens. `loop_share` of the answers end in a loop (`srt/benchmark/loops.py`);
    `guessed_share` of the output tokens were guessed by the server, and `accept_length` is what a
    step that verified guesses gave a request.
    """

    requests: int
    errors: int
    wall_s: float
    client_cpu_s: float
    out_tokens: int
    out_tok_s: float
    prompt_tokens: int
    cached_tokens: int | None
    prompt_tok_s: float
    prompt_tokens_min: int
    prompt_tokens_mean: float
    prompt_tokens_max: int
    hit_rate: float | None
    loop_share: float
    accept_length: float | None
    guessed_share: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    itl_max_ms: float | None


COLUMNS = {
    "requests": "reqs",
    "errors": "err",
    "wall_s": "wall s",
    "out_tok_s": "out tok/s",
    "prompt_tok_s": "prompt tok/s",
    "hit_rate": "hit rate",
    "loop_share": "loops",
    "accept_length": "accept len",
    "guessed_share": "guessed",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "p99",
    "tpot_p50_ms": "TPOT p50 ms",
    "tpot_p99_ms": "p99",
    "itl_p50_ms": "ITL p50 ms",
    "itl_p99_ms": "p99",
    "itl_max_ms": "max",
    "prompt_tokens_min": "prompt min",
    "prompt_tokens_mean": "mean",
    "prompt_tokens_max": "max",
    "client_cpu_s": "client cpu s",
}


SHARES = ("hit_rate", "loop_share", "guessed_share")


def figures_of(run: Run, guesses: Guesses | None = None) -> Figures:
    """The figures of the requests that succeeded; `guesses` are what the server counted."""
    good = [r for r in run.records if r.error is None]
    drafts = guesses or Guesses()
    lengths = [r.prompt_tokens for r in good] or [0]
    out_tokens = sum(r.completion_tokens for r in good)
    told = [r.cached_tokens for r in good if r.cached_tokens is not None]
    ttft = [(r.chunk_times[0] - r.started) * 1000 for r in good if r.chunk_times]
    tpot = [1000 * r.token_s for r in good if r.token_s is not None]
    itl = [(later - earlier) * 1000 for r in good for earlier, later in pairwise(r.chunk_times)]
    return Figures(
        requests=len(run.records),
        errors=len(run.records) - len(good),
        wall_s=run.wall_s,
        client_cpu_s=run.cpu_s,
        out_tokens=out_tokens,
        out_tok_s=out_tokens / run.wall_s,
        prompt_tokens=sum(lengths),
        cached_tokens=sum(told) if told else None,
        prompt_tok_s=sum(lengths) / run.wall_s,
        prompt_tokens_min=min(lengths),
        prompt_tokens_mean=sum(lengths) / len(lengths),
        prompt_tokens_max=max(lengths),
        hit_rate=_hit_rate(good),
        loop_share=sum(r.loops for r in good) / max(1, len(good)),
        accept_length=drafts.accept_length,
        guessed_share=drafts.accepted / max(1, out_tokens) if drafts.verified else None,
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p99_ms=percentile(ttft, 99),
        tpot_p50_ms=percentile(tpot, 50),
        tpot_p99_ms=percentile(tpot, 99),
        itl_p50_ms=percentile(itl, 50),
        itl_p99_ms=percentile(itl, 99),
        itl_max_ms=percentile(itl, 100),
    )


def _hit_rate(records: Sequence[Record]) -> float | None:
    told = [r for r in records if r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens for r in told)
    return sum(r.cached_tokens or 0 for r in told) / prompt if prompt else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def table(rows: dict[str, Figures]) -> str:
    """One line per workload, for the terminal."""
    lines = [["workload", *COLUMNS.values()]]
    for name, figures in rows.items():
        lines.append([name, *(_cell(column, getattr(figures, column)) for column in COLUMNS)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column in SHARES:
        return f"{100 * value:.1f}%"
    return str(value) if isinstance(value, int) else f"{value:.1f}"
