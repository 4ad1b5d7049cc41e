"""Percentiles of a window, from a histogram's buckets."""

from prometheus_client import CollectorRegistry, Histogram

from srt.gateway.watch.latencies import WINDOW_S, Window


def test_percentiles_of_the_last_minute() -> None:
    histogram = Histogram("x", "x", buckets=(1, 2, 4), registry=CollectorRegistry())
    now = [0.0]
    window = Window(histogram, clock=lambda: now[0])
    histogram.observe(3)  # before anybody asked
    assert window.percentiles() is None
    for _ in range(100):
        histogram.observe(1.5)
    now[0] = 10
    assert window.percentiles() == [1.5, 1.99]
    for _ in range(900):
        histogram.observe(0.5)
    now[0] = 20
    found = window.percentiles()
    assert found is not None and found[0] < 1 < found[1] <= 2
    now[0] = 20 + WINDOW_S
    assert window.percentiles() is None  # nothing since 20 s
    histogram.observe(100)
    now[0] += 1
    assert window.percentiles() == [4, 4]  # beyond the last bound
