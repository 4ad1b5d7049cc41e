"""Attention in plain torch, row by row: the reference that every faster backend is held against.

Each row gathers its own K and V (or takes a view where its slots are consecutive) and calls
scaled_dot_product_attention, which has no soft cap and no sinks: there scores are computed one by
one. Heads that share K and V are folded into the query dimension, so K and V are never expanded;
long extends go in query blocks, which bounds the masks and skips keys that a block cannot see.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from scheduler_proc.attention.base import AttentionPlan, LayerKind, LayerTensors, RaggedRows

_QUERY_BLOCK = 128


class _Queries(NamedTuple):
    """Queries [start, stop) of the batch over `slots` (in sequence order, `seq_len` of them)."""

    start: int
    stop: int
    seq_len: int
    slots: slice | torch.Tensor
    visible_until: np.ndarray | None  # [stop - start] positions, above the query's own

    def slots_from(self, first: int) -> slice | torch.Tensor:
        """The slots of the sequence from position `first` on."""
        if isinstance(self.slots, slice):
            return slice(self.slots.start + first, self.slots.stop)
        return self.slots[first:]


class ReferenceAttention:
    """Runs on any device and in any dtype, and knows every kind of layer."""

    name = "reference"

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def plan(self, rows: RaggedRows) -> AttentionPlan:
        """Lay out a ragged batch."""
        qo, kv = rows.qo_indptr.tolist(), rows.kv_indptr.tolist()
        queries = []
        for r in range(rows.num_rows):
            slots = _as_slots(rows.kv_indices[kv[r] : kv[r + 1]], self._device)
            until = rows.visible_until
            if until is not None:
                own = np.arange(kv[r + 1] - kv[r] - (qo[r + 1] - qo[r]), kv[r + 1] - kv[r]) + 1
                until = np.maximum(until[qo[r] : qo[r + 1]], own)
            queries.append(_Queries(qo[r], qo[r + 1], kv[r + 1] - kv[r], slots, until))
        return _ReferencePlan(queries)


def _as_slots(indices: np.ndarray, device: torch.device) -> slice | torch.Tensor:
    """A slice when the slots are one ascending run (the pool favours that), else an index."""
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first == count - 1 and bool((np.diff(indices) == 1).all()):
        return slice(first, first + count)
    return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(device)


class _ReferencePlan:
    def __init__(self, rows: list[_Queries]) -> None:
        self._rows = rows

    def run(self, kind: LayerKind, q: torch.Tensor, layer: LayerTensors) -> torch.Tensor:
        """See AttentionPlan.run."""
        out = q.new_empty(*q.shape[:2], kind.value_dim)
        for row in self._rows:
            offset = row.seq_len - (row.stop - row.start)  # the position of the first query
            base = _first_visible(kind, offset)
            slots = row.slots_from(base)
            k = _gathered(layer.k_pool, slots, layer.k_scale, q.dtype)
            v = _gathered(layer.v_pool, slots, layer.v_scale, q.dtype)
            for start in range(row.start, row.stop, _QUERY_BLOCK):
                stop = min(start + _QUERY_BLOCK, row.stop)
                positions = np.arange(offset + start - row.start, offset + stop - row.start)
                until = positions + 1
                if row.visible_until is not None:
                    until = row.visible_until[start - row.start : stop - row.start]
                first, end = _first_visible(kind, int(positions[0])), int(until.max())
                mask = _visible(kind, positions - first, until - first, end - first, q.device)
                keys = slice(first - base, end - base)
                out[start:stop] = _attend(kind, q[start:stop], k[:, keys], v[:, keys], mask, layer)
        return out


def _first_visible(kind: LayerKind, position: int) -> int:
    """The first position that a token at `position` sees."""
    return 0 if kind.window is None else max(0, position - kind.window + 1)


def _gathered(
    pool: torch.Tensor, slots: slice | torch.Tensor, scale: float, dtype: torch.dtype
) -> torch.Tensor:
    """Those slots of a pool in `dtype`: [kv_heads, n, dim]."""
    gathered = pool[slots].transpose(0, 1)
    if pool.dtype == dtype and scale == 1:
        return gathered
    return (gathered.float() * scale).to(dtype)


def _visible(
    kind: LayerKind, positions: np.ndarray, until: np.ndarray, num_keys: int, device: torch.device
) -> torch.Tensor | None:
    """Which of `num_keys` keys the tokens see: bool [tokens, num_keys]; None: all of them."""
    if len(positions) == 1:
        return None
    keys = np.arange(num_keys)
    mask = keys < until[:, None]
    if kind.window is not None:
        mask &= keys > positions[:, None] - kind.window
    return torch.from_numpy(mask).to(device)


def _attend(
    kind: LayerKind,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    layer: LayerTensors,
) -> torch.Tensor:
    """q [e, heads, d] over k, v [kv_heads, n, d], where mask [e, n] allows it."""
    extend_len, group = len(q), kind.heads // kind.kv_heads
    folded = q.view(extend_len, kind.kv_heads, group, kind.head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, kind.kv_heads, group * extend_len, kind.head_dim)
    if mask is not None:
        mask = mask.repeat(group, 1)
    if kind.softcap is None and layer.sinks is None:
        out = F.scaled_dot_product_attention(
            folded, k[None], v[None], attn_mask=mask, scale=kind.scale
        )
    else:
        sinks = layer.sinks
        if sinks is not None:
            sinks = sinks.view(1, kind.kv_heads, group, 1).expand(-1, -1, -1, extend_len)
            sinks = sinks.reshape(1, kind.kv_heads, group * extend_len, 1)
        out = _by_scores(kind, folded, k[None], v[None], mask, sinks)
    return out.reshape(kind.kv_heads, group, extend_len, -1).permute(2, 0, 1, 3).flatten(1, 2)


def _by_scores(
    kind: LayerKind,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """scaled_dot_product_attention with a soft cap of the scores, and one more score, sinks
    [1, kv_heads, n, 1], in each softmax; the softmax is in float32."""
    scores = (q @ k.transpose(-1, -2)).float() * kind.scale
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()), dim=-1)
    return scores.softmax(-1)[..., : k.shape[-2]].to(v.dtype) @ v
