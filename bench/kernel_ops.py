"""Linear layers and sampling on their own: the rows of `bench.kernels --ops`, with attention.

Linear layers have the shapes and formats of the embedded model and rotate over its layers'
weights, copied until they make up the working set.
"""

from collections.abc import Iterator, Sequence
from ctypes import c_uint8
from typing import NamedTuple

import numpy as np

from bench.kernel_calls import Operations
from bench.roofline import Arithmetic, Call, Measured, Runner, Timing, Work, copies_of
from scheduler_proc.kernels.library import Batch, Format, Library, Matrix, address, huge_memory
from scheduler_proc.models.packed import PackedModel
from tests.scheduler_proc.ragged import samples_of

ROWS = (1, 8, 32, 128, 512)
INT8_FORMATS = (Format.Q4, Format.Q4K, Format.Q8, Format.Q6)
BF16_FORMATS = tuple(format.tiled for format in INT8_FORMATS)
SAMPLE_ROWS = (1, 32)
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k 50, top-p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "mask of 200 allowed": {"temperature": 0.8},
}
ALLOWED = 200


class Copy(NamedTuple):
    """Matrices of one call, and the memory that they are in."""

    matrices: tuple[Matrix, ...]
    memory: tuple[np.ndarray, ...]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.memory)


class Linear(NamedTuple):
    """A linear layer of the model: for every decoder layer, the matrices that one call takes, each
    as the list of those that it joins."""

    name: str
    sources: Sequence[Sequence[Sequence[Matrix]]]

    @property
    def first(self) -> Sequence[Sequence[Matrix]]:
        return self.sources[0]

    @property
    def inputs(self) -> int:
        inputs: int = self.first[0][0].k
        return inputs

    @property
    def outputs(self) -> int:
        """The outputs of all matrices together."""
        return sum(matrix.n for parts in self.first for matrix in parts)

    @property
    def format(self) -> Format:
        return Format(self.first[0][0].format)

    @property
    def arithmetic(self) -> Arithmetic:
        """Bytes for quantised weights, whatever the width of activations; bfloat16 in tiles."""
        if self.format in BF16_FORMATS:
            return "bf16"
        return "int8" if self.format in INT8_FORMATS else "fp32"

    def title(self, rows: int) -> str:
        """The name of the row with this many activations."""
        shape = f"{self.inputs}x{self.outputs} {self.format.name}"
        return f"linear {self.name} {shape}, M={rows}"

    def copies(self, library: Library) -> list[Copy]:
        """Copies that make up the working set."""
        copies = copies_of(_copy(library, self.first).num_bytes)
        return [_copy(library, self.sources[i % len(self.sources)]) for i in range(copies)]


def linears(packed: PackedModel) -> list[Linear]:
    """The calls per layer as the engine makes them, and the head."""
    layers = list(packed.layers)
    return [
        Linear("qkv", [[(layer.q, layer.k, layer.v)] for layer in layers]),
        Linear("o", [[(layer.o,)] for layer in layers]),
        Linear("gate_up", [[(layer.gate,), (layer.up,)] for layer in layers]),
        Linear("down", [[(layer.down,)] for layer in layers]),
        Linear("head", [[(packed.head,)]]),
    ]


def linear_rows(operations: Operations, packed: PackedModel, runner: Runner) -> Iterator[Measured]:
    """The bytes are those of the weights only."""
    for linear in linears(packed):
        rows = [m for m in ROWS if runner.wants(linear.title(m))]
        copies = linear.copies(operations.library) if rows else []
        for m in rows:
            flops = 2 * m * linear.inputs * linear.outputs
            calls = _linear_calls(operations, copies, m)
            work = Work(copies[0].num_bytes, flops, linear.arithmetic)
            yield Measured(linear.title(m), runner.time(calls), work)


def _linear_calls(operations: Operations, copies: Sequence[Copy], rows: int) -> list[Call]:
    first = copies[0].matrices[0]
    x = np.random.default_rng(0).standard_normal((rows, first.k), np.float32)
    y = np.empty((rows, first.n), np.float32)
    return [operations.linear(copy.matrices, x, y, copy.memory) for copy in copies]


def _copy(library: Library, sources: Sequence[Sequence[Matrix]]) -> Copy:
    matrices, memory = zip(*(_joined(library, parts) for parts in sources), strict=True)
    return Copy(matrices, memory)


def _joined(library: Library, parts: Sequence[Matrix]) -> tuple[Matrix, np.ndarray]:
    """One matrix with the outputs of all: their blocks of 16 lie one after the other."""
    first = parts[0]
    if any(m.format != first.format or m.k != first.k or m.n % 16 for m in parts):
        raise ValueError("matrices of several formats or widths cannot be joined")
    packed = [_packed(library, matrix) for matrix in parts]
    memory = huge_memory(sum(array.nbytes for array in packed))
    np.concatenate(packed, out=memory)
    outputs = sum(matrix.n for matrix in parts)
    return Matrix(first.format, outputs, first.k, address(memory)), memory


def _packed(library: Library, matrix: Matrix) -> np.ndarray:
    size = library.packed_bytes(Format(matrix.format), matrix.n, matrix.k)
    return np.ctypeslib.as_array((c_uint8 * size).from_address(matrix.data))


class Sampled(NamedTuple):
    """One row of the sampling table."""

    name: str
    samples: int
    timing: Timing


def sampling_rows(operations: Operations, vocab: int, runner: Runner) -> Iterator[Sampled]:
    """Logits are normal with deviation 3: most real ones are less flat, so top-p cuts more."""
    rng = np.random.default_rng(0)
    for name, parameters in SAMPLING.items():
        for count in SAMPLE_ROWS:
            title = f"sampling {name}, rows={count}"
            if runner.wants(title):
                logits = 3 * rng.standard_normal((count, vocab), np.float32)
                fields = sampling_arrays(count, parameters)
                if "mask" in name:
                    fields |= mask_arrays(rng, count, vocab)
                batch = Batch.of(fields, num_samples=count)
                timing = runner.time([operations.sample(logits, batch, fields)])
                yield Sampled(title, count, timing)


def sampling_arrays(count: int, parameters: dict[str, float]) -> dict[str, np.ndarray]:
    """The sampling fields of an srt_batch, results included."""
    samples = samples_of(count, uniform=np.linspace(0.0, 0.99, count), **parameters)
    fields: dict[str, np.ndarray] = samples._asdict()
    fields["next_ids"] = np.empty(count, np.int32)
    fields["logprobs"] = np.empty(count, np.float32)
    return fields


def mask_arrays(rng: np.random.Generator, count: int, vocab: int) -> dict[str, np.ndarray]:
    """A mask per row, each with ALLOWED tokens."""
    allowed = np.zeros((count, -(-vocab // 32) * 32), np.bool_)
    for row in allowed:
        row[rng.choice(vocab, ALLOWED, replace=False)] = True
    words = np.packbits(allowed, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return {"masks": words, "mask_rows": np.arange(count, dtype=np.int32)}
