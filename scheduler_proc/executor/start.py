"""How large a KV pool a device leaves: found by running the largest step once, on a small pool, and
by recording two graphs."""

import logging
from typing import NamedTuple, Protocol

import numpy as np

from scheduler_proc.batch import SAMPLE_DTYPES, ForwardBatch, Samples, StepResult
from scheduler_proc.core.steps.step import MOST_GUESSED
from scheduler_proc.executor.cuda_graphs import DecodeGraphs
from scheduler_proc.executor.device_memory import Budget, DeviceMemory, pool_tokens
from scheduler_proc.executor.failures import is_unrecordable
from scheduler_proc.ragged import indptr_of
from srt.args import DEFAULT_MEM_FRACTION

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What the steps of a server are bounded by; the command line's options of these names.
    `speculative_max_tokens` is 0 if nothing is guessed."""

    mem_fraction_static: float = DEFAULT_MEM_FRACTION
    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    speculative_max_tokens: int = 0


NO_OPTIONS = Bounds()


class Measured(Protocol):
    """An executor that can be tried on pools of several sizes."""

    vocab_size: int
    context_len: int

    @property
    def pool_bytes(self) -> int: ...

    @property
    def num_slots(self) -> int:
        """Slots that the pool's tensors have."""
        ...

    def use_pool(self, num_tokens: int) -> None:
        """Have a pool of this size in place of any other; 0 is none."""
        ...

    def new_graphs(self) -> DecodeGraphs | None:
        """Graphs over the pool, none recorded yet; None if steps run without."""
        ...

    def forgo_graphs(self, why: str) -> None:
        """Steps run without graphs from now on, which is logged."""
        ...

    def run(self, batch: ForwardBatch) -> StepResult: ...


def measured_tokens(
    executor: Measured, memory: DeviceMemory, available: int, bounds: Bounds, at_most: int
) -> int:
    """How many tokens the KV pool may have, up to `at_most` (0: any number), if `available` bytes
    were free before the model was loaded. The executor has no pool afterwards.

    Raises ConfigError if that is too few, and what the steps raise.
    """
    step = largest_step(executor, bounds)
    executor.use_pool(step.num_tokens)
    per_token = executor.pool_bytes // executor.num_slots
    spare = executor.num_slots - step.num_tokens
    memory.release()
    before = memory.allocated()
    memory.reset_peak()
    executor.run(step)
    transient = memory.peak() - before
    graphs = _bytes_of_graphs(executor, memory)
    executor.use_pool(0)
    memory.release()
    weights = available - memory.free()
    budget = Budget(memory.total(), available, weights, transient, graphs, per_token)
    tokens = pool_tokens(
        budget,
        bounds.mem_fraction_static,
        at_most=at_most,
        context_len=executor.context_len,
        spare=spare,
    )
    log.info(
        "memory: weights %.0f MiB, a step of %d tokens, %d rows and %d samples %.0f MiB, graphs "
        "%.0f MiB; %d tokens of %d bytes",
        *(weights / 2**20, step.num_tokens, step.num_rows, step.num_samples),
        *(transient / 2**20, graphs / 2**20),
        *(tokens, per_token),
    )
    return tokens


def largest_step(executor: Measured, bounds: Bounds) -> ForwardBatch:
    """A step of as many rows, tokens, samples and prompt log-probabilities as there can be: the
    last row is a chunk, and has the samples of guessed tokens too; the others are decodes."""
    rows = bounds.max_running_requests + 1  # and one ahead of time
    chunk = min(bounds.chunked_prefill_size, executor.context_len)
    lens = np.ones(rows, np.int32)
    lens[-1] = chunk
    indptr, slots = indptr_of(lens), np.arange(rows - 1 + chunk, dtype=np.int32)
    positions = np.concatenate((np.zeros(rows - 1, np.int32), np.arange(chunk, dtype=np.int32)))
    values = {"temperature": 1.0, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 0.0}
    values |= {"top_k": -1, "uniform": 0.5, "want_logprob": True}
    guessed = min(rows * bounds.speculative_max_tokens, chunk - 1, MOST_GUESSED)
    count = rows + guessed
    samples = {name: np.full(count, values[name], dtype) for name, dtype in SAMPLE_DTYPES.items()}
    return ForwardBatch(
        input_ids=np.zeros(len(slots), np.int32),
        positions=positions,
        out_slots=slots,
        qo_indptr=indptr,
        kv_indptr=indptr,
        kv_indices=slots,
        sample_tokens=np.concatenate((slots[: rows - 1], slots[len(slots) - 1 - guessed :])),
        samples=Samples(**samples),
        logprob_tokens=slots[rows - 1 :],
        logprob_targets=np.zeros(chunk, np.int32),
    )


def _bytes_of_graphs(executor: Measured, memory: DeviceMemory) -> int:
    """What all graphs will take: the first the memory that they share, each its own buffers."""
    graphs = executor.new_graphs()
    if graphs is None:
        return 0
    taken = []
    for _ in range(2):
        memory.release()
        free = memory.free()
        try:
            graphs.record_next()
        except RuntimeError as error:
            if not is_unrecordable(error):
                raise
            executor.forgo_graphs(str(error))
            return 0
        memory.release()
        taken.append(max(0, free - memory.free()))
    return taken[0] + (graphs.count - 1) * taken[1]
