"""Attention of one layer on its own: the attention rows of `bench.kernels --ops`.

Calls rotate over slots and layers of a pool of their own, until they have read the working set: in
a model, the other layers' keys and weights are read between two reads of one layer.
"""

from collections.abc import Iterator
from ctypes import Array
from typing import NamedTuple

import numpy as np

from bench.kernel_calls import Operations
from bench.kernel_steps import fill_pool
from bench.roofline import Call, Measured, Runner, Work, copies_of
from scheduler_proc.executor.native_pool import KVPool, pool_dtype
from scheduler_proc.kernels.library import Batch, Layer, Model
from scheduler_proc.models.config import DecoderConfig
from tests.scheduler_proc.ragged import indptr, int32

POOL_LAYERS = 8
POOL_SLOTS = 65536  # 32 rows of 2048
MOST_VARIANTS = 256
DECODE_ROWS = (1, 8, 32)
CONTEXTS = (64, 512, 2048)


class Shape(NamedTuple):
    """Heads of a model."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot's keys and values in one layer, of 16 bits."""
        return 2 * 2 * self.kv_heads * self.head_dim


class Case(NamedTuple):
    """`rows` requests with `shared` slots in common, `own` more each, and `extend` new tokens."""

    rows: int
    own: int
    shared: int = 0
    extend: int = 1
    permuted: bool = False
    sharing: bool = True

    @property
    def name(self) -> str:
        if self.extend > 1:
            return f"attention extend {self.extend} over {self.own - self.extend}"
        if self.shared:
            switch = "on" if self.sharing else "off"
            context = f"ctx={self.shared} shared + {self.own}, sharing {switch}"
        else:
            context = f"ctx={self.own}, {'permuted' if self.permuted else 'contiguous'}"
        return f"attention decode B={self.rows} {context}"

    @property
    def slots(self) -> int:
        """Distinct slots that are read."""
        return self.shared + self.rows * self.own

    @property
    def pairs(self) -> int:
        """Pairs of a token and a slot that it sees."""
        before = self.shared + self.own - self.extend
        return self.rows * (self.extend * before + self.extend * (self.extend + 1) // 2)

    def work(self, shape: Shape) -> Work:
        """Keys and values of every slot once, however many rows see them; two products."""
        flops = 4 * self.pairs * shape.heads * shape.head_dim
        return Work(self.slots * shape.slot_bytes, flops)

    def arrays(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """The fields of an srt_batch that attention reads, for these distinct slots."""
        parts = slots[self.shared : self.slots].reshape(self.rows, self.own)
        shared = np.broadcast_to(slots[: self.shared], (self.rows, self.shared))
        return {
            "qo_indptr": indptr([self.extend] * self.rows),
            "kv_indptr": indptr([self.shared + self.own] * self.rows),
            "kv_indices": int32(np.concatenate([shared, parts], axis=1).reshape(-1)),
        }


CASES = (
    *(
        Case(rows, context, permuted=permuted)
        for rows in DECODE_ROWS
        for context in CONTEXTS
        for permuted in (False, True)
    ),
    Case(1, 512, extend=512),
    Case(1, 2012, extend=512),
    Case(32, 64, shared=1500),
    Case(32, 64, shared=1500, sharing=False),
)


class Pool:
    """Keys and values of a few layers as the level holds them by default, filled."""

    def __init__(self, shape: Shape, layers: int, slots: int, isa: str) -> None:
        rng = np.random.default_rng(0)
        self.shape = shape
        dtype = pool_dtype("auto", exact=False, integers=True, isa=isa)
        self.memory = KVPool((layers, 2, slots, shape.kv_heads, shape.head_dim), dtype)
        fill_pool(self.memory)
        self.layers: Array[Layer] = (Layer * layers)()
        self.memory.attach(self.layers)
        self.model = Model(
            num_layers=layers,
            **shape._asdict(),
            num_slots=slots,
            kv_format=self.memory.format,
            attn_scale=shape.head_dim**-0.5,
        )
        self._orders = (np.arange(slots), rng.permutation(slots))

    def variants(self, case: Case) -> Iterator[tuple[Layer, np.ndarray]]:
        """A layer and slots of it for each call, none of them twice."""
        order = self._orders[case.permuted]
        most = min(MOST_VARIANTS, len(order) // case.slots * len(self.layers))
        for i in range(copies_of(case.slots * self.shape.slot_bytes, most)):
            first = i // len(self.layers) * case.slots
            yield self.layers[i % len(self.layers)], order[first : first + case.slots]


def attention_rows(
    operations: Operations, config: DecoderConfig, runner: Runner
) -> Iterator[Measured]:
    """The cases that were asked for."""
    cases = [case for case in CASES if runner.wants(case.name)]
    if not cases:
        return
    shape = Shape(config.heads, config.kv_heads, config.head_dim)
    pool = Pool(shape, POOL_LAYERS, POOL_SLOTS, operations.isa)
    for case in cases:
        timing = runner.time(_calls(operations, pool, case))
        yield Measured(case.name, timing, case.work(shape))


def smallest_attention(operations: Operations) -> Call:
    """One token that sees itself, with one head."""
    return _calls(operations, Pool(Shape(1, 1, 64), 1, 1, operations.isa), Case(1, 1))[0]


def _calls(operations: Operations, pool: Pool, case: Case) -> list[Call]:
    tokens, shape = case.rows * case.extend, pool.shape
    q = np.random.default_rng(0).standard_normal((tokens, shape.heads, shape.head_dim), np.float32)
    out = np.empty_like(q)
    counts = {
        "num_tokens": tokens,
        "num_rows": case.rows,
        "share_prefixes": case.sharing,
    }
    calls = []
    for layer, slots in pool.variants(case):
        arrays = case.arrays(slots)
        batch = Batch.of(arrays, **counts)
        keep = arrays, pool.memory
        calls.append(operations.attention(pool.model, layer, batch, q, out, keep))
    return calls
