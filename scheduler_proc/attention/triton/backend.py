"""TritonAttention: our own kernels, for eager steps and for graphs. See `work.py` for how a step is
cut into items and `kernels.py` for how these are computed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows, check_graph_rows
from scheduler_proc.attention.cascade_choice import CascadeChoice
from scheduler_proc.attention.staging import Staging
from scheduler_proc.attention.triton import launch
from scheduler_proc.attention.triton.lists import Lists, cascade_lists, flat_lists
from scheduler_proc.attention.triton.tiles import Tiles, check, tiles_of
from scheduler_proc.attention.triton.work import Cut, Work, cut
from srt.wire.errors import ConfigError

# An H100's, for the interpreter.
_NUM_SMS = 132
_SHARED_BYTES = 227 * 1024
# What the host needs for a layer that it launches without a graph, in seconds, with a cascade: as
# measured on an H200's machine. A cascade has to save as much before it is worth that.
_EAGER_LAYER_S = 1100e-6
# Of parts that a cascade may need: every token of every level has one, in float32.
_MAX_CASCADE_BYTES = 64 << 20


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

    All plans share the memory for outputs in parts, and all graph plans what is copied to the
    device: everything is queued on one stream, and a graph is replayed before another one's plan is
    updated. Raises ConfigError for what it cannot run.
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
        token_bytes = max(4 * kind.heads * kind.value_dim for kind in self._forms)
        self.cascades = CascadeChoice(
            () if deterministic else list(self._forms),
            q_bytes=dtype.itemsize,
            kv_bytes=kv_dtype.itemsize,
            eager_layer_s=_EAGER_LAYER_S,
            most_parts=_MAX_CASCADE_BYTES // token_bytes,
        )
        self._device = device
        self._staging = Staging(device)
        self._parts = launch.Parts(*(torch.empty(0, device=device) for _ in range(2)))
        self._graph_buffer = torch.empty(0, dtype=torch.int32, device=device)

    def plan(self, rows: RaggedRows) -> "TritonPlan":
        """Lay out a ragged batch, for every kind: one copy to the device."""
        flat, cascade = flat_lists(rows), self.cascades.of(rows)
        shared = flat if cascade is None else cascade_lists(cascade)
        lists = [shared if how.window is None else flat for how in self._hows]
        works = [cut(*pair) for pair in zip(lists, self._hows, strict=True)]
        pack = _Pack()
        different = {id(each): each for each in lists}
        places = {key: _pack_lists(pack, each) for key, each in different.items()}
        tables = [[pack.add(table) for table in _tables(work)] for work in works]
        views = self._staging.send(pack.arrays)
        on_device = {key: _device_lists(views, place) for key, place in places.items()}
        return self._plan_of(
            [
                _device_work([views[at] for at in table], work.num_parts, on_device[id(each)])
                for table, work, each in zip(tables, works, lists, strict=True)
            ]
        )

    def prefers_eager(self, rows: RaggedRows) -> bool:
        """See GraphBackend.prefers_eager."""
        return self.cascades.beats_graph(rows)

    def graph_plan(self, size: int, max_indices: int) -> "TritonGraphPlan":
        """A plan whose `run` can be recorded: grids and addresses stay the same, and programs
        without an item end at once. Without shared prefixes."""
        most = [how.max_items(size) for how in self._hows]
        sizes = [n for items in most for n in (8 * items, 0, size, 4 * size)] + [max_indices]
        room = sum(sizes) + 4 * len(sizes)  # each begins at a multiple of 4
        if len(self._graph_buffer) < room:
            with torch.inference_mode(False):
                self._graph_buffer = torch.empty(room, dtype=torch.int32, device=self._device)
        buffer = self._graph_buffer
        *tables, indices = self._staging.send([np.zeros(n, np.int32) for n in sizes], buffer)
        lists = launch.DeviceLists(indices)
        works = [
            _device_work(tables[4 * i : 4 * i + 4], items, lists) for i, items in enumerate(most)
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
        self.run = plan.run
        self._buffer = buffer
        self._staging = staging

    def update(self, rows: RaggedRows) -> None:
        """See GraphPlan.update. Raises ValueError for rows that do not fit."""
        check_graph_rows(rows, self.size, self._max_indices)
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
        self._staging.send(pack.arrays, self._buffer)


class _Pack:
    """Arrays that go to the device together."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def add(self, array: np.ndarray) -> int:
        """The array's number."""
        self.arrays.append(array)
        return len(self.arrays) - 1


class _Place(NamedTuple):
    """Where the fields of DeviceLists are among packed arrays."""

    kv_indices: int
    order: int | None
    visible_until: int | None


def _pack_lists(pack: _Pack, lists: Lists) -> _Place:
    optional = (lists.order, lists.visible_until_of_tokens)
    return _Place(
        pack.add(lists.kv_indices), *(None if each is None else pack.add(each) for each in optional)
    )


def _device_lists(views: Sequence[torch.Tensor], place: _Place) -> launch.DeviceLists:
    return launch.DeviceLists(
        views[place.kv_indices], *(None if at is None else views[at] for at in place[1:])
    )


def _tables(work: Work) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return work.small, work.large, work.part_starts, work.merges


def _with_empty_rows(table: np.ndarray, count: int) -> np.ndarray:
    """The table with `count` rows, the later ones of zeros."""
    filled = np.zeros((count, table.shape[1]), table.dtype)
    filled[: len(table)] = table
    return filled


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
            "the Triton kernels need the package triton, which comes with CUDA builds of torch "
            "(pip install triton)"
        )
    from triton import knobs

    if device.type == "cpu" and knobs.runtime.interpret:
        return _NUM_SMS, _SHARED_BYTES
    if device.type != "cuda":
        raise ConfigError(
            f"the Triton kernels run on CUDA, not on {device} (only tests run there, with "
            "TRITON_INTERPRET=1 in the environment)"
        )
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    least = (8, 9) if kv_dtype.itemsize == 1 else (8, 0)
    if capability < least:
        raise ConfigError(
            f"the Triton kernels with a pool of {kv_dtype} needs compute capability "
            f"{least[0]}.{least[1]}, and {properties.name} has {capability[0]}.{capability[1]}"
        )
    shared_bytes = getattr(
        properties, "shared_memory_per_block_optin", properties.shared_memory_per_block
    )
    return properties.multi_processor_count, shared_bytes
