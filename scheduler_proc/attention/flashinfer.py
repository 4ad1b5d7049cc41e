"""Attention by FlashInfer's kernels, over pages of one slot.

The package is an extra (`srt-lang[flashinfer]`) and imported only when a backend is made. Its
wrappers are planned once per step and kind: one for the rows of one token, one for longer rows, and
one per level of a cascade. A single call for all rows would give decodes the query tiles of the
extends beside them, 128 rows for a handful; apart, each gets tiles of its own size. All run the
fa2 prefill kernels, decodes too (`use_tensor_cores`): one module to compile per shape, any number
of heads per KV head, and splits that `deterministic` can turn off, which the package's kernel for
decodes on CUDA cores ignores.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows, check_graph_rows
from scheduler_proc.attention.cascade import takes_part
from scheduler_proc.attention.cascade_choice import CascadeChoice
from scheduler_proc.attention.flashinfer_package import check, load_package
from scheduler_proc.attention.parts import Layout, Order, Part, in_window, lay_out, taken
from scheduler_proc.attention.staging import Event, Staging
from srt.wire.errors import ConfigError

_WORKSPACE_BYTES = 128 << 20  # for split KV, as the package recommends; zeroed, as it demands
_GRAPH_PLAN_BYTES = 1 << 20  # of one graph's work items: 4,096 rows take less than a tenth
_MERGE_THREADS = 1024  # of the kernel that merges levels, which takes all heads of a token at once
# What the host needs for a layer that it launches without a graph, in seconds, with a cascade: as
# measured on an H200's machine. A cascade has to save as much before it is worth that.
_EAGER_LAYER_S = 900e-6
# Query rows (tokens times heads of a group) up to which the package takes its smaller query tiles.
_TILE_LIMITS = np.array([16, 64])


class _LayoutKey(NamedTuple):
    """Kinds with the same key share a layout. The group, the heads per KV head, counts only where
    rows of each query tile go apart."""

    window: int | None
    group: int | None


class _Run(NamedTuple):
    """A planned wrapper, and its tokens."""

    wrapper: Any
    start: int
    stop: int


class _KindRuns(NamedTuple):
    layout: Layout
    levels: list[Any]  # wrappers of all tokens
    rest: list[_Run]


class FlashInferAttention:
    """AttentionBackend and GraphBackend.

    Sinks, value sizes other than the keys', and pools of other types than fp16, bf16 and fp8 e4m3
    raise ConfigError; so does a GPU or an installation that cannot run the kernels, which are
    compiled here, unless that has been done before. Steps with `visible_until` cannot be planned
    (ValueError).

    All plans share one workspace, so all work is queued on one stream. Eager plans use two sets of
    wrappers in turn: a plan is valid until the second one after it, and what its copies read on the
    host is not overwritten before they have run. With `deterministic` no row's keys are split, no
    prefix is shared, and rows are grouped by their own query tile, so a row's bits do not depend on
    the others. The price: a decode keeps only kv_heads blocks of the GPU busy per row.
    """

    name = "flashinfer"

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
        self._package = load_package(device)
        self._kinds = list(dict.fromkeys(kinds))
        self._device, self._dtype, self._kv_dtype = device, dtype, kv_dtype
        self._deterministic = deterministic
        shared = [kind for kind in self._kinds if takes_part(kind)]
        can_share = not deterministic and all(map(_can_merge, shared))
        self.cascades = CascadeChoice(
            shared if can_share else (),
            q_bytes=dtype.itemsize,
            kv_bytes=kv_dtype.itemsize,
            eager_layer_s=_EAGER_LAYER_S,
        )
        num_layouts = len({self._layout_key(kind) for kind in self._kinds})
        self._staging = Staging(device, 2 * num_layouts)
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._sets = [_Wrappers(self._new_wrapper) for _ in range(2)]
        self._turn = 0
        self._graph_slots: dict[int | None, torch.Tensor] = {}  # by window
        self._graph_plans: dict[LayerKind, torch.Tensor] = {}
        self._try_out()

    def plan(self, rows: RaggedRows) -> "FlashInferPlan":
        """Lay out a ragged batch, for every kind."""
        if rows.visible_until is not None:
            raise ValueError("FlashInfer has no masks for tokens that see each other both ways")
        self._turn = (self._turn + 1) % len(self._sets)
        wrappers = self._sets[self._turn]
        wrappers.begin()
        layouts: dict[_LayoutKey, Layout] = {}
        runs = {}
        for kind in self._kinds:
            key = self._layout_key(kind)
            if key not in layouts:
                cascade = self.cascades.of(rows) if takes_part(kind) else None
                seen = in_window(rows, kind.window)
                layouts[key] = lay_out(seen, cascade, partial(_classes, key.group), self._staging)
            runs[kind] = self._planned(kind, layouts[key], wrappers)
        wrappers.copied = self._staging.mark()
        return FlashInferPlan(runs, self._package)

    def prefers_eager(self, rows: RaggedRows) -> bool:
        """See GraphBackend.prefers_eager."""
        return self.cascades.beats_graph(rows)

    def graph_plan(self, size: int, max_indices: int) -> "FlashInferGraphPlan":
        """See GraphBackend.graph_plan. Without shared prefixes. All graphs share their slots and
        work items on the device, since each replay follows the copies of its own update."""
        slots, wrappers = {}, {}
        with torch.inference_mode(False):
            for kind in self._kinds:
                known = self._graph_slots.get(kind.window)
                if known is None or len(known) < max_indices:
                    known = torch.zeros(max_indices, dtype=torch.int32, device=self._device)
                    self._graph_slots[kind.window] = known
                slots[kind.window] = known
                if kind not in self._graph_plans:
                    self._graph_plans[kind] = torch.zeros(
                        _GRAPH_PLAN_BYTES, dtype=torch.uint8, device=self._device
                    )
                wrappers[kind] = self._graph_wrapper(size, known)
                wrappers[kind].reset_workspace_buffer(self._workspace, self._graph_plans[kind])
        plan_wrapper = self._plan_wrapper
        return FlashInferGraphPlan(size, max_indices, slots, wrappers, plan_wrapper, self._staging)

    def _layout_key(self, kind: LayerKind) -> "_LayoutKey":
        group = kind.heads // kind.kv_heads if self._deterministic else None
        return _LayoutKey(kind.window, group)

    def _planned(self, kind: LayerKind, layout: Layout, wrappers: "_Wrappers") -> "_KindRuns":
        rest, at = [], 0
        for part in layout.parts:
            wrapper = wrappers.next(kind, part.is_decode)
            self._plan_wrapper(wrapper, kind, part)
            rest.append(_Run(wrapper, at, at + part.num_tokens))
            at += part.num_tokens
        levels = [wrappers.next(kind, False) for _ in layout.levels]
        for wrapper, level in zip(levels, layout.levels, strict=True):
            self._plan_wrapper(wrapper, kind, level, causal=False)
        return _KindRuns(layout, levels, rest)

    def _new_wrapper(self, is_decode: bool) -> Any:
        package = self._package
        if is_decode:
            return package.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, "NHD", use_tensor_cores=True, backend="fa2"
            )
        return package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend="fa2")

    def _graph_wrapper(self, size: int, slots: torch.Tensor) -> Any:
        zeros = partial(torch.zeros, dtype=torch.int32, device=self._device)
        return self._package.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=zeros(size + 1),
            paged_kv_indices_buffer=slots,
            paged_kv_last_page_len_buffer=zeros(size),
            backend="fa2",
        )

    def _plan_wrapper(self, wrapper: Any, kind: LayerKind, part: Part, causal: bool = True) -> None:
        """Host arrays go as they are: not being pinned, they are read before `plan` returns."""
        rows = part.rows
        qo_indptr, kv_indptr = map(torch.from_numpy, (rows.qo_indptr, rows.kv_indptr))
        # A page has one slot; without a page there is none, which the package computes by itself
        # on the device but takes from here on the host.
        last_page = torch.from_numpy(np.minimum(rows.seq_lens, 1).astype(np.int32))
        options = {
            "window_left": -1 if kind.window is None else kind.window - 1,
            "logits_soft_cap": kind.softcap,
            "sm_scale": kind.scale,
            "q_data_type": self._dtype,
            "kv_data_type": self._kv_dtype,
            "disable_split_kv": self._deterministic,
        }
        shape = (kind.heads, kind.kv_heads, kind.head_dim, 1)
        if isinstance(wrapper, self._package.BatchDecodeWithPagedKVCacheWrapper):
            wrapper.plan(kv_indptr, part.slots, last_page, *shape, **options)
        else:
            options["causal"] = causal
            wrapper.plan(qo_indptr, kv_indptr, part.slots, last_page, *shape, **options)

    def _try_out(self) -> None:
        """Have the kernels compiled or loaded now, and fail now if that cannot be done."""
        rows = RaggedRows(*(np.array(a, np.int32) for a in ([0, 1, 3], [0, 1, 3], [0, 0, 0])))
        try:
            self.plan(rows)
            if self.cascades.costs is not None:
                kind = self._kinds[0]
                v = torch.zeros((1, kind.heads, kind.head_dim), dtype=self._dtype)
                v, s = v.to(self._device), torch.zeros((1, kind.heads), device=self._device)
                self._package.merge_state_in_place(v, s, v.clone(), s.clone())
        except Exception as error:  # of a compiler, a loader or the driver: all end here
            raise ConfigError(
                f"FlashInfer's kernels cannot be prepared; without compiled ones it needs nvcc and "
                f"ninja: {type(error).__name__}: {error}"
            ) from error


class FlashInferPlan:
    """AttentionPlan: planned wrappers of every kind."""

    def __init__(self, runs: dict[LayerKind, _KindRuns], package: ModuleType) -> None:
        self._runs = runs
        self._package = package

    def run(self, kind: LayerKind, q: torch.Tensor, layer: LayerTensors) -> torch.Tensor:
        """See AttentionPlan.run."""
        layout, levels, rest = self._runs[kind]
        q = taken(q, layout.order, 0)
        out, lse = _run_rest(rest, layout.rest_order, q, layer, with_lse=bool(levels))
        for wrapper in levels:
            pools, scales = _arguments(layer)
            level = wrapper.run(q, pools, out=torch.empty_like(q), return_lse=True, **scales)
            self._package.merge_state_in_place(out, lse, *level)
        return taken(out, layout.order, 1)


class FlashInferGraphPlan:
    """GraphPlan: one wrapper per kind, with buffers that stay. A backend makes it."""

    def __init__(
        self,
        size: int,
        max_indices: int,
        slots: dict[int | None, torch.Tensor],
        wrappers: dict[LayerKind, Any],
        plan_wrapper: Any,
        staging: Staging,
    ) -> None:
        self.size = size
        self._max_indices = max_indices
        self._slots, self._wrappers = slots, wrappers
        self._plan_wrapper, self._staging = plan_wrapper, staging

    def update(self, rows: RaggedRows) -> None:
        """See GraphPlan.update. Raises ValueError for rows that do not fit."""
        check_graph_rows(rows, self.size, self._max_indices)
        # One token sees all of its row anyway, so `visible_until` changes nothing.
        parts = {}
        for window, slots in self._slots.items():
            part = in_window(rows, window)
            # The wrapper copies the slots to where they already are, which does nothing.
            parts[window] = Part(part, *self._staging.send([part.kv_indices], slots))
        for kind, wrapper in self._wrappers.items():
            self._plan_wrapper(wrapper, kind, parts[kind.window])

    def run(self, kind: LayerKind, q: torch.Tensor, layer: LayerTensors) -> torch.Tensor:
        """See AttentionPlan.run."""
        pools, scales = _arguments(layer)
        out: torch.Tensor = self._wrappers[kind].run(q, pools, **scales)
        return out


class _Wrappers:
    """A set of eager wrappers: of each kind as many as a step has needed so far."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._made: dict[tuple[LayerKind, bool], list[Any]] = {}
        self._used: dict[tuple[LayerKind, bool], int] = {}
        self.copied: Event | None = None  # after the copies of the last plan

    def begin(self) -> None:
        """Take the set for another plan: its wrappers write into memory that the copies of the plan
        before read."""
        if self.copied is not None:
            self.copied.synchronize()
        self._used.clear()

    def next(self, kind: LayerKind, is_decode: bool) -> Any:
        """A wrapper that this plan does not use yet."""
        key = (kind, is_decode)
        made, at = self._made.setdefault(key, []), self._used.get(key, 0)
        if at == len(made):
            with torch.inference_mode(False):  # its buffers outlive the step
                made.append(self._make(is_decode))
        self._used[key] = at + 1
        return made[at]


def _classes(group: int | None, extend_lens: np.ndarray) -> np.ndarray:
    """Decodes go to a wrapper of their own; given a group, so do rows that the package would give
    another query tile if they were alone."""
    longer = extend_lens > 1
    if group is None:
        return longer
    return np.where(longer, 1 + np.searchsorted(_TILE_LIMITS, extend_lens * group), 0)


def _can_merge(kind: LayerKind) -> bool:
    return kind.heads * kind.head_dim // 8 <= _MERGE_THREADS  # 8 numbers per thread


def _arguments(layer: LayerTensors) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, float]]:
    """The pools in pages of one slot, and their scales where they are not 1."""
    scales = {"k_scale": layer.k_scale, "v_scale": layer.v_scale}
    pools = (layer.k_pool.unsqueeze(1), layer.v_pool.unsqueeze(1))
    return pools, {name: scale for name, scale in scales.items() if scale != 1}


def _run_rest(
    rest: Sequence[_Run],
    order: Order | None,
    q: torch.Tensor,
    layer: LayerTensors,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The rows of the parts, in q's order: [T, heads, head_dim], and base-2 log-sum-exps
    [T, heads] float32 if they are asked for."""
    pools, scales = _arguments(layer)
    q = taken(q, order, 0)
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32) if with_lse else None
    for run in rest:
        part = slice(run.start, run.stop)
        given = {"out": out[part]} if lse is None else {"out": out[part], "lse": lse[part]}
        run.wrapper.run(q[part], pools, return_lse=with_lse, **given, **scales)
    return taken(out, order, 1), None if lse is None else taken(lse, order, 1)
