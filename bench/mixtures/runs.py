"""Runs the same work on our engine and on llama.cpp's, each in a process of its own: prompts of
random tokens, then decodes of random tokens, several rows at a time.

`python -m bench.mixtures.runs MODEL THREADS CASE...` is ours; a case is PROMPT,TOKENS,ROWS.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from scheduler_proc.executor.native_executor import NativeExecutor
from srt.files.model_files import resolve_model
from tests.scheduler_proc.ragged import Row, make_batch

STEP_TOKENS = 512  # of prompts: llama.cpp's default of `-ub`


class Case(NamedTuple):
    """`rows` prompts of `prompt` tokens each, then as many decodes of all rows as `tokens` says."""

    prompt: int
    tokens: int
    rows: int

    def __str__(self) -> str:
        return f"{self.prompt},{self.tokens},{self.rows}"


# Each engine runs a case twice if its prompt counts: the first time its weights are new to it.
PROMPT = Case(512, 32, 1)
DECODES = (Case(64, 32, 8), Case(64, 32, 32))


class Times(Struct):
    """Seconds of a case, by llama.cpp's names: of all its prompts, and of all its decodes."""

    prompt: int = field(name="pp")
    tokens: int = field(name="tg")
    rows: int = field(name="pl")
    prompt_s: float = field(name="t_pp")
    decode_s: float = field(name="t_tg")


class EngineError(Exception):
    """An engine ended with an error, or without the figures."""


def ours(model: Path, cases: Sequence[Case], threads: int, level: str | None = None) -> list[Times]:
    """What our engine takes, at an instruction level if one is given. Raises EngineError."""
    command = [sys.executable, "-m", "bench.mixtures.runs", str(model), str(threads)]
    env = os.environ | ({"SRT_ISA": level} if level else {})
    return _lines([*command, *map(str, cases)], env)


def llamacpp(binary: Path, model: Path, cases: Sequence[Case], threads: int) -> list[Times]:
    """What llama.cpp's takes; one process for all cases with the same prompt and tokens, because it
    makes a cache for each row that is as long as the longest. Raises EngineError."""
    times = []
    for prompt, tokens in dict.fromkeys((case.prompt, case.tokens) for case in cases):
        rows = [case.rows for case in cases if (case.prompt, case.tokens) == (prompt, tokens)]
        options: dict[str, object] = {
            "-m": model,
            "-c": max(rows) * (-(-(prompt + tokens) // 256) * 256),
            "-b": max(rows) * prompt,
            "-ub": STEP_TOKENS,
            "-t": threads,
            "-tb": threads,
            "-npp": prompt,
            "-ntg": tokens,
            "-npl": ",".join(map(str, rows)),
            "--output-format": "jsonl",
        }
        words = [str(word) for option in options.items() for word in option]
        times += _lines([str(binary), *words, "--no-kv-unified"], dict(os.environ))
    return times


def _lines(command: list[str], env: dict[str, str]) -> list[Times]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or not lines:
        raise EngineError(f"{command[0]}: status {done.returncode}\n{done.stderr[-2000:]}")
    return [msgspec.json.decode(line, type=Times) for line in lines]


def run_case(executor: NativeExecutor, case: Case, rng: np.random.Generator) -> Times:
    """One case on an executor whose pool has room for it."""
    length, vocab = case.prompt + case.tokens, executor.vocab_size
    slots = np.arange(case.rows * length).reshape(case.rows, length)
    ids = rng.integers(0, vocab, slots.shape)
    at_once = max(1, STEP_TOKENS // case.prompt)
    prompts = [
        make_batch([Row(ids[row, : case.prompt], slots[row, : case.prompt]) for row in part])
        for part in np.array_split(np.arange(case.rows), -(-case.rows // at_once))
    ]
    decodes = [
        make_batch([Row(ids[row, [n]], slots[row, : n + 1]) for row in range(case.rows)])
        for n in range(case.prompt, length)
    ]
    seconds = []
    for batches in (prompts, decodes):
        began = time.perf_counter()
        for batch in batches:
            executor.run(batch)
        seconds.append(time.perf_counter() - began)
    return Times(case.prompt, case.tokens, case.rows, *seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Ours: a line of JSON for each case."""
    parser = argparse.ArgumentParser(prog="python -m bench.mixtures.runs", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("threads", type=int)
    parser.add_argument("cases", nargs="+")
    args = parser.parse_args(argv)
    cases = [Case(*map(int, case.split(","))) for case in args.cases]
    room = max((case.prompt + case.tokens) * case.rows for case in cases)
    rng = np.random.default_rng(0)
    with closing(
        NativeExecutor(resolve_model(args.model), max_total_tokens=room, num_threads=args.threads)
    ) as executor:
        for case in cases:
            print(msgspec.json.encode(run_case(executor, case, rng)).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
