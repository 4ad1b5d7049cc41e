"""Graphs on a CPU: work that is queued and runs later, calls that are recorded and replayed into
the tensors that they filled, and an attention backend whose plans can be replayed."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from scheduler_proc.attention.base import AttentionPlan, LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.reference import ReferenceAttention
from scheduler_proc.attention.staging import Event
from scheduler_proc.executor.cuda_graphs import Graph


class Queue:
    """Work in order. What reads the host's memory reads it when it runs, as a device's copies do.
    `log` says what has been queued, `waits` how often somebody has waited for work to be done."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, Callable[[], object]]] = deque()
        self._number = 0
        self.log: list[str] = []
        self.waits = 0

    def add(self, call: Callable[[], object], name: str = "") -> None:
        self._number += 1
        self._calls.append((self._number, call))
        if name:
            self.log.append(name)

    def finish(self, number: int | None = None) -> None:
        """Run everything up to the call of this number."""
        with _disable_current_modes(), torch.inference_mode():
            while self._calls and (number is None or self._calls[0][0] <= number):
                self._calls.popleft()[1]()

    def has_run(self, number: int) -> bool:
        return not self._calls or self._calls[0][0] > number

    def mark(self) -> "Mark":
        return Mark(self, self._number)


class Mark:
    """A place in a queue, an Event."""

    def __init__(self, queue: Queue, number: int) -> None:
        self._queue, self.number = queue, number

    def synchronize(self) -> None:
        self._queue.waits += not self._queue.has_run(self.number)
        self._queue.finish(self.number)


class Later(TorchDispatchMode):
    """Within it, what changes tensors in place is queued; views are made at once."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue = queue

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if not func._schema.name.endswith("_"):
            result: torch.Tensor = func(*args, **(kwargs or {}))
            return result
        self._queue.add(lambda: func(*args, **(kwargs or {})))
        changed: torch.Tensor = args[0]
        return changed


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class RecordedCalls:
    """A Graph: the calls of a recording."""

    def __init__(self, queue: Queue, calls: list[tuple[Any, Any, Any, Any]], size: int) -> None:
        self._queue, self._calls, self._size = queue, calls, size

    def replay(self) -> None:
        self._queue.add(self._replay_now, f"replay {self._size}")

    def _replay_now(self) -> None:
        for func, args, kwargs, results in self._calls:
            given = {_storage(t) for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if _is_tensor(old) and _storage(old) not in given:
                    old.copy_(new)


class CpuRecorder:
    """A Recorder. `fails_with` is what the device says of each recording."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.fails_with: Exception | None = None

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        self.queue.finish()
        if self.fails_with is not None:
            raise self.fails_with
        call()
        with _Recording() as recording:
            output = call()
        return RecordedCalls(self.queue, recording.calls, len(output)), output

    def mark(self) -> Event:
        return self.queue.mark()


class ReplayableAttention:
    """A GraphBackend over a queue: every row of a plan looks at all slots of the batch, and sees
    its own. Other steps are planned by the reference, as are those that it prefers so: of more rows
    than `eager_above`."""

    name = "replayable"

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._reference = ReferenceAttention()
        self.eager_above = 1 << 20
        self.num_plans = 0

    def plan(self, rows: RaggedRows) -> AttentionPlan:
        self.num_plans += 1
        self._queue.finish()
        return self._reference.plan(rows)

    def graph_plan(self, size: int, max_indices: int) -> "_Plan":
        return _Plan(self._queue, size, max_indices)

    def prefers_eager(self, rows: RaggedRows) -> bool:
        return rows.num_rows > self.eager_above


class _Plan:
    def __init__(self, queue: Queue, size: int, max_indices: int) -> None:
        self.size = size
        self._queue = queue
        self._host_indptr = np.zeros(size + 1, np.int64)
        self._host_indices = np.zeros(max_indices, np.int64)
        self._indptr = torch.zeros(size + 1, dtype=torch.int64)
        self._indices = torch.zeros(max_indices, dtype=torch.int64)

    def update(self, rows: RaggedRows) -> None:
        assert rows.extend_lens.tolist() == [1] * self.size
        assert rows.visible_until is None and (rows.seq_lens >= 1).all()
        self._host_indptr[:] = rows.kv_indptr
        self._host_indices[: len(rows.kv_indices)] = rows.kv_indices
        self._host_indices[len(rows.kv_indices) :] = rows.kv_indices[0]
        self._queue.add(self._copy, f"update {self.size}")

    def _copy(self) -> None:
        self._indptr.copy_(torch.from_numpy(self._host_indptr))
        self._indices.copy_(torch.from_numpy(self._host_indices))

    def run(self, kind: LayerKind, q: torch.Tensor, layer: LayerTensors) -> torch.Tensor:
        start, end = self._indptr[:-1, None], self._indptr[1:, None]
        at = torch.arange(len(self._indices))
        sees = (at >= start) & (at < end)
        if kind.window is not None:
            sees &= at >= end - kind.window
        group = kind.heads // kind.kv_heads
        k = layer.k_pool[self._indices].float() * layer.k_scale
        v = layer.v_pool[self._indices].float() * layer.v_scale
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        scores = torch.einsum("rhd,nhd->rhn", q.float(), k) * kind.scale
        if kind.softcap is not None:
            scores = kind.softcap * torch.tanh(scores / kind.softcap)
        weights = scores.masked_fill(~sees[:, None], -torch.inf).softmax(-1)
        return torch.einsum("rhn,nhd->rhd", weights, v).to(q.dtype)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
