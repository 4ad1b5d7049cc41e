"""TritonAttention: our own kernels, for eager steps and for graphs. See `work.py` for how a step is
cut and `kernels.py` for how it is computed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.triton import launch
from scheduler_proc.attention.triton.staging import Staging, padded
from scheduler_proc.attention.triton.tiles import Tiles, check, tiles_of
from scheduler_proc.attention.triton.work import Cut, Level, Work, cut
from srt.wire.errors import ConfigError

# An H100's, for the interpreter.
_NUM_SMS = 132
_SHARED_BYTES = 227 * 1024


class _Form(NamedTuple):
    """How a kind of layer is computed. Kinds of the same `how` have the same work."""

    tiles: Tiles
    how: Cut


class TritonAttention:
    """AttentionBackend and GraphBackend on CUDA devices from compute capability 8.0 on.

    With `deterministic` a row's bits do not depend on the batch that it is in: how its slots are
    split follows from its own numbers of tokens and slots, and shared prefixes are not made use of.
    The price: few short rows leave a part of the GPU idle (one row of 1,000 slots gets 4 splits
    instead of up to 8), many long ones are split without need, and a prefix is read once per row.

    Everything is queued on the current stream, which must be the same for all plans of a backend:
    they share the memory for outputs in parts. Raises ConfigError for what it cannot run.
    """

    name = "triton"

    def __init__(
        self,
        kinds: Sequence[LayerKind],
        *,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        deterministic: bool = False,
    ) -> None:
        check(kinds, dtype, kv_dtype)
        num_sms, shared_bytes = _checked_device(device, kv_dtype)
        self._forms: dict[LayerKind, _Form] = {}
        for kind in kinds:
            tiles = tiles_of(kind, dtype, shared_bytes)
            how = Cut(
                group=kind.heads // kind.kv_heads,
                kv_heads=kind.kv_heads,
                small_rows=tiles.small.block_m,
                large_rows=tiles.large.block_m,
                block_n=tiles.small.block_n,
                window=kind.window,
                num_sms=num_sms,
                fixed=deterministic,
            )
            self._forms[kind] = _Form(tiles, how)
        self._hows = list(dict.fromkeys(form.how for form in self._forms.values()))
        self._device = device
        self._staging = Staging(device)
        self._parts = launch.Parts(*(torch.empty(0, device=device) for _ in range(2)))

    def plan(self, rows: RaggedRows) -> "TritonPlan":
        """Lay out a ragged batch, for every kind: one copy to the device."""
        num_tokens = int(rows.qo_indptr[-1])
        own, until = _own_level(rows), rows.visible_until
        works = [cut([own], how, num_tokens, visible_until=until) for how in self._hows]
        arrays = [array for work in works for array in _arrays(work)]
        if until is not None:
            arrays.append(until)
        arrays.append(rows.kv_indices)
        views = _views(self._staging.send(arrays), [array.size for array in arrays])
        on_device = [
            _device_work(views[4 * i : 4 * i + 4], work.num_parts) for i, work in enumerate(works)
        ]
        shared = launch.Shared(views[-1], None if until is None else views[-2])
        return self._plan_of(on_device, shared)

    def graph_plan(self, size: int, max_indices: int) -> "TritonGraphPlan":
        """A plan whose `run` can be recorded: grids and addresses stay as they are, and programs
        without an item end at once."""
        sizes: list[int] = []
        for how in self._hows:
            most = how.max_items(size)
            sizes += [8 * most, 0, size, 4 * size]
        sizes.append(max_indices)
        with torch.inference_mode(False):
            room = sum(map(padded, sizes))
            buffer = torch.zeros(room, dtype=torch.int32, device=self._device)
        views = _views(buffer, sizes)
        works = [
            _device_work(views[4 * i : 4 * i + 4], how.max_items(size))
            for i, how in enumerate(self._hows)
        ]
        plan = self._plan_of(works, launch.Shared(views[-1], None))
        return TritonGraphPlan(size, max_indices, self._hows, plan, buffer, self._staging)

    def _plan_of(
        self, works: Sequence[launch.DeviceWork], shared: launch.Shared
    ) -> "TritonPlan":
        by_how = dict(zip(self._hows, works, strict=True))
        calls = {kind: (form.tiles, by_how[form.how]) for kind, form in self._forms.items()}
        return TritonPlan(calls, shared, self._room_for(calls))

    def _room_for(
        self, calls: dict[LayerKind, tuple[Tiles, launch.DeviceWork]]
    ) -> launch.Parts:
        """Room for the parts of any of the kinds; what is too small stays with its plans."""
        lse = max(work.num_parts * kind.heads for kind, (_, work) in calls.items())
        values = max(
            work.num_parts * kind.heads * kind.value_dim for kind, (_, work) in calls.items()
        )
        if len(self._parts.lse) < lse or len(self._parts.values) < values:
            self._parts = launch.Parts(
                torch.empty(max(values, len(self._parts.values)), device=self._device),
                torch.empty(max(lse, len(self._parts.lse)), device=self._device),
            )
        return self._parts


class TritonPlan:
    """AttentionPlan: the items of every kind, on the device."""

    def __init__(
        self,
        calls: dict[LayerKind, tuple[Tiles, launch.DeviceWork]],
        shared: launch.Shared,
        parts: launch.Parts,
    ) -> None:
        self._calls = calls
        self._shared = shared
        self._parts = parts

    def run(
        self,
        kind: LayerKind,
        q: torch.Tensor,
        layer: LayerTensors,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See AttentionPlan.run. Writes to `lse` [T, heads] float32, if it is given, the base-2
        logarithm of the sum of the exponentials of each head's scores, its sink among them."""
        tiles, work = self._calls[kind]
        return launch.attend(kind, tiles, work, self._shared, self._parts, q, layer, lse)


class TritonGraphPlan:
    """GraphPlan: the same launches whatever the rows are. A backend makes it."""

    def __init__(
        self,
        size: int,
        max_indices: int,
        hows: Sequence[Cut],
        plan: TritonPlan,
        buffer: torch.Tensor,
        staging: Staging,
    ) -> None:
        self.size = size
        self._max_indices = max_indices
        self._hows = hows
        self._plan = plan
        self._buffer = buffer
        self._staging = staging

    def update(self, rows: RaggedRows) -> None:
        """See GraphPlan.update. Raises ValueError for rows that do not fit."""
        if rows.num_rows != self.size or rows.qo_indptr[-1] != self.size:
            raise ValueError(f"a graph of {self.size} rows of one token got {rows.extend_lens}")
        if len(rows.kv_indices) > self._max_indices:
            raise ValueError(f"{len(rows.kv_indices)} slots, in a graph for {self._max_indices}")
        own, arrays = _own_level(rows), []
        for how in self._hows:
            work = cut([own], how, self.size)
            small, merges = np.zeros((how.max_items(self.size), 8), np.int32), np.zeros(
                (self.size, 4), np.int32
            )
            small[: len(work.small)] = work.small
            merges[: len(work.merges)] = work.merges
            arrays += [small, work.large, work.part_starts, merges]
        self._staging.send([*arrays, rows.kv_indices], self._buffer)

    def run(
        self,
        kind: LayerKind,
        q: torch.Tensor,
        layer: LayerTensors,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See TritonPlan.run."""
        return self._plan.run(kind, q, layer, lse)


def _checked_device(device: torch.device, kv_dtype: torch.dtype) -> tuple[int, int]:
    """Its SMs, and the bytes of shared memory that a program may use."""
    if find_spec("triton") is None:
        raise ConfigError(
            "attention backend triton needs the package triton (pip install triton), which comes "
            "with CUDA builds of torch"
        )
    from triton import knobs

    if device.type == "cpu" and knobs.runtime.interpret:
        return _NUM_SMS, _SHARED_BYTES
    if device.type != "cuda":
        raise ConfigError(
            f"attention backend triton runs on CUDA, not on {device} (there only for tests, with "
            "TRITON_INTERPRET=1 in the environment)"
        )
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    least = (8, 9) if kv_dtype.itemsize == 1 else (8, 0)
    if capability < least:
        raise ConfigError(
            f"attention backend triton with a pool of {kv_dtype} needs compute capability "
            f"{least[0]}.{least[1]}, and {properties.name} has {capability[0]}.{capability[1]}"
        )
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


def _own_level(rows: RaggedRows) -> Level:
    """Each row over all its slots."""
    lens, seq_lens = rows.extend_lens, rows.seq_lens
    return Level(rows.qo_indptr[:-1], lens, rows.kv_indptr[:-1], seq_lens, seq_lens - lens)


def _arrays(work: Work) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return work.small, work.large, work.part_starts, work.merges


def _views(buffer: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The arrays of these sizes in the buffer, as Staging.send puts them there."""
    views, at = [], 0
    for size in sizes:
        views.append(buffer[at : at + size])
        at += padded(size)
    return views


def _device_work(views: Sequence[torch.Tensor], num_parts: int) -> launch.DeviceWork:
    """From the views of `_arrays`."""
    small, large, part_starts, merges = views
    items = [launch.Items(table.view(-1, 8)) for table in (small, large)]
    return launch.DeviceWork(*items, None, part_starts, merges.view(-1, 4), num_parts)
