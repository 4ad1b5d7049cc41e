"""What masks cost a batch of 16, for `bench.grammar`: the scheduler core and the native executor
in this process, jump-forward off, all masks seen before.

A step of reqs with a grammar cannot be sealed until the last step's result has been read (lag 0),
so its commit and seal are exposed: the model waits for them. Without a grammar they are hidden
(lag 1) by the step that runs.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.laboratory import Laboratory
from bench.patterns import CHARACTER
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import CompiledGrammar, Grammar
from scheduler_proc.grammar.compiler import GrammarCompiler
from srt.wire.constraint import Constraint
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

BATCH = 16
_ROUNDS = 3
_POOL = 8192
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string", "maxLength": 40},
"tags": {"type": "array", "items": {"type": "object", "properties": {"key": {"type": "string"},
"value": {"anyOf": [{"type": "number"}, {"type": "string"}]}}, "required": ["key", "value"],
"additionalProperties": false}, "minItems": 3}}, "required": ["name", "tags"],
"additionalProperties": false}"""
CASES = {
    "regex (fsm)": Constraint("regex", CHARACTER),
    "JSON Schema (llguidance)": Constraint("json_schema", SCHEMA),
}


class _Clock:
    """Seconds spent in grammars since it was last read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def read(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class _Timed:
    """A grammar for the scheduler, whose masks and steps are timed."""

    def __init__(self, grammar: Grammar, clock: _Clock) -> None:
        self._grammar, self._clock = grammar, clock

    def fill(self, row: np.ndarray) -> None:
        started = time.perf_counter()
        self._grammar.fill(row)
        self._clock.seconds += time.perf_counter() - started

    def accept(self, tokens: Sequence[int]) -> None:
        started = time.perf_counter()
        self._grammar.accept(tokens)
        self._clock.seconds += time.perf_counter() - started

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)


class Parts:
    """Seconds of each step: in grammars, of the host before and after the model, of the model."""

    def __init__(self) -> None:
        self.grammar: list[float] = []
        self.exposed: list[float] = []  # commit and seal
        self.planning: list[float] = []  # prepare and take_output
        self.model: list[float] = []


def run_batch(lab: Laboratory, compiled: CompiledGrammar | None, seed: int) -> Parts:
    """Run BATCH requests to their ends; only steps in which all of them decode are counted."""
    core = Scheduler(
        SchedulerConfig(
            max_total_tokens=_POOL,
            context_len=lab.executor.context_len,
            vocab_size=lab.executor.vocab_size,
            max_running_requests=BATCH,
        )
    )
    prompt, clock, parts = lab.tokenizer.encode("The record as JSON:\n"), _Clock(), Parts()
    for i in range(BATCH):
        sampling = FilledParams(
            max_new_tokens=100, temperature=1.0, seed=seed + i, ignore_eos=compiled is None
        )
        wire = TokenizedReq(
            client=b"c",
            rid=str(i),
            incarnation=0,
            input_ids=pack_ids(prompt),
            sampling=sampling,
            eos_ids=[] if compiled is None else list(lab.vocab.eos_ids),
        )
        grammar: Any = None if compiled is None else _Timed(MeteredGrammar(compiled.start()), clock)
        core.add(wire, 0.0, grammar)
    _steps(core, lab, clock, parts)
    return parts


def _steps(core: Scheduler, lab: Laboratory, clock: _Clock, parts: Parts) -> None:
    while core.has_work:
        times = [time.perf_counter()]
        plan = core.prepare(0.0)
        times.append(time.perf_counter())
        step = None if plan is None else core.seal(plan)
        if step is None:
            continue
        step.finalize(None)
        times.append(time.perf_counter())
        result = lab.executor.run(step.batch)
        times.append(time.perf_counter())
        core.commit(step, result)
        times.append(time.perf_counter())
        core.take_output(0.0)
        times.append(time.perf_counter())
        prepare, seal, model, commit, tell = np.diff(times)
        in_grammar = clock.read()
        if step.batch.num_tokens == BATCH:
            parts.grammar.append(in_grammar)
            parts.exposed.append(seal + commit)
            parts.planning.append(prepare + tell)
            parts.model.append(model)


def stacking_s(mask_width: int) -> float:
    """Seconds that it takes to make one array of a batch's masks."""
    masks = [np.zeros(mask_width, np.uint32) for _ in range(BATCH)]
    started = time.perf_counter()
    for _ in range(100):
        np.stack(masks)
    return (time.perf_counter() - started) / 100


def print_steps(model: str) -> None:
    """A row for each case; every batch runs once before it counts."""
    lab = Laboratory(model)
    compiler = GrammarCompiler(lab.vocabulary)
    stacking = stacking_s(lab.vocabulary.mask_width)
    print(f"\nDecode steps of {BATCH}; ms, medians. Stacking {BATCH} masks: {1000 * stacking:.3f}")
    print("| requests | model | grammars and stacking | share of the step | commit and seal |")
    print("|---|---|---|---|---|")
    for name, constraint in [("free", None), *CASES.items()]:
        compiled = None if constraint is None else compiler.compile(constraint)
        for _ in range(2):
            for i in range(_ROUNDS):
                run_batch(lab, compiled, BATCH * i)
        rounds = [run_batch(lab, compiled, BATCH * i) for i in range(_ROUNDS)]
        sums = [
            np.median(np.concatenate([getattr(parts, field) for parts in rounds]))
            for field in ("model", "grammar", "exposed", "planning")
        ]
        in_model, in_grammar, exposed, planning = sums
        in_grammar += stacking if compiled is not None else 0.0
        share = 100 * in_grammar / (in_model + exposed + planning)
        print(
            f"| {name} | {1000 * in_model:.2f} | {1000 * in_grammar:.3f} | {share:.1f} % |"
            f" {1000 * exposed:.2f} |",
            flush=True,
        )
