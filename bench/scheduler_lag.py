"""`python -m bench.scheduler_lag`: how long the model waits between steps, by how many of the
requests have rows that depend on the token before: because of a penalty, of a constraint, or of one
that forces every second byte, which is not sampled.

The scheduler's own loop, without sockets, over an executor that sleeps for --step-ms and samples
token 7, or the lowest allowed. Wall milliseconds between the end of a step and the start of the
next, over the steps in which all decode; the turns are interleaved.
"""

import argparse
import contextlib
import sys
import time
from functools import cache
from itertools import pairwise, product
from statistics import mean, median
from types import SimpleNamespace

import numpy as np
import uvloop

from bench.roofline import markdown
from bench.scheduler import VOCAB, Loop, null_result
from scheduler_proc.actor import SWITCH_INTERVAL_S, SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.planning_time import PlanningTime
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.process.compute import ComputeThread
from scheduler_proc.process.core_lock import CoreLock
from scheduler_proc.process.encodes import Encodes
from scheduler_proc.process.entry import CoreEntry
from scheduler_proc.process.load_reports import Reports
from scheduler_proc.process.metrics import ExpertLoad, StatsLog, StepClock
from srt.files.tokenizer import Pieces
from srt.files.vocab import Vocab
from srt.tasks import TaskSet

CONTEXT, OUTPUTS = 512, 40
FIRST_STEPS = 3  # which are left out: prefills, and the loop's beginning
PATTERNS = {"constraint": "[0-9]*", "jumps": "(0:)*"}


@cache
def vocab() -> Vocab:
    """The bytes, and longer tokens that fit no pattern."""
    tokens = [bytes([i]) for i in range(256)] + [b"<%x>" % i for i in range(256, VOCAB)]
    return Vocab("bytes", tokens, frozenset(), (VOCAB - 1,), None, False, 2 * CONTEXT, None)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def split(self, text: str) -> Pieces:
        return Pieces(list(text.encode()), [None] * len(text.encode()))


@cache
def compiled(kind: str) -> FsmGrammar:
    return FsmGrammar.build(
        compile_regex(PATTERNS[kind]), TokenVocabulary.from_vocab(vocab()), precompute_s=1.0
    )


def grammar(kind: str) -> Grammar | None:
    return MeteredGrammar(compiled(kind).start()) if kind in PATTERNS else None


class SleepingExecutor:
    """Leaves the interpreter to the loop while it runs, as a model does."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def run(self, batch: ForwardBatch) -> StepResult:
        time.sleep(self._step_s)
        result = null_result(batch)
        if batch.masks is not None:
            words, rows = batch.masks
            for sample in np.flatnonzero(rows >= 0).tolist():
                mask = words[rows[sample]].view(np.uint8)
                result.next_ids[sample] = np.unpackbits(mask, bitorder="little").argmax()
        return result


class NothingToDo(Exception):
    """Ends the loop."""


class NotedClock(StepClock):
    """Notes the exposed seconds before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[float] = []

    def begin(self, now: float) -> None:
        super().begin(now)
        self.totals.append(self.exposed_s)


class NoPace(Reports):
    """Leaves the budget of a step as it is, whatever steps take."""

    def tell_pace(self, *, at_once: bool = False) -> None:
        pass


class LoopAlone(SchedulerActor):
    """The loop over one core; what it sends goes nowhere."""

    def __init__(self, core: Scheduler, step_s: float) -> None:
        self.args = SimpleNamespace(check_invariants=False)  # type: ignore[assignment]
        self._core = core
        self._core_lock = CoreLock()
        self._planning_time = PlanningTime(core.state)
        self._clock = NotedClock()
        self._compute = ComputeThread(self._clock)
        self._compute.executor = SleepingExecutor(step_s)  # type: ignore[assignment]
        self._stats_log = StatsLog(core, ExpertLoad(self._compute.executor))
        self._reports = NoPace(core, self._clock, lambda message: None, has_router=False)
        self._entry = CoreEntry(core, self._core_lock, lambda batch: None)
        self._encodes = Encodes(
            core, self._core_lock, self._compute, TaskSet(print), print, self._entry.changed
        )

    async def _sleep(self) -> None:
        raise NothingToDo

    async def waits(self) -> list[float]:
        """Seconds before each step, until all is done."""
        with contextlib.suppress(NothingToDo):
            await self._serve()
        self._compute.close()
        assert isinstance(self._clock, NotedClock)
        return [after - before for before, after in pairwise(self._clock.totals)]


def waits_ms(rows: int, kind: str, count: int, step_s: float) -> list[float]:
    """The wait before each step of `rows` requests that decode, `count` of them of a kind."""
    loop = Loop(
        max_total_tokens=rows * (CONTEXT + 2 * OUTPUTS),
        context_len=2 * CONTEXT,
        max_running_requests=rows,
        chunked_prefill_size=rows * CONTEXT,
    )
    retokeniser = Retokeniser(vocab(), Bytes())
    for i in range(rows):
        own = kind if i < count else ""
        outputs = 2 * OUTPUTS if own == "jumps" else OUTPUTS
        penalty = 0.5 if own == "penalty" else 0.0
        loop.add(loop.tokens(CONTEXT), outputs, penalty, grammar(own), retokeniser)
    seconds = uvloop.run(LoopAlone(loop.core, step_s).waits())
    return [1e3 * each for each in seconds[FIRST_STEPS : OUTPUTS - 1]]


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler_lag",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--count", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--kind", nargs="*", default=["penalty", *PATTERNS])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    waits: dict[tuple[str, int], list[float]] = {
        case: [] for case in [("none", 0), *product(args.kind, args.count)]
    }
    for _ in range(args.repeat):
        for case in waits:
            waits[case] += waits_ms(args.rows, *case, args.step_ms / 1e3)
    lines = [
        [f"{args.rows}", kind, f"{count}", f"{median(times):.3f}", f"{mean(times):.3f}"]
        for (kind, count), times in waits.items()
    ]
    print(markdown(("rows", "kind", "count", "median, ms", "mean"), lines))


if __name__ == "__main__":
    main()
