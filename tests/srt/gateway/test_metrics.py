"""The gateway's latencies, from the snapshots of a request."""

import time

from srt.client.generation import GenerateOutput
from srt.gateway.metrics import WINDOW_S, GatewayMetrics, Latencies, Window
from srt.wire.ring_state import RingEvent


def test_tokens_that_come_at_once_share_their_time() -> None:
    """After the first token, three in one snapshot are three observations."""
    metrics = GatewayMetrics()
    timer = metrics.track(time.monotonic())
    for tokens in (1, 4):
        timer.on_snapshot(GenerateOutput(1, 0, tokens, rid="a", output_ids=[1] * tokens))
    lines = metrics.render(None, None).decode().splitlines()
    assert "srt_time_to_first_token_seconds_count 1.0" in lines
    assert "srt_inter_token_latency_seconds_count 3.0" in lines


def test_losses_have_their_part_and_kind() -> None:
    losses = [("scheduler", "hang", 2), ("scheduler", "signal", 1)]
    parts = {"scheduler": "ready"}
    ring = RingEvent(1, False, False, parts, losses=losses, pause_s=1.5, silent=["launcher"])
    lines = GatewayMetrics().render(None, ring).decode().splitlines()
    assert 'srt_losses_total{kind="hang",part="scheduler"} 2.0' in lines
    assert 'srt_losses_total{kind="signal",part="scheduler"} 1.0' in lines
    assert "srt_pause_seconds_total 1.5" in lines and "srt_up 0.0" in lines
    assert 'srt_silent{part="launcher"} 1.0' in lines
    assert 'srt_silent{part="scheduler"} 0.0' in lines


def test_replicas_have_families_of_their_own() -> None:
    """So that a sum over a family counts nothing twice."""
    replicas = [{"replica": i, "num_queue_reqs": i, "generation_tokens_total": 5} for i in (0, 1)]
    stats = {"num_queue_reqs": 1, "generation_tokens_total": 10, "replicas": replicas}
    lines = GatewayMetrics().render(stats, None).decode().splitlines()
    assert "srt_num_queue_reqs 1.0" in lines and "srt_generation_tokens_total 10.0" in lines
    assert 'srt_replica_num_queue_reqs{replica="1"} 1.0' in lines
    assert 'srt_replica_generation_tokens_total{replica="0"} 5.0' in lines
    assert "# TYPE srt_replica_generation_tokens_total counter" in lines


def test_guessed_tokens_have_their_source() -> None:
    counts = {"drafted_tokens_own_total": 6, "accepted_draft_tokens_tree_total": 4}
    stats = counts | {"replicas": [{"replica": 1} | counts]}
    lines = GatewayMetrics().render(stats, None).decode().splitlines()
    assert 'srt_drafted_tokens_total{source="own"} 6.0' in lines
    assert 'srt_accepted_draft_tokens_total{source="tree"} 4.0' in lines
    assert 'srt_replica_drafted_tokens_total{replica="1",source="own"} 6.0' in lines


def test_what_the_front_counts_is_no_replicas() -> None:
    front = {"num_tokenizing_reqs": 3, "num_grammar_compiled_total": 2}
    replicas = [{"replica": 0, "num_queue_reqs": 1} | front, {"replica": 1, "num_queue_reqs": 2}]
    metrics = GatewayMetrics()
    stats = {"num_queue_reqs": 3, "replicas": replicas} | front
    lines = metrics.render(stats, None).decode().splitlines()
    assert "srt_num_tokenizing_reqs 3.0" in lines
    told = [line for line in lines if line.startswith("srt_replica_")]
    assert told == [f'srt_replica_num_queue_reqs{{replica="{i}"}} {i + 1}.0' for i in (0, 1)]


def test_percentiles_of_the_last_minute() -> None:
    histogram = Latencies("x", "x", (1, 2, 4))
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
