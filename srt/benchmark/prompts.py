"""Workloads that a user describes: prompts of a file, or of chosen lengths, and when they come.

There may be very many, so each prompt is made or read when it is its turn.
"""

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, overload

import msgspec
from msgspec import Meta, Struct

from srt.benchmark.text import Source
from srt.benchmark.workloads import Node, Workload
from srt.wire.errors import ConfigError

MAX_LINE_BYTES = 2**24


class _Line(Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


class _Roots(Sequence[Node]):
    """Nodes that `make` makes of their numbers when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], Node]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)


def of_file(path: Path, count: int, out_tokens: int, concurrency: int) -> Workload:
    """The first `count` lines (0: all) of a JSONL file of {"prompt": ..., "max_tokens": ...}, or
    with "messages" in place of the prompt; `out_tokens` where a line does not say how many.

    Raises ConfigError, which names the line and the field.
    """
    starts = array("q")
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"--dataset {path}: it must be a file, which can be read again")
        for start, number, line in _lines(path):
            if count and len(starts) == count:
                break
            _read(line, f"--dataset {path}, line {number}")
            starts.append(start)
        if len(starts) < max(count, 1):
            wanted = f", and --num-prompts is {count}" if count else ""
            raise ConfigError(f"--dataset {path}: it has {len(starts)} prompts{wanted}")
    except OSError as error:
        raise ConfigError(f"--dataset {path}: {error.strerror}") from error

    def root(index: int) -> Node:
        with path.open("rb") as file:
            file.seek(starts[index])
            line = _read(file.readline(MAX_LINE_BYTES + 1), str(path))
        fields = {} if line.messages is None else {"messages": line.messages}
        return Node(line.prompt or "", line.max_tokens or out_tokens, fields=fields)

    return Workload(path.name, concurrency, _Roots(len(starts), root))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Where each line that is not blank begins, its number, and its content."""
    with path.open("rb") as file:
        start, number = 0, 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if line.strip():
                yield start, number, line
            start += len(line)


def _read(line: bytes, where: str) -> _Line:
    if len(line) > MAX_LINE_BYTES:
        raise ConfigError(f"{where}: it has more than {MAX_LINE_BYTES} bytes")
    try:
        found = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if (found.prompt is None) == (found.messages is None):
        raise ConfigError(f"{where}: it must have a prompt, or messages")
    return found


def of_length(
    count: int,
    source_of: Callable[[str], Source],
    in_tokens: int,
    out_tokens: int,
    concurrency: int,
) -> Workload:
    """`count` unrelated prompts of about `in_tokens` tokens, each from a source of its own, which
    `source_of` makes of the prompt's number."""

    def root(index: int) -> Node:
        return Node(source_of(str(index)).prompt(in_tokens), out_tokens)

    return Workload("random", concurrency, _Roots(count, root))


def arrivals(count: int, rate: float, seed: int) -> Sequence[float]:
    """Times in s of `count` requests of a Poisson process of `rate` per second, which begins with
    the first one."""
    rng, now, times = random.Random(seed), 0.0, array("d")
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate)
    return times
