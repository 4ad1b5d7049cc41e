"""Mixtures of experts against a dense MLP that has all their weights, in turns: the table of
`bench.kernels --experts`.

Both are engines of layers that are hardly more than their MLPs, on random weights. Each layer's
router chooses, so a batch has other experts in each. Beside other work the phases of several
threads say little: use --threads 1.
"""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_double, c_float, pointer
from functools import partial
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np

from bench.kernel_peaks import Setting
from bench.roofline import Peaks, Runner, number, percent, warm_up
from scheduler_proc.executor.native_executor import empty_result, step_arrays
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format, Library, Matrix, Source
from tests.scheduler_proc.kernels.ops import random_source
from tests.scheduler_proc.ragged import Row, make_batch

SLOTS, VOCAB, HEAD_DIM = 1024, 32, 64
SOURCES = {Format.Q4K: Source.Q4_K, Format.Q8: Source.Q8_0}
# Of all weights together: several times any last-level cache, so that they come from memory.
LEAST_BYTES = 4 * 32 * 2**20
MLP_PHASES = ("router", "gate_up", "down", "combine")


class Shape(NamedTuple):
    """A mixture's sizes."""

    experts: int
    used: int
    hidden: int
    width: int


SHAPES = (Shape(8, 2, 2048, 1024), Shape(64, 8, 2048, 1024), Shape(128, 8, 2048, 768))
TOKENS = (1, 2, 8, 32, 512)

EXPERT_COLUMNS = ("experts, tokens", "ms", "dense, ms", "ratio", "least", "read")


class Net:
    """An engine of `layers` layers: mixtures, or with `is_dense` one MLP of all experts' width."""

    def __init__(self, setting: Setting, shape: Shape, format: Format, is_dense: bool) -> None:
        self._library: Library = setting.library
        self._format = format.tiled if setting.library.has_tiles(setting.isa) else format
        self._source, self._shape = SOURCES[format], shape
        self._kept: list[Any] = []
        per_expert = 3 * self._library.packed_bytes(self._format, shape.width, shape.hidden)
        self.layer_bytes = shape.experts * per_expert
        layers = max(1, -(-LEAST_BYTES // self.layer_bytes))
        array = self._keep(
            (library.Layer * layers)(*(self._layer(is_dense) for _ in range(layers)))
        )
        self._model = self._make_model(array, shape.experts * shape.width)
        create = self._library.c.srt_engine_create
        level = setting.isa.encode()
        self._engine = self._library.created(create(byref(self._model), setting.threads, level))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.c.srt_engine_destroy(self._engine)

    def run(self, tokens: int) -> float:
        """Seconds of the MLPs in a step of so many tokens, each a row of its own."""
        ids = np.random.default_rng(tokens).integers(0, VOCAB, tokens)
        batch = make_batch([Row([token], [slot]) for slot, token in enumerate(ids)])
        batch.sample_tokens = batch.sample_tokens[:1]
        result = empty_result(batch)
        arrays = step_arrays(batch, result)
        step = library.Batch.of(arrays, num_tokens=tokens, num_rows=tokens, num_samples=1)
        self._library.check(self._library.c.srt_engine_step(self._engine, byref(step)))
        seconds = np.zeros(library.NUM_PHASES)
        self._library.c.srt_engine_profile(self._engine, library.pointer(seconds, c_double))
        names = [self._library.c.srt_phase_name(i).decode() for i in range(len(seconds))]
        return float(sum(seconds[names.index(name)] for name in MLP_PHASES))

    def _layer(self, is_dense: bool) -> library.Layer:
        shape = self._shape
        ones = self._floats(np.full(shape.hidden, 1.0))
        pool = library.address(self._keep(np.zeros((SLOTS, HEAD_DIM), np.float32)))
        layer = library.Layer(attn_norm=ones, mlp_norm=ones, k_pool=pool, v_pool=pool)
        for name in "qkv":
            setattr(layer, name, self._plain(HEAD_DIM, shape.hidden))
        layer.o = self._plain(shape.hidden, HEAD_DIM)
        if is_dense:
            width = shape.experts * shape.width
            layer.gate, layer.up = (self._matrix(width, shape.hidden) for _ in range(2))
            layer.down = self._matrix(shape.hidden, width)
            return layer
        experts = library.Experts(
            count=shape.experts,
            used=shape.used,
            width=shape.width,
            rule=library.RouterRule(normalised=1, groups=1, used_groups=1, scale=1),
            router=self._plain(shape.experts, shape.hidden),
            gate=self._matrices(shape.width, shape.hidden),
            up=self._matrices(shape.width, shape.hidden),
            down=self._matrices(shape.hidden, shape.width),
        )
        layer.experts = pointer(self._keep(experts))
        return layer

    def _make_model(self, layers: "ctypes.Array[library.Layer]", width: int) -> library.Model:
        hidden = self._shape.hidden
        return library.Model(
            num_layers=len(layers),
            hidden=hidden,
            heads=1,
            kv_heads=1,
            head_dim=HEAD_DIM,
            intermediate=width,
            vocab=VOCAB,
            num_slots=SLOTS,
            kv_format=Format.F32,
            activation_bits=(8,) * len(library.INPUTS),
            rms_eps=1e-5,
            attn_scale=0.1,
            embed_scale=1,
            residual_scale=1,
            logit_scale=1,
            rope_freqs=self._floats(np.ones(HEAD_DIM // 2)),
            final_norm=self._floats(np.ones(hidden)),
            embed=self._plain(VOCAB, hidden),
            head=self._plain(VOCAB, hidden),
            layers=layers,
        )

    def _matrices(self, n: int, k: int) -> "ctypes.Array[Matrix]":
        count = self._shape.experts
        made = (Matrix * count)(*(self._matrix(n, k) for _ in range(count)))
        self._kept.append(made)
        return made

    def _matrix(self, n: int, k: int) -> Matrix:
        """A block of channels of random weights, many times."""
        rows = random_source(self._source, 16, k, seed=len(self._kept))
        block = self._library.pack(self._source, rows, 16, k, self._format)
        whole = library.huge_memory(n // 16 * block.nbytes)
        whole.reshape(-1, block.nbytes)[:] = block
        return Matrix(self._format, n, k, library.address(self._keep(whole)))

    def _plain(self, n: int, k: int) -> Matrix:
        rows = random_source(Source.F32, n, k, seed=len(self._kept))
        packed = self._library.pack(Source.F32, rows, n, k, Format.F32)
        return Matrix(Format.F32, n, k, library.address(self._keep(packed)))

    def _floats(self, values: np.ndarray) -> Any:
        return library.pointer(self._keep(values.astype(np.float32)), c_float)

    def _keep(self, thing: Any) -> Any:
        self._kept.append(thing)
        return thing


class ExpertRow(NamedTuple):
    """Median seconds of both engines' MLPs, the median of the turns' ratios, and the share of the
    mixture's time that reading its weights takes: those of the used experts for one token."""

    name: str
    seconds: Sequence[float]
    ratio: float
    least: float
    read: float | None

    def cells(self) -> list[str]:
        """Under EXPERT_COLUMNS."""
        times = (number(1e3 * s) for s in self.seconds)
        read = "" if self.read is None else percent(self.read)
        return [self.name, *times, f"{self.ratio:.2f}", f"{self.least:.2f}", read]


def expert_rows(setting: Setting, peaks: Peaks, runner: Runner) -> Iterator[ExpertRow]:
    """The rows that were asked for."""
    for shape in SHAPES:
        for format in SOURCES:
            names = {n: f"{format.name} {shape.used} of {shape.experts}, {n}" for n in TOKENS}
            wanted = [tokens for tokens in TOKENS if runner.wants(names[tokens])]
            if wanted:
                with (
                    Net(setting, shape, format, is_dense=False) as mixture,
                    Net(setting, shape, format, is_dense=True) as dense,
                ):
                    for tokens in wanted:
                        yield _row(names[tokens], mixture, dense, tokens, peaks, runner)


def _row(
    name: str, mixture: Net, dense: Net, tokens: int, peaks: Peaks, runner: Runner
) -> ExpertRow:
    for net in (mixture, dense):
        warm_up([partial(net.run, tokens)])
    turns = [(mixture.run(tokens), dense.run(tokens)) for _ in range(runner.repeat)]
    seconds = [median(times) for times in zip(*turns, strict=True)]
    ratios = [a / b for a, b in turns]
    shape, layers = mixture._shape, mixture._model.num_layers
    num_bytes = layers * mixture.layer_bytes * shape.used / shape.experts
    read = num_bytes / peaks.read / seconds[0] if tokens == 1 else None
    return ExpertRow(name, seconds, median(ratios), shape.used / shape.experts, read)
