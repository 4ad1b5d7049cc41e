"""Runs workloads against one server that is up, and reports on it."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figures import Figures, figures_of
from bench.guesses import counted_by
from srt.benchmark.corpus import CorpusSource, built_in, read_corpus
from srt.benchmark.load import LoadGenerator
from srt.benchmark.summary import now
from srt.benchmark.text import Source, TextSource
from srt.benchmark.workloads import WORKLOADS
from srt.machine import machine


class Course:
    """The chosen workloads, with the same texts and seeds for every server that runs them.

    How many tokens a word costs is asked of the first server only.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises ConfigError if `args.data` cannot be read."""
        self.names = list(WORKLOADS) if args.workload == "all" else [args.workload]
        self.tokens_per_word: float | None = None
        self._args = args
        self._corpus = read_corpus(args.data) if args.data else built_in()

    def client(self, url: str) -> LoadGenerator:
        """What asks the server at `url`."""
        args = self._args
        return LoadGenerator(
            url,
            args.model,
            args.api_key,
            ignore_eos=args.ignore_eos,
            temperature=args.temperature,
            seed=args.seed,
        )

    async def prepare(self, load: LoadGenerator) -> None:
        """Send a probe, which also warms the server up. Raises RuntimeError if it fails."""
        await load.fill_model()
        measured = await load.tokens_per_word(self._source(self._args.seed - 1, 1.0))
        self.tokens_per_word = self.tokens_per_word or measured

    async def run(self, name: str, load: LoadGenerator) -> Figures:
        """One workload, after `prepare`. Errors go to stderr."""
        assert self.tokens_per_word is not None
        # A workload's text does not depend on which others run with it.
        source = self._source(self._args.seed, self.tokens_per_word)
        workload = WORKLOADS[name](source, self._args.scale)
        before = await counted_by(load)
        run = await load.run(workload)
        for error in sorted({r.error for r in run.records if r.error}):
            print(f"{name}: {error}", file=sys.stderr)
        return figures_of(run, (await counted_by(load)).since(before))

    def _source(self, seed: int, tokens_per_word: float) -> Source:
        if self._args.random_words:
            return TextSource(seed, tokens_per_word)
        return CorpusSource(seed, tokens_per_word, self._corpus)


async def server_info(load: LoadGenerator) -> Any:
    """What the server reports about itself, or None."""
    reply = await load.http.get("/server_info")
    try:
        return reply.json() if reply.is_success else None
    except ValueError:
        return None


def width_of(server: Any) -> str:
    """What the table says of our server's activations; "" of another server, which reports none."""
    width = server.get("resolved_activations") if isinstance(server, dict) else None
    return f"activations: {width} (bfloat16 at the level amx)" if width else ""


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen workloads on the server at `args.url`; the report as plain data."""
    course = Course(args)
    figures: dict[str, Figures] = {}
    flushed: dict[str, bool] = {}
    async with course.client(args.url) as load:
        await course.prepare(load)
        for name in course.names:
            flushed[name] = await load.flush_cache()
            figures[name] = await course.run(name, load)
        server = await server_info(load)
    return conditions(args, course) | {
        "url": args.url,
        "cache_flushed": flushed,
        "figures": figures,
        "server": server,
    }


def conditions(args: argparse.Namespace, course: Course) -> dict[str, Any]:
    """What a report says about how it was made."""
    return {
        "date": now(),
        "scale": args.scale,
        "seed": args.seed,
        "temperature": args.temperature,
        "texts": "random words" if args.random_words else str(args.data or "built in"),
        "ignore_eos": args.ignore_eos,
        "tokens_per_word": course.tokens_per_word,
        "machine": machine(),
    }


def words_of(directory: Path) -> list[str]:
    """All words in the strings of the *.jsonl files of `directory`, in file order.

    Raises ValueError if there are none.
    """
    words: list[str] = []
    for path in sorted(directory.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                for text in _strings(json.loads(line)):
                    words.extend(text.split())
    if not words:
        raise ValueError(f"{directory} has no *.jsonl file with text")
    return words


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
