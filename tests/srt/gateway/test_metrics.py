"""The gateway's latencies, from the snapshots of a request."""

import time

from srt.client.generation import GenerateOutput
from srt.gateway.metrics import GatewayMetrics


def test_tokens_that_come_at_once_share_their_time() -> None:
    """After the first token, three in one snapshot are three observations."""
    metrics = GatewayMetrics()
    timer = metrics.track(time.monotonic())
    for tokens in (1, 4):
        timer.on_snapshot(GenerateOutput("a", "", "", [1] * tokens, 1, 0, tokens))
    lines = metrics.render(None).decode().splitlines()
    assert "srt_time_to_first_token_seconds_count 1.0" in lines
    assert "srt_inter_token_latency_seconds_count 3.0" in lines
