"""`python -m bench.grammar`: what constraints cost: to compile, to mask, and in a batch of 16.

Compile times are taken in this process, and as a request meets them: asked of the compile
worker's service, compiled in its forked child, written and mapped again (cold), or found and
mapped (warm). Masks are those of random legal walks, for each back end that takes the pattern;
the second of two equal walks is the warm one. `--data DIR` adds the schemas of JSONSchemaBench.
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
from bench.patterns import CHARACTER, CITY
from bench.report import machine, now
from scheduler_proc.grammar.artefact import Artefact, write_artefact
from scheduler_proc.grammar.base import CompiledGrammar, GrammarError
from scheduler_proc.grammar.cache import ArtefactFolder, artefact_key
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.job import Limits, Outcome, run_in_child
from scheduler_proc.grammar.service import CompileService, Rules
from scheduler_proc.grammar.store import GrammarStore
from scheduler_proc.grammar.trial import check_affordable
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.constraint import Constraint
from srt.messages import CompileReply, CompileReq
from srt.model.files import resolve_model
from srt.model.vocab import load_vocab

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
_LIMITS = Limits(30.0, 2**30)


class Worker:
    """The compile worker's service and the scheduler's store, without sockets between them."""

    def __init__(self, vocabulary: TokenVocabulary, directory: Path) -> None:
        self.vocabulary = vocabulary
        self.compiler = GrammarCompiler(vocabulary)
        self.compiler.warm_up()
        self._directory = directory
        self._folder = ArtefactFolder(directory, 2**29)
        seconds = _LIMITS.seconds
        rules = Rules(workers=1, seconds=seconds, mib=1024, max_wait_s=60.0, quantum_s=seconds)
        self._service = CompileService(self._folder, self._key, self._run, self._on_reply, rules)
        self._reply: asyncio.Future[CompileReply] | None = None

    async def ask(self, constraint: Constraint) -> float:
        """Seconds from the question to a grammar that can be stepped. Raises GrammarError."""
        started = time.perf_counter()
        self._reply = asyncio.get_running_loop().create_future()
        self._service.ask(CompileReq(0, 0, constraint))
        reply = await self._reply
        if reply.error is not None:
            raise GrammarError(reply.error.message)
        store = GrammarStore(lambda: self.vocabulary, self._directory)
        (await store.load(reply.key)).start()
        seconds = time.perf_counter() - started
        store.close()
        return seconds

    def forget(self, constraint: Constraint) -> None:
        self._folder.discard(self._key(constraint))

    def _on_reply(self, reply: CompileReply) -> None:
        assert self._reply is not None
        self._reply.set_result(reply)

    def _key(self, constraint: Constraint) -> str:
        version, fingerprint = "bench", self.vocabulary.fingerprint
        return artefact_key(constraint, backend="fsm", vocabulary=fingerprint, version=version)

    async def _run(self, key: str, constraint: Constraint) -> Outcome:
        def work() -> Outcome:
            compiled = self.compiler.compile(constraint)
            check_affordable(compiled, self.vocabulary)
            facts, arrays = compiled.to_arrays()
            temporary = self._folder.temporary()
            write_artefact(temporary, Artefact(compiled.backend, facts, arrays))
            self._folder.add(key, temporary)
            return Outcome("ok")

        return await run_in_child(work, _LIMITS)


class Times(NamedTuple):
    """Seconds: compiled in this process, by the worker, and found by it."""

    here: float
    cold: float
    warm: float


async def compile_times(worker: Worker, constraint: Constraint) -> Times:
    """The medians of REPEATS. Raises GrammarError."""
    here, cold, warm = [], [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        worker.compiler.compile(constraint)
        here.append(time.perf_counter() - started)
        worker.forget(constraint)
        cold.append(await worker.ask(constraint))
        warm.append(await worker.ask(constraint))
    return Times(*(float(np.median(times)) for times in (here, cold, warm)))


async def print_patterns(worker: Worker) -> None:
    print(
        "\n| pattern | back end | compiled here ms | by the worker | warm |\n|---|---|---|---|---|"
    )
    for name, pattern in PATTERNS.items():
        constraint = Constraint("regex", pattern)
        times = await compile_times(worker, constraint)
        cells = " | ".join(f"{1000 * seconds:.1f}" for seconds in times)
        print(f"| {name} | {worker.compiler.compile(constraint).backend} | {cells} |", flush=True)


async def print_schemas(worker: Worker, data: Path) -> None:
    """Every schema once."""
    lines = (data / "jsonschemabench_sample.jsonl").read_text().splitlines()
    here, cold, warm, refused = [], [], [], 0
    for line in lines:
        constraint = Constraint("json_schema", json.dumps(json.loads(line)["schema"]))
        started = time.perf_counter()
        try:
            worker.compiler.compile(constraint)
            here.append(time.perf_counter() - started)
            cold.append(await worker.ask(constraint))
        except GrammarError:
            refused += 1
            continue
        warm.append(await worker.ask(constraint))
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
    vocabulary = TokenVocabulary.from_vocab(load_vocab(resolve_model(args.model)))
    if "compile" in parts:
        with tempfile.TemporaryDirectory() as directory:
            worker = Worker(vocabulary, Path(directory) / "grammars")
            asyncio.run(print_patterns(worker))
            if args.data is not None:
                asyncio.run(print_schemas(worker, args.data))
    if "masks" in parts:
        print_masks(vocabulary)
    if "steps" in parts:
        print_steps(args.model)


if __name__ == "__main__":
    main()
