"""Log-probabilities on torch: of chosen tokens, of the most likely ones, and of those asked for.

Called by the torch executor on logits as the model gave them, a part of the rows at a time. What
`may_look` reads values to go a shorter way, for which the host waits; the results are the same.
"""

from collections.abc import Sequence

import numpy as np
import torch

from scheduler_proc.batch import DetailLogprobs, Details
from scheduler_proc.sampling.transfers import Upload

_LOW_BITS = 2**32 - 1


def token_logprobs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[ids] for logits [N, V] float32 and ids [N]: [N] float32."""
    chosen = logits.gather(1, ids[:, None])[:, 0]
    return chosen - logits.logsumexp(dim=-1)


def ranked(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` largest of each row of `values` [N, V] and their ids, both [N, count], the largest
    first and, of equals, the lowest id first. Which of the values that tie with the last one are
    included is not defined. Looks at values, unless `count` is V."""
    if count == values.shape[1]:
        largest, ids = values.sort(dim=-1, descending=True, stable=True)
        return largest, ids
    largest, ids = values.topk(count, dim=-1)
    if bool((largest[:, 1:] == largest[:, :-1]).any()):
        ids = ids.sort(dim=-1).values
        largest, order = values.gather(1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, order)
    return largest, ids


def ranked_by_keys(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `ranked`, of float32 values, without a look at them; of values that tie with the last one
    those with the lowest ids are included.

    No two tokens have the same key: the bits of the value, in an order as integers that is theirs
    as numbers, then those of the id, the lowest largest.
    """
    vocab = values.shape[1]
    if count == vocab:
        return ranked(values, count)
    bits = (values + 0.0).view(torch.int32)  # the sum makes -0.0 the equal of 0.0
    in_order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    from_last = torch.arange(vocab - 1, -1, -1, device=values.device)
    keys = (in_order * 2**32 + from_last).topk(count, dim=-1).values
    ids = vocab - 1 - (keys & _LOW_BITS)
    return values.gather(1, ids), ids


def most_likely(logits: torch.Tensor, count: int, may_look: bool) -> torch.Tensor:
    """The ids [N, count] of the `count` largest logits of each row [N, V], the best first; of
    equals those with the lowest ids."""
    vocab = logits.shape[1]
    if not may_look:
        return ranked_by_keys(logits, count)[1]
    largest, ids = ranked(logits, min(count + 1, vocab))
    if 0 < count < vocab:
        tied = (largest[:, count - 1] == largest[:, count]).nonzero()[:, 0]
        if len(tied):
            ids[tied] = ranked(logits[tied], vocab)[1][:, : count + 1]
    return ids[:, :count]


class DetailRows:
    """What a batch's detail rows ask for, gathered from the logits part by part."""

    def __init__(self, details: Details, upload: Upload, may_look: bool) -> None:
        self._details, self._may_look = details, may_look
        self._next = 0  # the first detail row that is still to come
        self._parts: list[slice] = []  # the detail rows of each part that has any
        counts = np.diff(details.indptr)
        owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._rows, self._ids = upload.indices(details.rows), upload.indices(details.ids)
        self._owners = upload.indices(owners)
        # For each part: the most likely ids [D of the part, most of them] int32, their
        # log-probabilities, and those of the ids that were asked for [M of the part].
        self.found: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, first: int) -> None:
        """`logits` [N, V] are those of samples or, counted on from the number of samples, of
        prompt log-probabilities [first, first+N). Parts come in ascending order."""
        details, start = self._details, self._next
        stop = int(np.searchsorted(details.rows, first + len(logits)))
        if start == stop:
            return
        self._next = stop
        self._parts.append(slice(start, stop))
        rows = logits[self._rows.tensor[start:stop] - first]
        norms = rows.logsumexp(dim=-1)
        top = most_likely(rows, int(details.top[start:stop].max()), self._may_look)
        part = slice(*details.indptr[[start, stop]].tolist())
        ids, owners = self._ids.tensor[part], self._owners.tensor[part] - start
        top_logprobs = rows.gather(1, top) - norms[:, None]
        self.found += [top.int(), top_logprobs, rows[owners, ids] - norms[owners]]

    def result(self, found: Sequence[np.ndarray]) -> DetailLogprobs:
        """Of all parts, from the arrays of `found` on the host."""
        details = self._details
        assert self._next == len(details.rows), "a part is missing"
        tops, top_logprobs, id_logprobs = found[::3], found[1::3], found[2::3]
        asked = [
            np.arange(top.shape[1]) < details.top[part, None]
            for top, part in zip(tops, self._parts, strict=True)
        ]
        return DetailLogprobs(
            _joined(np.int32, [top[a] for top, a in zip(tops, asked, strict=True)]),
            _joined(np.float32, [part[a] for part, a in zip(top_logprobs, asked, strict=True)]),
            _joined(np.float32, id_logprobs),
        )


def _joined(dtype: type, parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])
