"""Measures how fast one stream of a model would be on this machine.

`srt models` runs it as a process of its own: `python -m scheduler_proc.speed MODEL`.

Decoding reads each weight once a token, so its time is the layers' bytes by the bandwidth that the
kernels reach, and a part of the step that is no layer's. Both are measured on the model itself: a
small model runs whole; of a large one two excerpts of some of its layers run, each larger than the
caches, and a line through them is followed to the last layer.

Of a mixture of experts a token reads a part. Tokens differ from step to step, and so do the experts
that they use; an excerpt has so many layers that what all tokens read is larger than the caches,
too.
"""

import math
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing

import msgspec
import numpy as np

from scheduler_proc.batch import SAMPLE_DTYPES, ForwardBatch, Samples
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import load
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.ragged import indptr_of
from srt.files.model_files import ModelFiles, resolve_model
from srt.files.sizes import model_sizes
from srt.wire.errors import SrtError

# What an excerpt has at least: more than the caches of most machines.
EXCERPT_BYTES = 2**28
_ACTIVE = 4  # the part of it that a token reads at least
_CONTEXT = 256
_STEPS, _LEAST_S, _MOST_STEPS = 8, 0.4, 200


def decode_seconds(files: ModelFiles, excerpt_bytes: int = EXCERPT_BYTES) -> float:
    """Seconds that one token of one stream takes on the native executor, after 256 others.

    Raises ConfigError or NativeUnavailable for a model that it cannot run.
    """
    checkpoint = open_checkpoint(files)
    layers = checkpoint.config.layers
    few = excerpt_layers(files, checkpoint.num_bytes / layers, excerpt_bytes)
    if 2 * few >= layers:
        return _measured(files, None)
    first, second = (_measured(files, count) for count in (few, 2 * few))
    return second + (layers - 2 * few) * max(0.0, second - first) / few


def excerpt_layers(files: ModelFiles, layer_bytes: float, excerpt_bytes: int) -> int:
    """Layers of the smaller excerpt of a model whose layers have `layer_bytes` each: all its bytes
    are at least `excerpt_bytes`, and those that a token reads a quarter of that. Raises ConfigError
    if the files do not say their sizes."""
    sizes = model_sizes(files)
    active = sizes.active_bytes / sizes.weight_bytes
    least_bytes = max(excerpt_bytes, excerpt_bytes / _ACTIVE / active)
    return max(2, math.ceil(least_bytes / max(1, layer_bytes)))


def _measured(files: ModelFiles, layers: int | None) -> float:
    """Of the whole model, or of its first layers."""
    with closing(NativeExecutor(files, max_total_tokens=_CONTEXT + 1, num_layers=layers)) as run:
        ids = np.random.default_rng(0).integers(0, run.vocab_size, _CONTEXT + _MOST_STEPS + 1)
        prompt, *decodes = ids[:_CONTEXT], *ids[_CONTEXT:]
        run.run(_step(prompt, 0))
        run.run(_step([decodes[-1]], _CONTEXT))
        seconds = list[float]()
        while len(seconds) < _STEPS or (sum(seconds) < _LEAST_S and len(seconds) < _MOST_STEPS):
            decode = _step([decodes[len(seconds)]], _CONTEXT)
            began = time.perf_counter()
            run.run(decode)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def _step(tokens: Sequence[int] | np.ndarray, start: int) -> ForwardBatch:
    """One request's tokens, which begin at position `start`; the last one samples."""
    ids, count = np.asarray(tokens, np.int32), len(tokens)
    positions = np.arange(start, start + count, dtype=np.int32)
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
