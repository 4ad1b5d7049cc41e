"""The figures that `srt bench` shows."""

import pytest

from srt.benchmark.load import Record, Run
from srt.benchmark.summary import spread, summary_of, text_of


def test_spreads() -> None:
    found = spread([i / 1000 for i in range(1, 101)])
    assert found is not None
    assert (found.p50, found.p90, found.p99) == pytest.approx((50, 90, 99))
    assert found.mean == pytest.approx(50.5)
    assert spread([]) is None


def test_a_run() -> None:
    good = Record(
        started=1.0, ended=2.0, chunk_times=[1.1, 1.3, 1.9], prompt_tokens=10,
        cached_tokens=4, completion_tokens=5,
    )  # fmt: skip
    silent = Record(started=1.0, ended=1.5, prompt_tokens=10, completion_tokens=1, loops=True)
    found = summary_of(Run([good, silent, Record(started=1.0, error="no")], 2.0, 0.5))
    assert (found.ok, found.failed, found.requests_per_s) == (2, 1, 1.0)
    assert (found.prompt_tokens_per_s, found.output_tokens_per_s) == (10.0, 3.0)
    assert found.cached_share == 0.4 and found.loop_share == 0.5 and found.client_cpu_share == 0.25
    assert found.ttft_ms and found.ttft_ms.p50 == pytest.approx(100)
    assert found.tpot_ms and found.tpot_ms.mean == pytest.approx(200)
    assert found.itl_ms and found.itl_ms.p99 == pytest.approx(600)
    assert found.latency_ms and found.latency_ms.mean == pytest.approx(750)
    text = text_of("x", found)
    assert text.startswith("x: 2 requests ok, 1 failed") and "40.0 % cached" in text
    assert "50.0   % of the answers end in one" in text


def test_a_run_of_nothing() -> None:
    found = summary_of(Run([], 0.0, 0.0))
    assert (found.ok, found.ttft_ms, found.cached_share) == (0, None, None)
    assert text_of("x", found)
