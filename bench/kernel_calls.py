"""Single operations of the native library as calls without arguments, ready to be timed.

Used by the parts of `bench.kernels`. A call keeps alive the arrays that its structures point to.
"""

from collections.abc import Sequence
from ctypes import byref, c_float
from functools import partial
from typing import Any

import numpy as np

from bench.roofline import Call
from scheduler_proc.executor.native_executor import ACTIVATION_BITS
from scheduler_proc.kernels.library import Batch, Layer, Library, Matrix, Model, address, pointer


class Operations:
    """A thread pool with the kernels of one level. `activations` is one of ACTIVATION_BITS; "auto"
    is what the level computes best with, of a large model."""

    def __init__(self, library: Library, threads: int, isa: str, activations: str = "auto") -> None:
        self.library, self.isa = library, isa
        bits = ACTIVATION_BITS[activations]
        self._pool = library.created(library.c.srt_pool_create(threads, isa.encode(), bits))

    def close(self) -> None:
        """End the threads; no call can be made afterwards."""
        self.library.c.srt_pool_destroy(self._pool)

    def linear(self, matrices: Sequence[Matrix], x: np.ndarray, y: np.ndarray, keep: Any) -> Call:
        """y [m, n] = x [m, k] @ w.T; with two matrices, silu(x @ gate.T) * (x @ up.T)"""
        name = "srt_op_linear" if len(matrices) == 1 else "srt_op_gate_up"
        arrays = pointer(x, c_float), len(x), pointer(y, c_float)
        return self._call(name, (*map(byref, matrices), *arrays), (x, y, keep))

    def attention(
        self, model: Model, layer: Layer, batch: Batch, q: np.ndarray, out: np.ndarray, keep: Any
    ) -> Call:
        """out [T, heads, head_dim]: attention of q of that shape"""
        structs = byref(model), byref(layer), byref(batch)
        arguments = (*structs, pointer(q, c_float), pointer(out, c_float))
        return self._call("srt_op_attention", arguments, (q, out, keep))

    def sample(self, logits: np.ndarray, batch: Batch, keep: Any) -> Call:
        """Draw from logits [S, vocab]."""
        arguments = pointer(logits, c_float), logits.shape[1], byref(batch)
        return self._call("srt_op_sample", arguments, (logits, keep))

    def read(self, data: np.ndarray) -> Call:
        """Read all of `data` once."""
        return partial(self.library.c.srt_op_read, self._pool, address(data), data.nbytes)

    def _call(self, name: str, arguments: tuple[Any, ...], keep: Any) -> Call:
        return partial(self._run, keep, getattr(self.library.c, name), *arguments)

    def _run(self, keep: Any, function: Any, *arguments: Any) -> None:
        self.library.check(function(self._pool, *arguments))
