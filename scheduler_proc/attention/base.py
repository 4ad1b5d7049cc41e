"""The seam between the model and attention kernels over the token-granular KV pool.

A backend learns at load which kinds of layers the model has. An executor plans once per step, for
all kinds, and runs the plan once per layer: nothing is planned inside a layer, since a recorded
graph would never plan it again. A row's output depends on that row's own queries and slots only
(beyond floating-point noise); slots that no row lists are never read, whatever they contain.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch


class LayerKind(NamedTuple):
    """What distinguishes the attention of one layer from another's.

    Scores are multiplied by `scale`, then become softcap * tanh(score / softcap) if there is a
    softcap. With a window a token sees this many tokens: itself and those just before it. With
    `sinks` the softmax of each head has one more entry, a score that the layer knows, which takes
    weight and has no value.
    """

    heads: int  # a multiple of kv_heads: heads/kv_heads consecutive query heads share one
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


class RaggedRows(NamedTuple):
    """The rows of a step, as the fields of the same names in ForwardBatch, int32.

    Query token i of a row sees the row's slots up to and with its own. With `visible_until`, the
    token t of the batch also sees later slots of its row, below position visible_until[t] of the
    row's sequence (the tokens of an image see each other both ways). Windows hold all the same.
    """

    qo_indptr: np.ndarray  # [R+1]
    kv_indptr: np.ndarray  # [R+1]
    kv_indices: np.ndarray  # [sum of sequence lengths]
    visible_until: np.ndarray | None = None  # [T] int32

    @property
    def num_rows(self) -> int:
        return len(self.qo_indptr) - 1

    @property
    def extend_lens(self) -> np.ndarray:
        """Tokens that each row adds, [R]."""
        return np.diff(self.qo_indptr)

    @property
    def seq_lens(self) -> np.ndarray:
        """Slots of each row, [R]."""
        return np.diff(self.kv_indptr)


class LayerTensors(NamedTuple):
    """What a layer attends with, besides its queries. K and V of this step are already written."""

    k_pool: torch.Tensor  # [num_slots, kv_heads, head_dim]
    v_pool: torch.Tensor  # [num_slots, kv_heads, value_dim]
    sinks: torch.Tensor | None = None  # [heads], exactly if the layer's kind has sinks
    k_scale: float = 1.0  # what the pool's numbers are multiplied by (fp8 pools)
    v_scale: float = 1.0


class AttentionPlan(Protocol):
    """One step's layout, ready to be run on every layer."""

    def run(self, kind: LayerKind, q: torch.Tensor, layer: LayerTensors) -> torch.Tensor:
        """Causal attention for the whole batch: q [T, heads, head_dim], contiguous ->
        [T, heads, value_dim] in q's dtype. `kind` is one of those that the backend was made for.
        """
        ...


class AttentionBackend(Protocol):
    """Makes plans. `name` is what `--attention-backend` calls it."""

    name: str

    def plan(self, rows: RaggedRows) -> AttentionPlan:
        """Lay out a ragged batch, for every kind."""
        ...


class GraphPlan(AttentionPlan, Protocol):
    """A plan of `size` rows of one token each, whose rows can be replaced between two replays of a
    graph in which `run` was recorded."""

    size: int

    def update(self, rows: RaggedRows) -> None:
        """Lay out these `size` rows; at most `max_indices` slots in all. Copies to the device are
        queued on the current stream: what they read on the host stays unchanged until they have
        run, as long as the plan is not updated again before that."""
        ...


class GraphBackend(AttentionBackend, Protocol):
    """A backend whose decodes can be recorded in graphs."""

    def prefers_eager(self, rows: RaggedRows) -> bool:
        """Whether these rows of one token each are faster as a plan of their own, such as a
        cascade."""
        ...

    def graph_plan(self, size: int, max_indices: int) -> GraphPlan:
        """A plan of its own, with buffers that keep their addresses, for `size` rows over at most
        `max_indices` slots in all."""
        ...


def check_graph_rows(rows: RaggedRows, size: int, max_indices: int) -> None:
    """Raise ValueError for rows that a graph's plan has no room for."""
    if rows.num_rows != size or (rows.extend_lens != 1).any():
        raise ValueError(f"a graph of {size} rows of one token, not of {rows.extend_lens}")
    if len(rows.kv_indices) > max_indices:
        raise ValueError(f"{len(rows.kv_indices)} slots in a graph for {max_indices}")
