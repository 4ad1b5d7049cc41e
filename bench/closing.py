"""`python -m bench.closing --data DIR`: whether constrained outputs are whole at every limit.

For the first JSON Schemas of JSONSchemaBench's sample in DIR that compile, and for patterns,
outputs are generated with limits around the length of a short one: an automaton's shortest text, or
of others the completion that the compile worker finds. An output is whole if
its end is one that its constraint allows, by the grammar and, for schemas, by the package
`jsonschema`; it is refused if its limit is below what the constraint takes. Parts:

* `grid`: every limit, greedy and at random, with jumps and guesses on and off, in a pool so small
  that requests are retracted. A stand-in for the model chooses among the allowed tokens.
* `real`: the embedded model, with `close` and without, and how probable the closed texts are to
  it, in nats per byte, beside the cut ones.
* `length`: how much longer the completions are than the shortest that `--effort` times as long a
  search finds.
* `cost`: CPU time of following an output, far from its limit with `close` over without, and of
  each of the tokens before it.
"""

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import jsonschema  # type: ignore[import-untyped]
import numpy as np

from bench.laboratory import Job, Laboratory
from bench.mask_executor import SMALL_POOL, MaskExecutor
from bench.patterns import seeded_patterns
from bench.roofline import markdown
from bench.schemas import BENCH_FILE
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.closing.chain import Closing, ClosingGrammar
from scheduler_proc.grammar.closing.texts import texts_of
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.worker.trial import check_affordable
from srt.benchmark.summary import now
from srt.machine import machine
from srt.wire.constraint import Constraint
from srt.wire.filled_params import FilledParams

MORE = (-4, -2, -1, 0, 1, 2, 4, 8, 16, 64)  # tokens that a limit is above the short output's
TOGETHER = 16
FAR, NEAR = 4096, 64  # tokens of limits
PROMPT = "A record of our archive, as JSON:\n"


class Case(NamedTuple):
    """A constraint, and how many tokens a short output takes; its `completion` if it has one."""

    constraint: Constraint
    compiled: CompiledGrammar
    length: int
    completion: list[int] | None

    @property
    def is_known(self) -> bool:
        """Whether a text is known that is so short."""
        return self.compiled.narrows or self.completion is not None


class Start:
    """Makes grammars for outputs of a case with a limit, as requests get them."""

    def __init__(self, case: Case, finder: WitnessFinder, limit: int, close: bool) -> None:
        self._case, self._finder, self._limit, self._close = case, finder, limit, close

    def start(self) -> Grammar:
        compiled = self._case.compiled
        grammar: Grammar = MeteredGrammar(compiled.start())
        if self._close and not compiled.narrows:
            first = self._case.completion
            closing = Closing(compiled.start(), self._finder, self._limit, first)
            grammar = ClosingGrammar(grammar, closing)
        return grammar


def constraints(args: argparse.Namespace) -> Iterator[Constraint]:
    """Schemas, then patterns."""
    with open(Path(args.data) / BENCH_FILE, encoding="utf-8") as lines:
        for line in lines:
            yield Constraint("json_schema", json.dumps(json.loads(line)["schema"]))


def cases(args: argparse.Namespace, lab: Laboratory, finder: WitnessFinder) -> list[Case]:
    """What compiles, as the compile worker does it."""
    compiler, found = GrammarCompiler(lab.vocabulary), list[Case]()
    counts: Counter[str] = Counter()
    patterns = [Constraint("regex", p) for p in seeded_patterns(args.patterns, seed=1)]
    for constraint in [*patterns, *constraints(args)]:
        if len(found) >= args.patterns + args.schemas:
            break
        try:
            compiled = compiler.compile(constraint)
            check_affordable(compiled, lab.vocabulary)
        except GrammarError:
            counts["refused"] += 1
            continue
        kind = "automata" if compiled.narrows else "others"
        if isinstance(compiled, FsmGrammar):
            found.append(Case(constraint, compiled, compiled.closing.spelled_tokens(0), None))
        else:
            completion = finder.find_ahead(compiled.start())
            if completion is None and (texts := texts_of(constraint)):
                completion = finder.find_ahead(compiled.start(), texts=texts)
            if completion is None:
                kind = "without a completion"
            length = compiled.fewest_tokens if completion is None else len(completion)
            found.append(Case(constraint, compiled, length, completion))
        counts[kind] += 1
    print(f"{len(found)} constraints: {dict(counts)}", flush=True)
    return found


def verdict(lab: Laboratory, case: Case, job: Job) -> str:
    """How an output ended: whole, cut at its limit, or `invalid`, which none should be."""
    assert job.finish is not None
    if job.finish.type != "stop":
        return str(job.finish.type)
    grammar, text = case.compiled.start(), lab.text(job.ids)
    try:
        grammar.accept([i for i in job.ids if i not in lab.vocab.special_ids])
        is_right = grammar.is_accepting()
    except GrammarError:
        is_right = False
    if is_right and case.constraint.kind == "json_schema":
        is_right = matches(text, json.loads(case.constraint.source))
    return "whole" if is_right else "invalid"


def matches(text: bytes, schema: Any) -> bool:
    """Whether the text is an instance, as far as `jsonschema` takes the schema."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (jsonschema.ValidationError, ValueError):
        return False
    except Exception:  # a schema that only we take
        return True
    return True


def jobs_of(
    lab: Laboratory,
    given: Iterable[tuple[Case, int]],
    finder: WitnessFinder,
    temperatures: Iterable[float] = (0.0, 1.0),
    close: bool = True,
    **fields: Any,
) -> list[tuple[Case, Job]]:
    """A job for each case with its limit, and each temperature."""
    prompt, found = lab.tokenizer.encode(PROMPT), list[tuple[Case, Job]]()
    for case, limit in given:
        for temperature in temperatures:
            sampling = FilledParams(
                max_new_tokens=limit,
                temperature=temperature,
                seed=len(found),
                close=close,
                **fields,
            )
            found.append((case, Job(prompt, Start(case, finder, limit, close), sampling)))
    return found


def with_limits(found: Iterable[Case], mores: Iterable[int]) -> Iterator[tuple[Case, int]]:
    """What admission lets in."""
    for case in found:
        for limit in (case.length + more for more in mores):
            if limit >= max(1, case.compiled.fewest_tokens):
                yield case, limit


def run(lab: Laboratory, jobs: list[tuple[Case, Job]], **config: Any) -> Counter[str]:
    """Generate them, and count how they ended."""
    verdicts: Counter[str] = Counter()
    counters = lab.generate([job for _, job in jobs], max_running_requests=TOGETHER, **config)
    for case, job in jobs:
        told = verdict(lab, case, job)
        verdicts[told] += 1
        if told not in ("whole", "length"):
            print(f"{told}: {case.constraint} {lab.text(job.ids)!r}", file=sys.stderr)
    verdicts["steered"] = counters.closed
    verdicts["retracted"] = counters.retracted
    return verdicts


COLUMNS = (
    "limits",
    "jumps",
    "guesses",
    "close",
    "outputs",
    "whole",
    "length",
    "steered",
    "retracted",
)


def row_of(limits: str, jumps: str, guesses: str, close: bool, found: Counter[str]) -> list[str]:
    told = [found[name] for name in ("whole", "length", "steered", "retracted")]
    outputs = sum(found.values()) - found["steered"] - found["retracted"]
    return [limits, jumps, guesses, "yes" if close else "no", *map(str, (outputs, *told))]


NOTHING_KNOWN = "no completion"


def split(found: list[Case]) -> tuple[list[Case], list[Case]]:
    """Those of which a short text is known, and the others."""
    return [case for case in found if case.is_known], [case for case in found if not case.is_known]


def grid(args: argparse.Namespace) -> None:
    """All limits, on the stand-in for a model."""
    lab = Laboratory(args.model, MaskExecutor)
    finder = WitnessFinder(lab.vocabulary)
    found, rows = cases(args, lab, finder), []
    refused = sum(
        0 < case.length + more < case.compiled.fewest_tokens for case in found for more in MORE
    )
    known, others = split(found)
    for cases_of, mores, limits in (
        *((known, MORE[:3], "below"), (known, MORE[3:], "from")),
        (others, MORE[3:], NOTHING_KNOWN),
    ):
        for jumps in ("off", "canonical"):
            for guesses in ("off", "own"):
                given = with_limits(cases_of, mores)
                jobs = jobs_of(lab, given, finder, jump_forward=jumps)
                told = run(lab, jobs, speculative=guesses, max_total_tokens=SMALL_POOL)
                rows.append(row_of(limits, jumps, guesses, True, told))
                print(rows[-1], flush=True)
    jobs = jobs_of(lab, with_limits(known, MORE[3:]), finder, close=False)
    told = run(lab, jobs, max_total_tokens=SMALL_POOL)
    rows.append(row_of("from", "canonical", "off", False, told))
    print("\n" + markdown(COLUMNS, rows) + f"\n{refused} limits below the fewest tokens: refused")


def real(args: argparse.Namespace) -> None:
    """The same with the model, for as many cases as give `--outputs`, and what it thinks of it."""
    lab = Laboratory(args.model)
    finder, rng = WitnessFinder(lab.vocabulary), random.Random(0)
    found, rows, scores = cases(args, lab, finder), [], {}
    given = list(with_limits(split(found)[0], MORE[3:]))
    given = rng.sample(given, min(len(given), args.outputs // 2))
    for close, jumps, guesses in (
        *((True, "canonical", "auto"), (True, "off", "off")),
        *((False, "canonical", "auto"), (False, "off", "off")),
    ):
        jobs = jobs_of(lab, given, finder, close=close, jump_forward=jumps)
        told = run(lab, jobs, speculative=guesses)
        rows.append(row_of("from", jumps, guesses, close, told))
        print(rows[-1], flush=True)
        if jumps == "canonical":
            pairs = [(job.prompt, lab.text(job.ids)) for _, job in jobs]
            scores[close] = [score(lab, pair) for pair in pairs]
    print("\n" + markdown(COLUMNS, rows))
    both = [pair for pair in zip(scores[True], scores[False], strict=True) if None not in pair]
    means = [np.mean([pair[i] for pair in both]) for i in (0, 1)]
    print(
        f"nats per byte, {len(both)} pairs of texts: closed {means[0]:.3f}, without {means[1]:.3f}"
    )


def score(lab: Laboratory, pair: tuple[np.ndarray, bytes]) -> float | None:
    """None for a text that is empty, or cut within a character."""
    try:
        pair[1].decode()
    except UnicodeDecodeError:
        return None
    return lab.scores([pair])[0] if pair[1] else None


def length(args: argparse.Namespace) -> None:
    """Completions against those of a longer search."""
    lab = Laboratory(args.model, MaskExecutor)
    finder, longer = WitnessFinder(lab.vocabulary), list[int]()
    for case in cases(args, lab, finder):
        if case.completion is not None:
            best = finder.find_ahead(case.compiled.start(), effort=args.effort)
            longer.append(case.length - (case.length if best is None else len(best)))
    print(
        f"{len(longer)} completions, tokens above the shortest found: median {median(longer):g}, "
        f"99th percentile {np.percentile(longer, 99):.0f}, most {max(longer)}"
    )


def cost(args: argparse.Namespace) -> None:
    """What closing costs in CPU time."""
    lab = Laboratory(args.model, MaskExecutor)
    finder = WitnessFinder(lab.vocabulary)
    found, ratios, near = cases(args, lab, finder), [], list[float]()
    added = list[float]()
    for case in found:
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * args.repeat):
            close = turn % 2 == 0
            grammar = Start(case, finder, FAR, close).start()
            times[close].append(sum(islice(follow(grammar, lab, FAR, close), NEAR)))
        ratios.append(median(times[True]) / median(times[False]))
        added.append((median(times[True]) - median(times[False])) / NEAR)
        limit = case.length + NEAR
        near += follow(Start(case, finder, limit, True).start(), lab, limit, True)
    near.sort()
    share = [1000 * near[min(len(near) - 1, int(p * len(near)))] for p in (0.5, 0.99, 1.0)]
    print(
        f"far from the limit: {median(ratios):.3f} times without (median of {len(ratios)} "
        f"constraints; all: {math.fsum(ratios) / len(ratios):.3f}), "
        f"{1e6 * median(added):.1f} us more for a token\n"
        f"near it, ms for each of {len(near)} tokens: p50 {share[0]:.2f}, p99 {share[1]:.2f}, "
        f"max {share[2]:.2f}"
    )


def follow(grammar: Grammar, lab: Laboratory, limit: int, close: bool) -> Iterator[float]:
    """CPU seconds of each token of a random output: its mask, and taking it over."""
    rng, row = np.random.default_rng(0), np.empty(lab.vocabulary.mask_width, np.uint32)
    for left in range(limit, 0, -1):
        began = thread_time()
        grammar.fill(row)
        if close and grammar.near(left):
            grammar.narrow(row, left)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        spent = thread_time() - began
        token = int(rng.choice(np.flatnonzero(bits)))
        began = thread_time()
        rest = grammar.instead_of(token) if close else None
        if rest is None:
            grammar.accept([token])
        yield spent + thread_time() - began
        if rest is not None or grammar.is_terminated():
            return


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.closing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, help="directory with the schemas' file")
    parts = {"grid": grid, "real": real, "length": length, "cost": cost}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--patterns", type=int, default=50)
    parser.add_argument("--outputs", type=int, default=2000, help="of the real model, each way")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--effort", type=int, default=20)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    print(f"{now()}  {machine()}")
    for part in args.parts:
        parts[part](args)


if __name__ == "__main__":
    main()
