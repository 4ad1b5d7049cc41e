"""The process of an attacker of `bench.hostile`."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection


def spin(seconds: float) -> None:
    """Keep the CPU busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@contextlib.contextmanager
def attacker(attack: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """A process that runs `attack(arguments[0], orders, *arguments[1:])`; None ends it."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    given = (arguments[0], theirs, *arguments[1:])
    process = context.Process(target=attack, args=given, daemon=True)
    process.start()
    try:
        yield ours
        ours.send(None)
        process.join(10)
    finally:
        process.kill()
