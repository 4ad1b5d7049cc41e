"""Attention in plain torch, row by row: the reference that every faster backend is held against.

Each row gathers its own K and V (or takes a view where its slots are consecutive) and calls
scaled_dot_product_attention. Heads that share K and V are folded into the query dimension, so K
and V are never expanded; long extends go in query blocks, which bounds the masks and skips keys
that a block cannot see.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from scheduler_proc.attention.base import AttentionPlan

_QUERY_BLOCK = 128


class _Row(NamedTuple):
    """Queries [start, stop) of the batch over `slots` (in sequence order, `seq_len` of them)."""

    start: int
    stop: int
    seq_len: int
    slots: slice | torch.Tensor


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
            rows.append(_Row(int(qo_indptr[r]), int(qo_indptr[r + 1]), len(indices), slots))
        return _ReferencePlan(rows)


def _as_slots(indices: np.ndarray, device: torch.device) -> slice | torch.Tensor:
    """A slice when the slots are one ascending run (the pool favours that), else an index."""
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first == count - 1 and bool((np.diff(indices) == 1).all()):
        return slice(first, first + count)
    return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(device)


class _ReferencePlan:
    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows

    def run(self, q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan.run."""
        out = torch.empty_like(q)
        for row in self._rows:
            k = k_pool[row.slots].transpose(0, 1)  # [kv_heads, seq_len, head_dim]
            v = v_pool[row.slots].transpose(0, 1)
            for start in range(row.start, row.stop, _QUERY_BLOCK):
                stop = min(start + _QUERY_BLOCK, row.stop)
                visible = row.seq_len - (row.stop - stop)
                out[start:stop] = _attend(q[start:stop], k[:, :visible], v[:, :visible])
        return out


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [e, heads, d] over k, v [kv_heads, n, d]; query i sees keys 0 .. n-e+i."""
    (extend_len, heads, head_dim), (kv_heads, num_keys, _) = q.shape, k.shape
    group = heads // kv_heads
    folded = q.view(extend_len, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, kv_heads, group * extend_len, head_dim)
    mask = None
    if extend_len > 1:
        mask = torch.ones(extend_len, num_keys, dtype=torch.bool, device=q.device)
        mask = mask.tril(num_keys - extend_len).repeat(group, 1)
    out = F.scaled_dot_product_attention(folded, k[None], v[None], attn_mask=mask)
    return out.view(kv_heads, group, extend_len, head_dim).permute(2, 0, 1, 3).flatten(1, 2)
