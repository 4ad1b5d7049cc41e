"""The parts of the measurement. Each gives lines of a table: what was measured, and its target."""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from bench.fairness.traffic import RAMP_S, Served, Traffic, answered_share, rate, ttft_s

CLOSED = 16  # requests in flight, by which the capacity is measured
CALIBRATION_S = 16.0
MULTIPLES = (1.0, 3.0, 10.0, 100.0)
B_LOAD = 0.3  # of the capacity
SECONDS = 24.0  # of a load, at least
ALONE_S = 16.0  # of A alone at the same rate
LONG_TOKENS = 1000
FAIR_WAIT_S = 2.0  # --fair-wait
WEIGHTS_S = 24.0


class Line(NamedTuple):
    """A figure, its target in words, and whether it is met."""

    part: str
    what: str
    value: float
    target: str
    is_met: bool


class Measured:
    """What later parts need of earlier ones: the capacity in requests per second, and of B alone
    the p99 of its times to a first token, in s."""

    def __init__(self, served: Served, requests: int) -> None:
        self.served, self.requests = served, requests
        self.capacity = self.alone_p99_s = 0.0

    @property
    def b(self) -> Traffic:
        """What B sends."""
        return Traffic(rate=B_LOAD * self.capacity)

    @property
    def b_seconds(self) -> float:
        """How long B sends its requests."""
        return max(SECONDS, self.requests / self.b.rate)


async def calibrate(measured: Measured) -> AsyncIterator[Line]:
    """The capacity, and B alone: always first."""
    load = {"a": Traffic(concurrency=CLOSED)}
    measured.capacity = rate((await measured.served.send(load, CALIBRATION_S))["a"])
    if not measured.capacity:
        raise RuntimeError(f"nothing was answered within {CALIBRATION_S:g} s")
    yield Line("alone", "capacity, requests/s", measured.capacity, "", True)
    alone = (await measured.served.send({"b": measured.b}, measured.b_seconds, seed=10))["b"]
    measured.alone_p99_s = ttft_s(alone, 99)
    yield Line("alone", "B: answered", answered_share(alone), "1.0", answered_share(alone) == 1.0)
    yield Line("alone", "B: TTFT p99, s", measured.alone_p99_s, "", True)


async def load(measured: Measured, multiple: float) -> AsyncIterator[Line]:
    """A at a multiple of the capacity, alone and beside B."""
    part, offered = f"A at {multiple:g}x", Traffic(rate=multiple * measured.capacity)
    alone = (await measured.served.send({"a": offered}, ALONE_S, seed=20))["a"]
    before, restarts = await measured.served.steps(), measured.served.restarts()
    both = {"a": offered, "b": measured.b}
    reports = await measured.served.send(both, measured.b_seconds, seed=30)
    seconds, steps = (
        now - then for now, then in zip(await measured.served.steps(), before, strict=True)
    )
    restarts = measured.served.restarts() - restarts
    yield Line(part, "parts of the server that were restarted", restarts, "0", restarts == 0)
    share, p99_s = answered_share(reports["b"]), ttft_s(reports["b"], 99)
    yield Line(part, "B: answered", share, "1.0", share == 1.0)
    bound_s = 2 * measured.alone_p99_s + seconds / max(1.0, steps)
    yield Line(part, "B: TTFT p99, s", p99_s, f"<= {bound_s:.2f}", p99_s <= bound_s)
    yield Line(part, "B: TTFT p50, s", ttft_s(reports["b"], 50), "", True)
    yield Line(part, "A: answered", answered_share(reports["a"]), "", True)
    sent = len(reports["a"].exchanges) / offered.rate / reports["a"].seconds
    yield Line(part, "A: sent of what it was to send", sent, "", True)
    yield Line(part, "A's generator: cores", reports["a"].cpu_s / reports["a"].seconds, "", True)
    # At 1x, A alone is not at the limit: what both offer is.
    # A full queue refuses more of what comes, which costs less: so the same seconds of both count.
    together = sum(rate(report, ALONE_S) for report in reports.values()) / rate(alone)
    yield Line(part, "A and B / A alone, requests/s", together, ">= 0.97", together >= 0.97)


async def long_outputs(measured: Measured) -> AsyncIterator[Line]:
    """A holds all rows of the batch with outputs of LONG_TOKENS; B sends one request at a time."""
    both = {"a": Traffic(concurrency=256, max_tokens=LONG_TOKENS), "b": Traffic(concurrency=1)}
    reports = await measured.served.send(both, SECONDS, seed=40)
    late = [e.first - e.sent for e in reports["b"].exchanges if e.sent > RAMP_S]
    share, most_s = answered_share(reports["b"]), max(late, default=0.0)
    part, bound_s = f"A: {LONG_TOKENS} tokens", FAIR_WAIT_S + 2 * measured.alone_p99_s
    yield Line(part, "B: answered", share, "1.0", share == 1.0)
    yield Line(part, "B: TTFT max, s", most_s, f"<= {bound_s:.2f}", 0 < most_s <= bound_s)


async def weights(measured: Measured) -> AsyncIterator[Line]:
    """Keys of the shares 1 and 4, which both ask for more than all."""
    offered = Traffic(rate=3 * measured.capacity)
    reports = await measured.served.send({"one": offered, "four": offered}, WEIGHTS_S, seed=50)
    ratio = rate(reports["four"]) / max(1e-9, rate(reports["one"]))
    yield Line(
        "shares 1 : 4", "tokens of 4 / tokens of 1", ratio, "3.6 to 4.4", 3.6 <= ratio <= 4.4
    )


Part = Callable[[Measured], AsyncIterator[Line]]


def _at(multiple: float) -> Part:
    return lambda measured: load(measured, multiple)


PARTS: dict[str, Part] = {
    **{f"{multiple:g}x": _at(multiple) for multiple in MULTIPLES},
    "long": long_outputs,
    "shares": weights,
}
