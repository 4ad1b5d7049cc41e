"""`python -m bench.grammar`: what constraints cost: to compile, to mask, and in a batch of 16.

Compile times are taken in this process, and as a request meets them: a child of the compile worker,
which is niced, makes the artefact, and this process maps it (cold), or it exists and is only mapped
(warm). Masks are those of random legal walks, for each back end that takes the pattern; the second
of two equal walks is the warm one. `--data DIR` adds the schemas of JSONSchemaBench.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.grammar_steps import print_steps
from bench.grammar_worker import WorkerProcess, vocabulary_of
from bench.patterns import CHARACTER, CITY
from scheduler_proc.grammar.base import CompiledGrammar, GrammarError
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.store import GrammarStore, Shared
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.benchmark.summary import now
from srt.machine import machine
from srt.wire.constraint import Constraint

_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
PATTERNS = {
    "key and value": r"[a-z]{3,10} = [0-9]+;",
    "IPv4": r"\.".join([_OCTET] * 4),
    "ISO date-time": r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3])(:[0-5]\d){2}"
    r"(Z|[+-]\d\d:\d\d)",
    "SGLang's character": CHARACTER,
    "SGLang's city": CITY,
    "(a|aa|aaa|b)*c{1,200}x": "(a|aa|aaa|b)*c{1,200}x",
    "2^15 states": "[ab]*a[ab]{14}",
    "counted words": r"(\w{1,50} ){1,20}end",
    "a word in a line": r"(.*foo.*){1}[^\n]{0,300}END",
}
REPEATS = 5
_WALKS, _WALK_TOKENS = 10, 120
_REST_S = 0.1  # between requests: time to fork a child and to let it rehearse


class Laboratory:
    """The compile worker's process, and the scheduler's store in this one."""

    def __init__(self, model: str, directory: Path) -> None:
        self.vocabulary = vocabulary_of(model)
        self.compiler = GrammarCompiler(self.vocabulary)
        self.compiler.warm_up()
        self._directory = directory
        self.worker = WorkerProcess(model, directory)

    def cold(self, constraint: Constraint) -> float:
        """Seconds from the request to a grammar that can be stepped, if nothing of it is cached
        and a child is forked ahead. Raises GrammarError."""
        time.sleep(_REST_S)
        self.worker.forget(constraint)
        return asyncio.run(self._ask(constraint))

    def warm(self, constraint: Constraint) -> float:
        """The same for a constraint whose artefact exists."""
        return asyncio.run(self._ask(constraint))

    async def _ask(self, constraint: Constraint) -> float:
        store = GrammarStore(lambda: Shared(self.vocabulary), self._directory / "grammars")
        store.warm()
        started = time.perf_counter()
        reply = self.worker.ask(constraint)
        if reply.error is not None:
            raise GrammarError(reply.error.message)
        (await store.load(reply.key)).start()
        seconds = time.perf_counter() - started
        store.close()
        return seconds


class Times(NamedTuple):
    """Seconds to compile in this process, by the worker, and for the worker to find it."""

    here: float
    cold: float
    warm: float


def compile_times(lab: Laboratory, constraint: Constraint) -> Times:
    """The medians of REPEATS runs. Raises GrammarError."""
    here, cold, warm = [], [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        lab.compiler.compile(constraint)
        here.append(time.perf_counter() - started)
        cold.append(lab.cold(constraint))
        warm.append(lab.warm(constraint))
    return Times(*(float(np.median(times)) for times in (here, cold, warm)))


def print_patterns(lab: Laboratory) -> None:
    print(
        "\n| pattern | back end | compiled here ms | by the worker | warm |\n|---|---|---|---|---|"
    )
    for name, pattern in PATTERNS.items():
        constraint = Constraint("regex", pattern)
        times = compile_times(lab, constraint)
        cells = " | ".join(f"{1000 * seconds:.1f}" for seconds in times)
        print(f"| {name} | {lab.compiler.compile(constraint).backend} | {cells} |", flush=True)


def print_schemas(lab: Laboratory, data: Path) -> None:
    """Times of all schemas, each compiled once."""
    lines = (data / "jsonschemabench_sample.jsonl").read_text().splitlines()
    here, cold, warm, refused = [], [], [], 0
    for line in lines:
        constraint = Constraint("json_schema", json.dumps(json.loads(line)["schema"]))
        started = time.perf_counter()
        try:
            lab.compiler.compile(constraint)
            here.append(time.perf_counter() - started)
            cold.append(lab.cold(constraint))
        except GrammarError:
            refused += 1
            continue
        warm.append(lab.warm(constraint))
    print(f"\n{len(cold)} JSON Schemas, {refused} refused; ms p50 / p95 / max")
    for name, times in (("compiled here", here), ("by the worker", cold), ("warm", warm)):
        print(f"{name}: {_marks(times, 1000)}", flush=True)


def _marks(times: list[float], unit: float) -> str:
    return " / ".join(f"{unit * np.percentile(times, q):.1f}" for q in (50, 95, 100))


# ---- Masks -----------------------------------------------------------------------------------


def walk(compiled: CompiledGrammar, vocabulary: TokenVocabulary, seed: int) -> list[float]:
    """Seconds of fill and accept, token by token, along a random legal text."""
    random = np.random.default_rng(seed)
    grammar, row = compiled.start(), np.empty(vocabulary.mask_width, np.uint32)
    times = []
    for _ in range(_WALK_TOKENS):
        started = time.perf_counter()
        grammar.fill(row)
        filled = time.perf_counter()
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(random.choice(bits))
        picked = time.perf_counter()
        grammar.accept([token])
        times.append(time.perf_counter() - picked + filled - started)
        if grammar.is_terminated():
            break
    return times


def print_masks(vocabulary: TokenVocabulary) -> None:
    """A row for each pattern and back end."""
    backends = ["fsm", "llguidance"]
    backends += ["xgrammar"] if importlib.util.find_spec("xgrammar") is not None else []
    compilers: dict[str, Any] = {name: GrammarCompiler(vocabulary, name) for name in backends}
    print("\n| pattern | back end | first walk: fill + accept us p50 / p95 / max | again |")
    print("|---|---|---|---|")
    for name, pattern in PATTERNS.items():
        for backend, compiler in compilers.items():
            try:
                compiled = compiler.compile(Constraint("regex", pattern))
                cold = [t for seed in range(_WALKS) for t in walk(compiled, vocabulary, seed)]
                warm = [t for seed in range(_WALKS) for t in walk(compiled, vocabulary, seed)]
            except GrammarError as error:
                print(f"| {name} | {backend} | {str(error)[:60]} | |", flush=True)
                continue
            print(f"| {name} | {backend} | {_marks(cold, 1e6)} | {_marks(warm, 1e6)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.grammar", description=__doc__)
    parser.add_argument("--data", type=Path, help="directory of jsonschemabench_sample.jsonl")
    parser.add_argument("--part", choices=["compile", "masks", "steps"], help="only this")
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    print(f"{now()}  {machine()}  load {os.getloadavg()[0]:.1f}")
    parts = [args.part] if args.part else ["compile", "masks", "steps"]
    vocabulary = vocabulary_of(args.model)
    if "compile" in parts:
        with tempfile.TemporaryDirectory() as directory:
            lab = Laboratory(args.model, Path(directory))
            try:
                print_patterns(lab)
                if args.data is not None:
                    print_schemas(lab, args.data)
            finally:
                lab.worker.close()
    if "masks" in parts:
        print_masks(vocabulary)
    if "steps" in parts:
        print_steps(args.model)


if __name__ == "__main__":
    main()
