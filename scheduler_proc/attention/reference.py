"""Attention in plain torch, row by row: the reference that every faster backend is held against.

Each row gathers its own K and V (or takes a view where its slots are consecutive) and calls
scaled_dot_product_attention, which has no soft cap: there scores are computed one by one. Heads
that share K and V are folded into the query dimension, so K and V are never expanded; long extends
go in query blocks, which bounds the masks and skips keys that a block cannot see.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from scheduler_proc.attention.base import AttentionPlan

_QUERY_BLOCK = 128


class _Queries(NamedTuple):
    """Queries [start, stop) of the batch over `slots` (in sequence order, `seq_len` of them)."""

    start: int
    stop: int
    seq_len: int
    slots: slice | torch.Tensor

    def slots_from(self, first: int) -> slice | torch.Tensor:
        """The slots of the sequence from position `first` on."""
        if isinstance(self.slots, slice):
            return slice(self.slots.start + first, self.slots.stop)
        return self.slots[first:]


class _Scoring(NamedTuple):
    """The options of `AttentionPlan.run`."""

    scale: float | None
    window: int | None
    softcap: float | None

    def first_visible(self, position: int) -> int:
        """The first position that a token at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


class ReferenceAttention:
    """Runs on any device and in any dtype."""

    name = "reference"

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def plan(
        self, qo_indptr: np.ndarray, kv_indptr: np.ndarray, kv_indices: np.ndarray
    ) -> AttentionPlan:
        """Lay out a ragged batch (ForwardBatch's fields of the same names)."""
        rows = []
        for r in range(len(qo_indptr) - 1):
            indices = kv_indices[kv_indptr[r] : kv_indptr[r + 1]]
            slots = _as_slots(indices, self._device)
            rows.append(_Queries(int(qo_indptr[r]), int(qo_indptr[r + 1]), len(indices), slots))
        return _ReferencePlan(rows)


def _as_slots(indices: np.ndarray, device: torch.device) -> slice | torch.Tensor:
    """A slice when the slots are one ascending run (the pool favours that), else an index."""
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first == count - 1 and bool((np.diff(indices) == 1).all()):
        return slice(first, first + count)
    return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(device)


class _ReferencePlan:
    def __init__(self, rows: list[_Queries]) -> None:
        self._rows = rows

    def run(
        self,
        q: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See AttentionPlan.run."""
        scoring = _Scoring(scale, window, softcap)
        out = q.new_empty(*q.shape[:2], v_pool.shape[2])
        for row in self._rows:
            offset = row.seq_len - (row.stop - row.start)  # the position of the first query
            base = scoring.first_visible(offset)
            slots = row.slots_from(base)
            k = k_pool[slots].transpose(0, 1)  # [kv_heads, seq_len - base, head_dim]
            v = v_pool[slots].transpose(0, 1)
            for start in range(row.start, row.stop, _QUERY_BLOCK):
                stop = min(start + _QUERY_BLOCK, row.stop)
                first = scoring.first_visible(offset + start - row.start) - base
                end = offset + stop - row.start - base
                out[start:stop] = _attend(q[start:stop], k[:, first:end], v[:, first:end], scoring)
        return out


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scoring: _Scoring) -> torch.Tensor:
    """q [e, heads, d] over k, v [kv_heads, n, d]; query i stands at key n-e+i."""
    (extend_len, heads, head_dim), (kv_heads, num_keys, _) = q.shape, k.shape
    group = heads // kv_heads
    folded = q.view(extend_len, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, kv_heads, group * extend_len, head_dim)
    mask = None
    if extend_len > 1:
        mask = _visible(extend_len, num_keys, scoring.window, q.device).repeat(group, 1)
    if scoring.softcap is None:
        out = F.scaled_dot_product_attention(
            folded, k[None], v[None], attn_mask=mask, scale=scoring.scale
        )
    else:
        out = _capped(folded, k[None], v[None], mask, scoring.scale, scoring.softcap)
    return out.reshape(kv_heads, group, extend_len, -1).permute(2, 0, 1, 3).flatten(1, 2)


def _visible(
    extend_len: int, num_keys: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """Which keys the last `extend_len` of `num_keys` tokens see: bool [extend_len, num_keys]."""
    mask = torch.ones(extend_len, num_keys, dtype=torch.bool, device=device)
    mask = mask.tril(num_keys - extend_len)
    return mask if window is None else mask.triu(num_keys - extend_len - window + 1)


def _capped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    softcap: float,
) -> torch.Tensor:
    """scaled_dot_product_attention with a soft cap of the scores; the softmax is in float32."""
    scores = (q @ k.transpose(-1, -2)).float()
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v
