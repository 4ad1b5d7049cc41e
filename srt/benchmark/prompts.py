"""Workloads that a user describes: prompts of a file, or of chosen lengths, and when they come."""

import random
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from srt.benchmark.text import TextSource
from srt.benchmark.workloads import Node, Workload
from srt.wire.errors import ConfigError

MAX_LINE_BYTES = 2**24


class _Line(Struct):
    prompt: str
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


def of_file(path: Path, count: int, out_tokens: int, concurrency: int) -> Workload:
    """The first `count` lines (0: all) of a JSONL file of {"prompt": ..., "max_tokens": ...};
    `out_tokens` where a line does not say how many.

    Raises ConfigError, which names the line and the field.
    """
    roots: list[Node] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if count and len(roots) == count:
                    break
                if line.strip():
                    found = _read(line, f"{path}, line {number}")
                    roots.append(Node(found.prompt, found.max_tokens or out_tokens))
    except OSError as error:
        raise ConfigError(f"--dataset {path}: {error.strerror}") from error
    if not roots:
        raise ConfigError(f"--dataset {path}: it has no lines")
    return Workload(path.name, concurrency, roots)


def _read(line: bytes, where: str) -> _Line:
    if len(line) > MAX_LINE_BYTES:
        raise ConfigError(f"{where}: it has more than {MAX_LINE_BYTES} bytes")
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error


def of_length(
    source: TextSource, count: int, in_tokens: int, out_tokens: int, concurrency: int
) -> Workload:
    """`count` unrelated prompts of about `in_tokens` tokens."""
    roots = [Node(source.text(in_tokens), out_tokens) for _ in range(count)]
    return Workload("random", concurrency, roots)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Times in s of `count` requests of a Poisson process of `rate` per second, which begins with
    the first one."""
    rng, now, times = random.Random(seed), 0.0, list[float]()
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate)
    return times
