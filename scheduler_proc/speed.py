"""Measures how fast one stream of a model would be on this machine.

`srt models` runs it as a process of its own: `python -m scheduler_proc.speed MODEL`.

Decoding reads each weight once a token, so its time is the layers' bytes by the bandwidth that the
kernels reach, and a part of the step that is no layer's. Both are measured on the model itself: a
small model runs whole; of a large one two excerpts of some of its layers run, each larger than the
caches, and a line through them is followed to the last layer.
"""

import statistics
import sys
import time
from contextlib import closing

import msgspec
import numpy as np

from scheduler_proc.batch import SAMPLE_DTYPES, ForwardBatch, Samples
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import load
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.ragged import indptr_of
from srt.files.model_files import ModelFiles, resolve_model
from srt.wire.errors import SrtError

# What an excerpt has at least: more than the caches of most machines.
EXCERPT_BYTES = 2**28
_CONTEXT = 256
_STEPS, _LEAST_S, _MOST_STEPS = 8, 0.4, 200


def decode_seconds(files: ModelFiles, excerpt_bytes: int = EXCERPT_BYTES) -> float:
    """Seconds that one token of one stream takes on the native executor, after 256 others.

    Raises ConfigError or NativeUnavailable for a model that it cannot run.
    """
    checkpoint = open_checkpoint(files)
    layers = checkpoint.config.layers
    per_layer = max(1, checkpoint.num_bytes // layers)
    few = max(2, -(-excerpt_bytes // per_layer))
    if 2 * few >= layers:
        return _measured(files, None)
    first, second = (_measured(files, count) for count in (few, 2 * few))
    return second + (layers - 2 * few) * max(0.0, second - first) / few


def _measured(files: ModelFiles, layers: int | None) -> float:
    """Of the whole model, or of its first layers."""
    with closing(NativeExecutor(files, max_total_tokens=_CONTEXT + 1, num_layers=layers)) as run:
        run.run(_step(0, _CONTEXT))
        decode, seconds = _step(_CONTEXT, 1), list[float]()
        run.run(decode)
        while len(seconds) < _STEPS or (sum(seconds) < _LEAST_S and len(seconds) < _MOST_STEPS):
            began = time.perf_counter()
            run.run(decode)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def _step(start: int, count: int) -> ForwardBatch:
    """One request's tokens [start, start + count); the last one samples."""
    ids, positions = np.ones(count, np.int32), np.arange(start, start + count, dtype=np.int32)
    columns = {name: np.zeros(1, dtype) for name, dtype in SAMPLE_DTYPES.items()}
    columns |= {"top_p": np.ones(1, np.float32), "top_k": np.full(1, -1, np.int32)}
    return ForwardBatch(
        input_ids=ids,
        positions=positions,
        out_slots=positions,
        qo_indptr=indptr_of([count]),
        kv_indptr=indptr_of([start + count]),
        kv_indices=np.arange(start + count, dtype=np.int32),
        sample_tokens=np.array([count - 1], np.int32),
        samples=Samples(**columns),
        logprob_tokens=np.empty(0, np.int32),
        logprob_targets=np.empty(0, np.int32),
    )


def main(argv: list[str]) -> int:
    """Write {"level": ..., "seconds": ...} for each model in `argv`, or {"error": ...}, a line
    each."""
    for model in argv:
        try:
            seconds = decode_seconds(resolve_model(model))
            found: dict[str, object] = {"level": load().isa(), "seconds": seconds}
        except (SrtError, RuntimeError, MemoryError) as error:
            found = {"error": str(error)}
        print(msgspec.json.encode(found).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
