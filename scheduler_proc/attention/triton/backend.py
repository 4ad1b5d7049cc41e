"""TritonAttention: our own kernels, for eager steps and for graphs. See `work.py` for how a step is
cut into items and `kernels.py` for how these are computed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.cascade import CascadeCosts, find_cascade, takes_part
from scheduler_proc.attention.triton import launch
from scheduler_proc.attention.triton.lists import Lists, cascade_lists, flat_lists
from scheduler_proc.attention.triton.staging import Staging, padded
from scheduler_proc.attention.triton.tiles import Tiles, check, tiles_of
from scheduler_proc.attention.triton.work import Cut, Work, cut
from srt.wire.errors import ConfigError

# An H100's, for the interpreter.
_NUM_SMS = 132
_SHARED_BYTES = 227 * 1024


class _Form(NamedTuple):
    """How a kind of layer is computed. Kinds that are cut alike have the same work."""

    tiles: Tiles
    how: Cut


class TritonAttention:
    """AttentionBackend and GraphBackend on CUDA devices from compute capability 8.0 on.

    With `deterministic` a row's bits do not depend on the batch that it is in: how its slots are
    split follows from its own numbers of tokens and slots, and shared prefixes are not made use of.
    The price: few short rows leave a part of the GPU idle (one row of 1,000 slots gets 4 splits
    instead of 8), many long ones are split without need, and a prefix is read once per row.

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
        shares = [] if deterministic else [kind for kind in kinds if takes_part(kind)]
        costs = [CascadeCosts.of(kind, dtype.itemsize, kv_dtype.itemsize) for kind in shares]
        # Kinds without a window share one cascade, made for the one that gains most.
        self._costs = max(costs, key=lambda cost: cost.slot_s, default=None)
        self._device = device
        self._staging = Staging(device)
        self._parts = launch.Parts(*(torch.empty(0, device=device) for _ in range(2)))

    def plan(self, rows: RaggedRows) -> "TritonPlan":
        """Lay out a ragged batch, for every kind: one copy to the device."""
        flat = flat_lists(rows)
        cascade = None if self._costs is None else find_cascade(rows, self._costs)
        shared = flat if cascade is None else cascade_lists(cascade)
        lists = [shared if how.window is None else flat for how in self._hows]
        works = [cut(*pair) for pair in zip(lists, self._hows, strict=True)]
        pack = _Pack()
        different = {id(each): each for each in lists}
        places = {key: _pack_lists(pack, each) for key, each in different.items()}
        tables = [[pack.add(table) for table in _tables(work)] for work in works]
        views = pack.send(self._staging)
        on_device = {
            key: launch.DeviceLists(*(None if at is None else views[at] for at in place))
            for key, place in places.items()
        }
        return self._plan_of(
            [
                _device_work([views[at] for at in table], work.num_parts, on_device[id(each)])
                for table, work, each in zip(tables, works, lists, strict=True)
            ]
        )

    def graph_plan(self, size: int, max_indices: int) -> "TritonGraphPlan":
        """A plan whose `run` can be recorded: grids and addresses stay the same, and programs
        without an item end at once. Without shared prefixes."""
        sizes: list[int] = []
        for how in self._hows:
            sizes += [8 * how.max_items(size), 0, size, 4 * size]
        sizes.append(max_indices)
        with torch.inference_mode(False):
            room = sum(map(padded, sizes))
            buffer = torch.zeros(room, dtype=torch.int32, device=self._device)
        *tables, kv_indices = _views(buffer, sizes)
        lists = launch.DeviceLists(kv_indices)
        works = [
            _device_work(tables[4 * i : 4 * i + 4], how.max_items(size), lists)
            for i, how in enumerate(self._hows)
        ]
        plan = self._plan_of(works)
        return TritonGraphPlan(size, max_indices, self._hows, plan, buffer, self._staging)

    def _plan_of(self, works: Sequence[launch.DeviceWork]) -> "TritonPlan":
        by_how = dict(zip(self._hows, works, strict=True))
        calls = {kind: (form.tiles, by_how[form.how]) for kind, form in self._forms.items()}
        lse = [work.num_parts * kind.heads for kind, (_, work) in calls.items()]
        values = [n * kind.value_dim for n, kind in zip(lse, calls, strict=True)]
        return TritonPlan(calls, self._room_for(max(lse), max(values)))

    def _room_for(self, lse: int, values: int) -> launch.Parts:
        """Room for so many numbers of parts. What was too small stays with the plans that use it:
        addresses in graphs remain valid."""
        if len(self._parts.lse) < lse or len(self._parts.values) < values:
            with torch.inference_mode(False):
                self._parts = launch.Parts(
                    torch.empty(max(values, len(self._parts.values)), device=self._device),
                    torch.empty(max(lse, len(self._parts.lse)), device=self._device),
                )
        return self._parts


class TritonPlan:
    """AttentionPlan: the items of every kind, on the device."""

    def __init__(
        self, calls: dict[LayerKind, tuple[Tiles, launch.DeviceWork]], parts: launch.Parts
    ) -> None:
        self._calls = calls
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
        return launch.attend(kind, tiles, work, self._parts, q, layer, lse)


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
        if rows.num_rows != self.size or (rows.extend_lens != 1).any():
            raise ValueError(f"a graph of {self.size} rows of one token, not of {rows.extend_lens}")
        if len(rows.kv_indices) > self._max_indices:
            raise ValueError(f"{len(rows.kv_indices)} slots in a graph for {self._max_indices}")
        # One token sees all of its row anyway, so `visible_until` changes nothing.
        lists = flat_lists(rows._replace(visible_until=None))
        pack = _Pack()
        for how in self._hows:
            small, large, part_starts, merges = _tables(cut(lists, how))
            pack.add(_with_empty_rows(small, how.max_items(self.size)))
            pack.add(large)
            pack.add(part_starts)
            pack.add(_with_empty_rows(merges, self.size))
        pack.add(rows.kv_indices)
        pack.send(self._staging, self._buffer)

    def run(
        self,
        kind: LayerKind,
        q: torch.Tensor,
        layer: LayerTensors,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See TritonPlan.run."""
        return self._plan.run(kind, q, layer, lse)


class _Pack:
    """Arrays that go to the device together."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def add(self, array: np.ndarray) -> int:
        """The number of its view."""
        self._arrays.append(array)
        return len(self._arrays) - 1

    def send(self, staging: Staging, to: torch.Tensor | None = None) -> list[torch.Tensor]:
        """A view of each, flat."""
        buffer = staging.send(self._arrays, to)
        return _views(buffer, [array.size for array in self._arrays])


def _pack_lists(pack: _Pack, lists: Lists) -> tuple[int | None, ...]:
    """Where the fields of DeviceLists will be."""
    fields = (lists.kv_indices, lists.order, lists.visible_until_of_tokens)
    return tuple(None if field is None else pack.add(field) for field in fields)


def _tables(work: Work) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return work.small, work.large, work.part_starts, work.merges


def _with_empty_rows(table: np.ndarray, count: int) -> np.ndarray:
    """The table with `count` rows, the later ones of zeros."""
    filled = np.zeros((count, table.shape[1]), table.dtype)
    filled[: len(table)] = table
    return filled


def _views(buffer: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The arrays of these sizes in the buffer, as Staging.send puts them there."""
    views, at = [], 0
    for size in sizes:
        views.append(buffer[at : at + size])
        at += padded(size)
    return views


def _device_work(
    views: Sequence[torch.Tensor], num_parts: int, lists: launch.DeviceLists
) -> launch.DeviceWork:
    """From the views of `_tables`."""
    small, large, part_starts, merges = views
    tables = (small.view(-1, 8), large.view(-1, 8), part_starts, merges.view(-1, 4))
    return launch.DeviceWork(*tables, num_parts, lists)


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
