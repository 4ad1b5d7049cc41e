"""The seam between the model and attention kernels over the token-granular KV pool.

An executor plans once per step and runs the plan once per layer. A row's output depends on that
row's own queries and slots only (beyond floating-point noise); slots that no row lists are never
read, whatever they contain.
"""

from typing import Protocol

import numpy as np
import torch


class AttentionPlan(Protocol):
    """One step's layout, ready to be run on every layer."""

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
        """Causal attention for the whole batch.

        q [T, heads, head_dim]; pools [num_slots, kv_heads, head_dim] and [num_slots, kv_heads,
        value_dim], in which this step's K and V are already written; heads is a multiple of
        kv_heads, and heads/kv_heads consecutive query heads share one. Returns
        [T, heads, value_dim] in q's dtype.

        Scores are multiplied by `scale`, by default 1/sqrt(head_dim), then become
        softcap * tanh(score / softcap) if there is a softcap. With a window a token sees this
        many tokens: itself and those just before it.
        """
        ...


class AttentionBackend(Protocol):
    """Makes plans. `name` is what `--attention-backend` calls it."""

    name: str

    def plan(
        self, qo_indptr: np.ndarray, kv_indptr: np.ndarray, kv_indices: np.ndarray
    ) -> AttentionPlan:
        """Lay out a ragged batch (ForwardBatch's fields of the same names)."""
        ...
