"""A scheduler process that comes to harm at steps that compute certain tokens, at the constraint of
a request that has one, or at pictures of certain colours."""

import ctypes
import os
import signal
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

import scheduler_proc.actor
from scheduler_proc.actor import SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.executor.base import Executor
from scheduler_proc.grammar.base import CompiledGrammar, Grammar
from scheduler_proc.process.grammar_loading import GrammarIntake
from srt.ring.actor import run_actor
from srt.wire.media import MediaItem
from srt.wire.messages import unpack_ids
from srt.wire.ring_messages import TokenizedReq

# Control tokens that the embedded model never writes, so that other tests can use the server.
CRASHES, IS_KILLED, RUNS_FOR_EVER, WAITS_FOR_EVER, FAILS, CONSTRAINT_CRASHES = range(7, 13)


def _run_for_ever() -> None:
    while True:
        pass


def _fail() -> None:
    raise RuntimeError("made to fail")


FAULTS: dict[int, Callable[[], object]] = {
    CRASHES: lambda: ctypes.string_at(1),
    IS_KILLED: lambda: os.kill(os.getpid(), signal.SIGKILL),
    RUNS_FOR_EVER: _run_for_ever,
    WAITS_FOR_EVER: lambda: ctypes.CDLL(None).sleep(100_000),  # without the interpreter's lock
    FAILS: _fail,
}


# By the red of a picture whose green and blue are 0.
FAULTS_BY_RED = {201: CRASHES, 202: WAITS_FOR_EVER, 203: FAILS}


class FaultyExecutor:
    """Another executor, but for these tokens and pictures."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(self, batch: ForwardBatch) -> StepResult:
        for token in FAULTS.keys() & set(batch.input_ids.tolist()):
            FAULTS[token]()
        return self._executor.run(batch)

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float) -> bool:
        red, green, blue = pixels[0, 0, 0].tolist()
        if green == blue == 0 and red in FAULTS_BY_RED:
            FAULTS[FAULTS_BY_RED[red]]()
        seeing: Any = self._executor
        is_done: bool = seeing.encode(item, pixels, part, seconds)
        return is_done


class FaultyGrammar:
    """Another grammar, but for its masks."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    def fill(self, row: np.ndarray) -> None:
        ctypes.string_at(1)


class FaultyIntake(GrammarIntake):
    def _started(self, req: TokenizedReq, compiled: CompiledGrammar) -> Grammar:
        if CONSTRAINT_CRASHES in unpack_ids(req.input_ids):
            made: Any = SimpleNamespace(start=partial(_faulty, compiled))
            compiled = made
        return super()._started(req, compiled)


def _faulty(compiled: CompiledGrammar) -> FaultyGrammar:
    return FaultyGrammar(compiled.start())


class FaultyScheduler(SchedulerActor):
    def _load(self, threads: int | None) -> Executor:
        executor: Any = FaultyExecutor(super()._load(threads))
        return executor  # type: ignore[no-any-return]


if __name__ == "__main__":
    scheduler_proc.actor.GrammarIntake = FaultyIntake  # type: ignore[attr-defined]
    run_actor(FaultyScheduler)
