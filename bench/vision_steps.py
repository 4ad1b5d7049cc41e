"""`python -m bench.vision_steps`: what streams of text notice of pictures, in simulated time.

The real scheduler core plans the steps; what runs them only takes time, on a clock that jumps.
While streams decode, pictures of 12 MP come at once, of 17 tiles each, or of one where a tile takes
long. A tower encodes a tile between two steps, or on a CPU a slice of one. Nothing depends on the
machine that computes this: each run gives the same.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bench.figures import percentile
from bench.hit_rate.simulator import DEFAULTS, StepCost
from bench.roofline import markdown
from bench.scheduler import null_result
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_target import CostMeter
from scheduler_proc.media.spans import MediaFacts
from srt.wire.filled_params import FilledParams
from srt.wire.media import MediaItem, MediaSpan
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

STREAMS, STEPS_ALONE = 4, 400
TILE, TILE_TOKENS, HIDDEN = 512, 64, 576
VOCAB, QUESTION = 49152, 20
POOL = 100_000


class Machine(NamedTuple):
    """What steps and tiles take, in seconds. If it slices, a tile is paused when its time is
    over."""

    name: str
    cost: StepCost
    tile_s: float
    tiles: int  # of a picture
    slices: bool


MACHINES = (
    Machine("a GPU: steps of 20 ms, tiles of 4 ms", StepCost(0.020, 0.0, 0.0), 0.004, 17, False),
    Machine("two cores: 17 and 900 ms, whole", StepCost(0.015, 0.0005, 0.001), 0.9, 1, False),
    Machine("the same, in slices", StepCost(0.015, 0.0005, 0.001), 0.9, 1, True),
)


class Latencies(NamedTuple):
    """In ms: between the tokens of the streams, alone and with pictures; to the first tokens about
    these."""

    alone: list[float]
    beside: list[float]
    ttft: list[float]

    @property
    def p99_ratio(self) -> float:
        """With pictures over alone."""
        return (percentile(self.beside, 99) or 0.0) / (percentile(self.alone, 99) or 1.0)


class Simulation:
    """One server, at lag 1 as the actor drives it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._core = Scheduler(
            SchedulerConfig(
                max_total_tokens=POOL,
                context_len=8192,
                vocab_size=VOCAB,
                max_running_requests=DEFAULTS.max_running_requests,
                chunked_prefill_size=DEFAULTS.chunked_prefill_size,
                media=MediaFacts(4 * HIDDEN, False, False, in_slices=machine.slices),
            )
        )
        self._meter = CostMeter()
        self._rng = np.random.default_rng(0)
        self._now = 0.0
        self._running: Step | None = None
        self._queued: tuple[bytes, float] | None = None  # an item, and seconds of it
        self._encoding: tuple[bytes, float] | None = None
        self._left_s = machine.tile_s  # of the tile that is next
        self.firsts: dict[str, float] = {}  # when each request had its first token

    def run(self, pictures: int) -> Latencies:
        """Streams alone, then with so many pictures until all of these are answered."""
        for number in range(STREAMS):
            self._add(f"stream {number}", [], 8000)
        alone = [self._turn() for _ in range(STEPS_ALONE)]
        arrived = self._now
        for number in range(pictures):
            self._add(f"picture {number}", [*_tiles(number, self._machine.tiles)], 1)
        beside = alone[-1:]
        while len(self.firsts) < STREAMS + pictures:
            beside.append(self._turn())
        shown = [at for rid, at in self.firsts.items() if rid.startswith("picture")]
        return Latencies(_gaps(alone[8:]), _gaps(beside), [1000 * (at - arrived) for at in shown])

    def _add(self, rid: str, items: Sequence[MediaItem], outputs: int) -> None:
        tokens = self._rng.integers(0, VOCAB, QUESTION + TILE_TOKENS * len(items))
        spans = [MediaSpan(TILE_TOKENS * number, item) for number, item in enumerate(items)]
        sampling = FilledParams(max_new_tokens=outputs, temperature=0.0)
        wire = TokenizedReq(b"c", rid, 0, pack_ids(tokens), sampling, stream=True, media=spans)
        self._core.add(wire, self._now)

    def _turn(self) -> float:
        """Plan a step while one runs; returns when that one has ended."""
        core, running = self._core, self._running
        plan = core.prepare(self._now)
        for digest in core.state.media.take_wanted():
            core.media_came(digest, 1)
        self._running = None if plan is None else core.seal(plan)
        if self._running is not None:
            self._running.finalize(None if running is None else null_result(running.batch))
        if self._encoding is not None:  # between that one and the one before
            self._encoded(*self._encoding)
            self._encoding = None
        if running is not None:
            self._end(running)
        ended = self._now
        self._encode()
        return ended

    def _end(self, step: Step) -> None:
        seconds = self._machine.cost.of(step)
        self._now += seconds
        self._core.commit(step, null_result(step.batch))
        self._meter.add(step.size, seconds)
        if (costs := self._meter.news()) is not None:
            self._core.measure(costs)
        batch = self._core.take_output(self._now)
        assert batch is not None
        rids = {start.handle: start.rid for start in batch.starts}
        self.firsts |= {rids[handle]: self._now for handle in batch.firsts}

    def _encode(self) -> None:
        """Begin what is queued behind the step that has ended. What is encoded in slices is waited
        for; whatever else, while it is encoded, nothing is queued behind the next step."""
        self._encoding, self._queued = self._queued, None
        if self._encoding is not None and self._machine.slices:
            self._encoded(*self._encoding)
            self._encoding = None
        part = self._core.next_media()
        if part is not None:
            item, _, seconds = part
            self._queued = item.digest, min(self._left_s, seconds)

    def _encoded(self, digest: bytes, seconds: float) -> None:
        self._now += seconds
        self._left_s -= seconds
        self._core.media_encoded(digest, is_done=self._left_s == 0.0)
        self._left_s = self._left_s or self._machine.tile_s


def _tiles(picture: int, count: int) -> Iterator[MediaItem]:
    for tile in range(count):
        digest = b"%d, %d" % (picture, tile)
        yield MediaItem(digest, "image", TILE_TOKENS, (1, TILE, TILE, 3))


def _gaps(times: Sequence[float]) -> list[float]:
    return [1000 * (b - a) for a, b in pairwise(times)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.vision_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pictures", type=int, default=32)
    args = parser.parse_args(argv)
    lines = []
    for machine in MACHINES:
        found = Simulation(machine).run(args.pictures)
        cells = [
            *(f"{percentile(found.alone, share):.0f}" for share in (50, 99)),
            *(f"{percentile(found.beside, share):.0f}" for share in (50, 99)),
            f"{max(found.beside):.0f}",
            f"{found.p99_ratio:.2f}",
            *(f"{ms / 1000:.1f}" for ms in (percentile(found.ttft, 50) or 0.0, max(found.ttft))),
        ]
        lines.append([machine.name, *cells])
    columns = ("machine", "ITL p50 ms", "p99", "with pictures", "p99", "max", "ratio of p99")
    print(markdown((*columns, "TTFT p50 s", "last"), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
