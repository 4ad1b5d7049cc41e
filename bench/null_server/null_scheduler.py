"""A scheduler process whose executor computes nothing: its tokens are random.

The environment variable NULL_RATE says how many tokens it makes in a second at most; 0: no limit.
"""

import os
import time

import numpy as np

from scheduler_proc.actor import SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.executor.base import Executor
from scheduler_proc.process.construction import core_config
from scheduler_proc.process.warm_up import warm_up
from srt.args import ServerArgs
from srt.files.vocab import served_vocab
from srt.ring.actor import run_actor

DRAWN = 1 << 16  # tokens that are drawn at the start, and come again and again


class NullExecutor:
    """Answers with random tokens of the served vocabulary, whatever is masked: at once, or after
    the time that they take at its rate."""

    name = "null"
    dtype: object = None
    weight_bytes = pool_bytes = 0

    def __init__(self, args: ServerArgs) -> None:
        vocab = served_vocab(args)
        self.vocab_size = len(vocab.token_bytes)
        self.context_len, self.max_total_tokens = vocab.context_len, args.pool_tokens
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(0, self.vocab_size, DRAWN, np.int32)
        self._at = 0
        rate = float(os.environ.get("NULL_RATE", "0"))
        self._token_s = 1 / rate if rate > 0 else 0.0

    def run(self, batch: ForwardBatch) -> StepResult:
        count = len(batch.sample_tokens)
        if self._at + count > DRAWN:
            self._at = 0
        self._at += count
        if self._token_s:
            time.sleep(count * self._token_s)
        return StepResult(
            self._tokens[self._at - count : self._at].copy(),
            np.full(count, np.nan, np.float32),
            np.zeros(len(batch.logprob_tokens), np.float32),
        )


class NullScheduler(SchedulerActor):
    """The scheduler over a `NullExecutor`."""

    def _load(self, threads: int | None) -> Executor:
        executor = NullExecutor(self.args)
        self._warm_steps = warm_up(executor, core_config(self.args, executor))
        return executor


if __name__ == "__main__":
    run_actor(NullScheduler)
