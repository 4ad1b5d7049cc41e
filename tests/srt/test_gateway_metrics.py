"""The gateway's latencies against prometheus_client's own histogram."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from srt.gateway.metrics import GatewayMetrics, _Histogram

BOUNDS = (0.001, 0.03, 0.5, 2, 400)


@given(st.lists(st.tuples(st.sampled_from([*BOUNDS, 0.0, 0.01, 0.4999, 500.0]), st.integers(1, 9))))
def test_histograms_are_exposed_as_the_librarys(values: list[tuple[float, int]]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    theirs = Histogram("srt_x", "Text.", buckets=BOUNDS, registry=registries[0])
    ours = _Histogram("srt_x", "Text.", BOUNDS)
    registries[1].register(ours)
    for value, count in values:
        ours.observe(value, count)
        for _ in range(count):
            theirs.observe(value)
    expected, got = (generate_latest(registry).decode().splitlines() for registry in registries)
    expected = [line for line in expected if "_created" not in line]
    assert [line for line in got if "_sum" not in line] == [
        line for line in expected if "_sum" not in line
    ]
    assert abs(_total(got) - _total(expected)) < 1e-6


def _total(lines: list[str]) -> float:
    (line,) = [line for line in lines if line.startswith("srt_x_sum")]
    return float(line.split(" ")[1])


def test_tokens_that_come_at_once_share_their_time() -> None:
    """Three tokens in one snapshot are three observations of a third of the time each."""
    metrics = GatewayMetrics()
    metrics._itl.observe(0.004, 3)
    lines = metrics.render(None).decode().splitlines()
    assert 'srt_inter_token_latency_seconds_bucket{le="0.005"} 3.0' in lines
    assert "srt_inter_token_latency_seconds_count 3.0" in lines
    assert "srt_inter_token_latency_seconds_sum 0.012" in lines
