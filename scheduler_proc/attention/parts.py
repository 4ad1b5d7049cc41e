"""Cuts a step for kernels that take rows of one sort at a time, and sends what they read."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.attention.cascade import Cascade
from scheduler_proc.attention.staging import Staging
from scheduler_proc.ragged import indptr_of, slices_of

# From the lengths of a step's rows, [R], the sort of each.
Classes = Callable[[np.ndarray], np.ndarray]


class Part(NamedTuple):
    """Rows that go together, and their slots on the device."""

    rows: RaggedRows
    slots: torch.Tensor  # [sum of the rows' lengths] int32

    @property
    def num_tokens(self) -> int:
        return int(self.rows.qo_indptr[-1])

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == self.rows.num_rows


class Order(NamedTuple):
    """A permutation of tokens and its inverse, [T] int32 each."""

    there: torch.Tensor
    back: torch.Tensor


class Layout(NamedTuple):
    """A step in parts. Each level has all tokens, in the order `order`; it is not causal. The rows
    of `parts`, one part after the other, are in the order `rest_order` of that order."""

    order: Order | None
    levels: list[Part]
    rest_order: Order | None
    parts: list[Part]


def lay_out(
    rows: RaggedRows, cascade: Cascade | None, classes: Classes, staging: Staging
) -> Layout:
    """The levels of the cascade, if there is one, and what is left of the rows by their sorts."""
    levels: Sequence[RaggedRows] = () if cascade is None else cascade.levels
    rest = rows if cascade is None else cascade.rest
    parts, rest_tokens = _cut(rest, classes(rest.extend_lens))
    orders = [None if cascade is None else cascade.tokens, rest_tokens]
    laid_out = (*levels, *parts)
    arrays = [part.kv_indices for part in laid_out]
    for tokens in orders:
        if tokens is not None:
            arrays += [tokens, tokens.argsort()]
    sent = staging.send(arrays)
    pairs = iter(sent[len(laid_out) :])
    order, rest_order = (None if t is None else Order(next(pairs), next(pairs)) for t in orders)
    ready = [Part(part, slots) for part, slots in zip(laid_out, sent, strict=False)]
    return Layout(order, ready[: len(levels)], rest_order, ready[len(levels) :])


def in_window(rows: RaggedRows, window: int | None) -> RaggedRows:
    """The rows without the slots that none of their tokens sees."""
    if window is None:
        return rows
    ends = rows.kv_indptr[1:]
    begins = np.maximum(rows.kv_indptr[:-1], ends - rows.extend_lens - window + 1)
    return RaggedRows(rows.qo_indptr, *slices_of(rows.kv_indices, begins, ends))


def _cut(rows: RaggedRows, classes: np.ndarray) -> tuple[list[RaggedRows], np.ndarray | None]:
    """The rows of each class, and the order of their tokens if it is not the rows'."""
    if (classes == classes[0]).all():
        return [rows], None
    order = classes.argsort(kind="stable")
    parts = []
    for numbers in np.split(order, np.flatnonzero(np.diff(classes[order])) + 1):
        begins, ends = rows.kv_indptr[:-1][numbers], rows.kv_indptr[1:][numbers]
        qo_indptr = indptr_of(rows.extend_lens[numbers])
        parts.append(RaggedRows(qo_indptr, *slices_of(rows.kv_indices, begins, ends)))
    if (np.diff(order) > 0).all():
        return parts, None
    begins, ends = rows.qo_indptr[:-1][order], rows.qo_indptr[1:][order]
    return parts, slices_of(np.arange(rows.qo_indptr[-1], dtype=np.int32), begins, ends)[1]


def taken(tensor: torch.Tensor, order: Order | None, way: int) -> torch.Tensor:
    """In the order (way 0), or back (way 1)."""
    return tensor if order is None else tensor.index_select(0, order[way])
