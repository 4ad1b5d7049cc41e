"""The cascade of each step, for a backend whose layers may share one."""

from collections.abc import Sequence

import numpy as np

from scheduler_proc.attention.base import LayerKind, RaggedRows
from scheduler_proc.attention.cascade import Cascade, CascadeCosts, find_cascade, takes_part


class CascadeChoice:
    """Finds what the kinds of layers without a window share. It may be turned off and on between
    steps (`is_on`); without such kinds there is never a cascade.

    A step without a graph costs a layer `eager_layer_s` more than one with. `most_parts` bounds the
    tokens of all levels, each of which has a partial result.
    """

    def __init__(
        self,
        kinds: Sequence[LayerKind],
        *,
        q_bytes: int,
        kv_bytes: int,
        eager_layer_s: float,
        most_parts: int | None = None,
    ) -> None:
        """With numbers of these sizes in queries and in the pool."""
        costs = [CascadeCosts.of(kind, q_bytes, kv_bytes) for kind in kinds if takes_part(kind)]
        # All share one cascade, made for the kind that gains most.
        self.costs = max(costs, key=lambda cost: cost.slot_s, default=None)
        self.is_on = True
        self._eager_layer_s = eager_layer_s
        self._most_parts = most_parts
        self._found: tuple[np.ndarray, Cascade | None] | None = None

    def of(self, rows: RaggedRows) -> Cascade | None:
        """The cascade to use for these rows, searched for once."""
        if self.costs is None or not self.is_on:
            return None
        if self._found is None or self._found[0] is not rows.kv_indices:
            self._found = (rows.kv_indices, self._fitting(find_cascade(rows, self.costs)))
        return self._found[1]

    def beats_graph(self, rows: RaggedRows) -> bool:
        """Whether a cascade over these rows, of one token each, saves more than a graph does."""
        if self.costs is None or len(rows.kv_indices) * self.costs.slot_s <= self._eager_layer_s:
            return False  # it would not if they read nothing at all: no search on every step
        cascade = self.of(rows)
        return cascade is not None and cascade.saved_s > self._eager_layer_s

    def _fitting(self, cascade: Cascade | None) -> Cascade | None:
        if cascade is None or self._most_parts is None:
            return cascade
        parts = int(cascade.rest.qo_indptr[-1]) * (1 + len(cascade.levels))
        return cascade if parts <= self._most_parts else None
