"""What decoders and logs cost: `python -m bench.lang_decoders`.

On the real model, over the ring: a beam search over a program of three steps against the same
calls made by plain asyncio on `srt.AsyncClient`, with an empty cache each, in turns; the replay of
one of its runs from the log; and a vote that stops when it is decided against the full one. On a
back end that answers at once: what a log costs each call.
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lang as sgl
from bench.lang import InstantBackend
from bench.roofline import markdown
from lang import loop
from lang.backends.base import Backend, Completion, Prompt
from lang.backends.runtime import RuntimeEndpoint, params_of
from lang.backends.sampling import Sampling
from lang.functions.prepared import Prepared
from lang.logs.journal import Journal
from lang.run.program import Place
from srt.machine import machine
from srt.offline.engine import Engine

WIDTH, EXPAND, STEPS = 4, 4, 3
MAX_REPLAY_MS, MIN_CACHED = 1.0, 0.9
PROMPT = "These are the notes of a gardener who looks after many plants. " * 20


class Recording(RuntimeEndpoint):
    """Keeps what it is asked, by levels of calls side by side, and counts the tokens."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reset()

    def reset(self) -> None:
        self.levels: list[list[tuple[Prompt, Sampling]]] = []
        self._live = 0
        self.prompt_tokens = self.cached_tokens = self.new_tokens = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        if not self._live:
            self.levels.append([])
        self.levels[-1].append((prompt, sampling))
        self._live += 1
        made = await super().generate(prompt, sampling)
        self._live -= 1
        self.prompt_tokens += made.prompt_tokens
        self.cached_tokens += made.cached_tokens
        self.new_tokens += made.completion_tokens
        return made


@sgl.function
def steps(s: Any, tokens: int) -> None:
    """Three gens after one prompt."""
    s += PROMPT
    for i in range(STEPS):
        s += f"\nNote {i}:" + sgl.gen(f"note{i}", max_tokens=tokens, ignore_eos=True)
        _ = s[f"note{i}"]


@sgl.function
def reasons(s: Any, tokens: int) -> None:
    """An answer after a thought."""
    s += PROMPT + "\nWhy?" + sgl.gen("why", max_tokens=tokens, ignore_eos=True)
    s += "\nA number from 1 to 3:" + sgl.gen("answer", max_tokens=2, regex=" [123]")


@sgl.function
def chain(s: Any, calls: int) -> None:
    """Many calls, one after the other."""
    for i in range(calls):
        s += f"{i}:" + sgl.gen(max_tokens=4)
    s.sync()


class BeamRound(NamedTuple):
    """Seconds of a search, and of its calls alone, and CPU seconds of this process for both; the
    share of its prompts that was cached."""

    search_s: float
    calls_s: float
    search_cpu_s: float
    calls_cpu_s: float
    cached: float
    num_calls: int


def beam_round(engine: Engine, backend: Recording, tokens: int, seed: int) -> BeamRound:
    """One search, then its calls alone, in the same levels."""
    engine.flush_cache()
    backend.reset()
    search = _both(lambda: sgl.beam(steps, WIDTH, EXPAND)(tokens, backend=backend, seed=seed))
    cached = backend.cached_tokens / backend.prompt_tokens
    engine.flush_cache()
    calls = _both(lambda: loop.call(_issued(backend, backend.levels)))
    num_calls = sum(map(len, backend.levels))
    return BeamRound(search[0], calls[0], search[1], calls[1], cached, num_calls)


def _both(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time in all threads of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


async def _issued(backend: Recording, levels: Sequence[Sequence[tuple[Prompt, Sampling]]]) -> None:
    client = await backend.client()
    for level in levels:
        await asyncio.gather(
            *(
                client.generate(prompt.text, sampling=params_of(sampling), return_logprob=True)
                for prompt, sampling in level
            )
        )


class Different(InstantBackend):
    """Answers at once, with another text each time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        meta = {"output_token_logprobs": [[-1.0, 5, None]] * sampling.max_tokens}
        text = f" word {next(self._numbers)}"
        return Completion(text, "length", None, 3, 0, sampling.max_tokens, meta)


def at_once_ms(tokens: int, rounds: int) -> float:
    """CPU milliseconds of a search whose calls take no time, for each of its runs; the median."""
    beam, backend = sgl.beam(steps, WIDTH, EXPAND), Different()
    took = [_both(lambda: beam(tokens, backend=backend, seed=1))[1] for _ in range(rounds + 1)]
    return 1e3 * statistics.median(took[1:]) / (1 + WIDTH * STEPS)


def replay_ms(backend: Backend, tokens: int, repeats: int) -> tuple[float, float]:
    """How long a replay of a whole run takes as a search does it, on its loop: by the clock, and
    CPU time; medians in ms."""
    node = sgl.Search(steps, 1).root(tokens, backend=backend, seed=1)
    while children := node.expand():
        (node,) = children
    prepared = steps.prepared((tokens,), {"seed": 1}, backend)
    took = [loop.call(_replayed(prepared, node)) for _ in range(repeats)]
    wall, cpu = (statistics.median(each) for each in zip(*took, strict=True))
    return 1e3 * wall, 1e3 * cpu


async def _replayed(prepared: Prepared, node: sgl.Node) -> tuple[float, float]:
    models = node._models
    began, cpu = time.perf_counter(), time.process_time()
    run = prepared.run(Place(journal=Journal(node.log.copy(), models=models, is_whole=True)))
    await run.perform_beside()
    await run.rest()
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    assert run.state.error() is None
    return took, cpu_s


def log_us(calls: int, rounds: int) -> dict[str, float]:
    """Microseconds a call of a chain without a log, with one in memory, with one in a file, and
    replayed from that; medians."""
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            path = Path(directory, f"{number}.jsonl")
            for name, log in (("none", None), ("memory", sgl.Log()), ("file", path)):
                took.setdefault(name, []).append(_timed(partial(_chain, calls, log)))
            took.setdefault("replay", []).append(_timed(partial(_chain, calls, path)))
    return {name: 1e6 * statistics.median(each) / calls for name, each in took.items()}


def _chain(calls: int, log: Any) -> None:
    chain.run(calls, backend=InstantBackend(), log=log)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def logged_s(backend: RuntimeEndpoint, calls: int, rounds: int) -> tuple[float, float]:
    """Seconds of a chain on the real model without a log, and with one in a file, in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            for i, log in enumerate((None, Path(directory, f"{number}.jsonl"))):
                took[i].append(_timed(partial(chain.run, calls, backend=backend, seed=1, log=log)))
    return statistics.median(took[0]), statistics.median(took[1])


class Votes(NamedTuple):
    """New tokens and seconds of full votes, and of those that stopped; how many had the same
    value."""

    full_tokens: int
    early_tokens: int
    full_s: float
    early_s: float
    same: int


def votes(backend: Recording, rows: int, at_once: int, tokens: int, seeds: int) -> Votes:
    """Full votes, and those that stop when they are decided."""
    found: list[tuple[int, float, Any]] = []
    for seed in range(seeds):
        for stop in (None, sgl.decided):
            backend.reset()
            vote = sgl.vote(reasons, "answer", rows, stop_when=stop, at_once=at_once)
            began = time.perf_counter()
            value = vote(tokens, backend=backend, seed=seed).value
            found.append((backend.new_tokens, time.perf_counter() - began, value))
    full, early = found[::2], found[1::2]
    return Votes(
        sum(each[0] for each in full),
        sum(each[0] for each in early),
        sum(each[1] for each in full),
        sum(each[1] for each in early),
        sum(one[2] == other[2] for one, other in zip(full, early, strict=True)),
    )


def measured(engine: Engine, backend: Recording, args: argparse.Namespace) -> list[list[str]]:
    """The rows of the table on the real model."""
    beam_round(engine, backend, 2, 99)  # warm
    rounds = [beam_round(engine, backend, args.tokens, i) for i in range(args.rounds)]
    search_s, calls_s = (statistics.median(each[i] for each in rounds) for i in (0, 1))
    beyond = statistics.median(each.search_s - each.calls_s for each in rounds)
    cpu = statistics.median(each.search_cpu_s - each.calls_cpu_s for each in rounds)
    runs = 1 + WIDTH * STEPS
    cached = min(each.cached for each in rounds)
    wall_ms, cpu_ms = replay_ms(backend, args.tokens, args.replays)
    without_s, with_s = logged_s(backend, args.real_calls, args.rounds)
    vote = votes(backend, args.rows, args.at_once, args.tokens, args.seeds)
    saved = 1 - vote.early_tokens / vote.full_tokens
    return [
        [f"beam, width {WIDTH}, {EXPAND} answers, {STEPS} steps", f"{search_s:.3f} s", ""],
        [f"its {rounds[0].num_calls} calls alone", f"{calls_s:.3f} s", ""],
        ["beyond its calls (median of the pairs)", f"{1e3 * beyond:.1f} ms", ""],
        [f"the same for each of {runs} runs", f"{1e3 * beyond / runs:.2f} ms", ""],
        [f"CPU time beyond, for each of {runs} runs", f"{1e3 * cpu / runs:.2f} ms", ""],
        ["cached prompt tokens (least)", f"{cached:.1%}", f"{MIN_CACHED:.0%}"],
        ["replay of a run (median)", f"{wall_ms:.2f} ms", f"{MAX_REPLAY_MS} ms"],
        ["its CPU time", f"{cpu_ms:.2f} ms", ""],
        [f"{args.real_calls} calls without a log", f"{without_s:.3f} s", ""],
        ["the same with one in a file", f"{with_s:.3f} s", ""],
        [f"{args.seeds} votes of {args.rows}: new tokens", f"{vote.full_tokens}", ""],
        ["the same when they stop", f"{vote.early_tokens} ({saved:.0%} fewer)", ""],
        ["seconds of both", f"{vote.full_s:.2f}, {vote.early_s:.2f}", ""],
        ["votes with the same value", f"{vote.same} of {args.seeds}", f"{args.seeds}"],
    ]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.lang_decoders", description=__doc__)
    parser.add_argument("--tokens", type=int, default=16, help="of each gen")
    parser.add_argument("--rounds", type=int, default=7, help="of the beam and of the logs")
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--calls", type=int, default=500, help="of a chain that is logged")
    parser.add_argument("--real-calls", type=int, default=100, help="the same on the real model")
    parser.add_argument("--rows", type=int, default=16, help="of a vote")
    parser.add_argument("--at-once", type=int, default=4, help="rows side by side")
    parser.add_argument("--seeds", type=int, default=5, help="votes")
    parser.add_argument("--skip-engine", action="store_true", help="only what needs no model")
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    rows: list[list[str]] = []
    costs = log_us(args.calls, args.rounds)
    for name, cost in costs.items():
        beyond = "" if name == "none" else f" ({cost - costs['none']:+.0f})"
        rows.append([f"a call at once, log: {name}", f"{cost:.0f} us{beyond}", ""])
    beam_ms = at_once_ms(args.tokens, args.rounds)
    rows.append(["a beam with calls at once, CPU time of each run", f"{beam_ms:.2f} ms", ""])
    if not args.skip_engine:
        with Engine(max_total_tokens=32768) as engine:
            backend = Recording(f"ipc://{engine.directory}")
            with backend:
                rows += measured(engine, backend, args)
    print(machine())
    print(markdown(("what", "measured", "asked"), rows))


if __name__ == "__main__":
    main()
