"""Decode steps as graphs: all kernels of a step are launched at once, with what was recorded.

A graph is for a number of rows of one token each. A step with fewer rows is padded: a padding row
reads and writes one slot of the pool's tensors that no request ever gets. What a graph reads has
fixed addresses: its inputs are copied into it, and its attention plan is updated, before each
replay. Each size has two graphs that take turns, so that a step can be queued while the one before
still runs: what its copies read on the host must stay unchanged until they have run.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import torch

from scheduler_proc.attention.base import AttentionBackend, GraphBackend, GraphPlan, RaggedRows
from scheduler_proc.attention.staging import Event
from scheduler_proc.executor.device_memory import DeviceMemory
from scheduler_proc.models.decoder import TokenLayout
from scheduler_proc.models.torch_models import TorchModel

log = logging.getLogger(__name__)

TURNS = 2
# Slots that a graph has room for in all: at least this many, and the pool's size. Requests that
# share prefixes list more slots than the pool has.
MIN_INDICES = 1 << 20


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Queue it once more, on the same addresses."""
        ...


class Recorder(Protocol):
    """Records graphs. They share their memory, so they are replayed one after the other."""

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        """Run `call`, perhaps several times, and record it. Returns the graph and the tensor that
        each replay fills, which `call` has returned."""
        ...

    def mark(self) -> Event:
        """An event after all that has been queued so far."""
        ...


class CudaRecorder:
    """Records CUDA graphs of torch's, in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        """See Recorder."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            call()  # what libraries do at a first call cannot be recorded
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        with recording:
            output = call()
        return graph, output

    def mark(self) -> Event:
        """See Recorder."""
        event: Event = torch.cuda.current_stream(self._device).record_event()
        return event


def as_graph_backend(backend: AttentionBackend) -> GraphBackend | None:
    """The backend, if its decodes can be recorded."""
    return cast(GraphBackend, backend) if hasattr(backend, "graph_plan") else None


def graph_sizes(max_rows: int) -> list[int]:
    """The sizes for up to `max_rows` rows, ascending: 1, 2, 4, 8, 16, 24, ..., `max_rows`."""
    below = [size for size in (1, 2, 4, *range(8, max_rows, 8)) if size < max_rows]
    return [*below, max_rows]


def max_indices(size: int, pool_tokens: int, context_len: int) -> int:
    """How many slots a graph of `size` rows has room for in all."""
    return min(size * context_len, max(pool_tokens, MIN_INDICES))


class _Turn:
    """One graph of `size` rows over the slots of `pool`, and what it reads: `inputs` are ids,
    positions and out slots, [3, size] int64."""

    def __init__(
        self, plan: GraphPlan, padding_slot: int, device: torch.device, max_indices: int
    ) -> None:
        self.size, self.max_indices = plan.size, max_indices
        self._plan, self._padding_slot = plan, padding_slot
        self._inputs = torch.zeros((3, plan.size), dtype=torch.int64, device=device)
        self._inputs[2] = padding_slot
        self._num_live = 0  # rows of the last replay that were not padding
        self._copied: Event | None = None

    def record(self, model: TorchModel, pool: Any, recorder: Recorder) -> None:
        """Record the model's forward pass, on nothing but padding."""
        self._plan.update(padded(_no_rows(), self.size, self._padding_slot))
        ids, positions, out_slots = self._inputs
        layout = TokenLayout(positions, out_slots, self._plan)
        with torch.inference_mode():
            self._graph, self._output = recorder.record(lambda: model.forward(ids, layout, pool))

    def run(
        self, rows: RaggedRows, inputs: tuple[torch.Tensor, ...], recorder: Recorder
    ) -> torch.Tensor:
        """Replay it on these rows. The result is overwritten at the next call."""
        count = rows.num_rows
        if self._copied is not None:
            self._copied.synchronize()  # it has mostly been reached long ago
        self._plan.update(padded(rows, self.size, self._padding_slot))
        self._copied = recorder.mark()
        for own, given in zip(self._inputs, inputs, strict=True):
            own[:count].copy_(given)
        if count < self._num_live:
            self._inputs[:2, count : self._num_live] = 0
            self._inputs[2, count : self._num_live] = self._padding_slot
        self._num_live = count
        self._graph.replay()
        return self._output[:count]


class DecodeGraphs:
    """The graphs of a model over one pool, for up to `max_rows` rows. `padding_slot` is a slot of
    the pool's tensors that no request has."""

    def __init__(
        self,
        model: TorchModel,
        pool: Any,
        backend: GraphBackend,
        recorder: Recorder,
        *,
        device: torch.device,
        max_rows: int,
        padding_slot: int,
        pool_tokens: int,
    ) -> None:
        self._model, self._pool, self._backend = model, pool, backend
        self._recorder, self._device = recorder, device
        self._padding_slot = padding_slot
        self._sizes = graph_sizes(max_rows)
        self._limits = [max_indices(n, pool_tokens, model.context_len) for n in self._sizes]
        self._turns: dict[int, list[_Turn]] = {}
        self.num_replays = 0

    @property
    def count(self) -> int:
        """Graphs that there are to be in all."""
        return TURNS * len(self._sizes)

    def record_all(self, memory: DeviceMemory | None = None) -> None:
        """Record every graph, the largest first: the others find room in its memory. Logs what it
        has taken."""
        started, free = time.monotonic(), 0 if memory is None else memory.free()
        for _ in range(self.count):
            self.record_next()
        taken = 0 if memory is None else free - memory.free()
        log.info(
            "recorded %d graphs of decodes, up to %d rows, in %.1f s and %.0f MiB",
            *(self.count, self._sizes[-1], time.monotonic() - started, taken / 2**20),
        )

    def record_next(self) -> None:
        """Record one graph: of the largest size that still lacks one."""
        turns = self._turns
        for size, limit in zip(reversed(self._sizes), reversed(self._limits), strict=True):
            if len(turns.get(size, ())) < TURNS:
                plan = self._backend.graph_plan(size, limit)
                turn = _Turn(plan, self._padding_slot, self._device, limit)
                turn.record(self._model, self._pool, self._recorder)
                turns.setdefault(size, []).append(turn)
                return

    def run(
        self,
        rows: RaggedRows,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_slots: torch.Tensor,
    ) -> torch.Tensor | None:
        """The last hidden states [R, hidden] of these rows, after a replay; it writes the pool.
        None if the step must run without a graph. The inputs are [R] int64, on the device. The
        result stays as it is until the second call from now on."""
        size = self._size_for(rows)
        if size is None:
            return None
        turns = self._turns[size]
        turn = turns.pop(0)
        turns.append(turn)
        self.num_replays += 1
        return turn.run(rows, (input_ids, positions, out_slots), self._recorder)

    def _size_for(self, rows: RaggedRows) -> int | None:
        """The size of the graph that these rows are replayed in, if there is one."""
        count, num_tokens = rows.num_rows, int(rows.qo_indptr[-1])
        if num_tokens != count or count == 0 or rows.visible_until is not None:
            return None
        at = bisect_left(self._sizes, count)
        if at == len(self._sizes):
            return None
        size = self._sizes[at]
        is_too_long = len(rows.kv_indices) + size - count > self._limits[at]
        return None if is_too_long or self._backend.prefers_eager(rows) else size


def padded(rows: RaggedRows, size: int, padding_slot: int) -> RaggedRows:
    """These rows of one token each, then rows over `padding_slot` alone: `size` in all."""
    missing = size - rows.num_rows
    ends = rows.kv_indptr[-1] + np.arange(1, missing + 1, dtype=np.int32)
    return RaggedRows(
        np.arange(size + 1, dtype=np.int32),
        np.concatenate((rows.kv_indptr, ends)),
        np.concatenate((rows.kv_indices, np.full(missing, padding_slot, np.int32))),
    )


def _no_rows() -> RaggedRows:
    return RaggedRows(np.zeros(1, np.int32), np.zeros(1, np.int32), np.empty(0, np.int32))
