"""Log-probabilities on torch: of chosen tokens, of the most likely ones, and of those asked for.

Called by the torch executor on logits as the model gave them, a part of the rows at a time.
"""

import numpy as np
import torch

from scheduler_proc.batch import DetailLogprobs, Details


def token_logprobs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[ids] for logits [N, V] float32 and ids [N]: [N] float32."""
    chosen = logits.gather(1, ids[:, None])[:, 0]
    return chosen - logits.logsumexp(dim=-1)


def ranked(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` largest of each row of `values` [N, V] and their ids, both [N, count], the largest
    first and, of equals, the lowest id first. Which of the values that tie with the last one are
    included is not defined."""
    if count == values.shape[1]:
        largest, ids = values.sort(dim=-1, descending=True, stable=True)
        return largest, ids
    largest, ids = values.topk(count, dim=-1)
    if bool((largest[:, 1:] == largest[:, :-1]).any()):
        ids = ids.sort(dim=-1).values
        largest, order = values.gather(1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, order)
    return largest, ids


def most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The ids [N, count] of the `count` largest logits of each row [N, V], the best first; of
    equals those with the lowest ids."""
    vocab = logits.shape[1]
    largest, ids = ranked(logits, min(count + 1, vocab))
    if 0 < count < vocab:
        tied = (largest[:, count - 1] == largest[:, count]).nonzero()[:, 0]
        if len(tied):
            ids[tied] = ranked(logits[tied], vocab)[1][:, : count + 1]
    return ids[:, :count]


class DetailRows:
    """What a batch's detail rows ask for, gathered from the logits part by part."""

    def __init__(self, details: Details) -> None:
        self._details = details
        self._next = 0  # the first detail row that is still to come
        self._top_ids = [np.empty(0, np.int32)]
        self._top_logprobs = [np.empty(0, np.float32)]
        self._id_logprobs = [np.empty(0, np.float32)]

    def add(self, logits: torch.Tensor, first: int) -> None:
        """`logits` [N, V] are those of samples or, counted on from the number of samples, of
        prompt log-probabilities [first, first+N). Parts come in ascending order."""
        details, start = self._details, self._next
        stop = int(np.searchsorted(details.rows, first + len(logits)))
        if start == stop:
            return
        self._next = stop
        rows = logits[_on(details.rows[start:stop] - first, logits)]
        norms = rows.logsumexp(dim=-1)
        self._add_top(rows, norms, details.top[start:stop])
        indptr = details.indptr[start : stop + 1]
        ids = _on(details.ids[indptr[0] : indptr[-1]], logits)
        owners = _on(np.repeat(np.arange(stop - start), np.diff(indptr)), logits)
        self._id_logprobs.append((rows[owners, ids] - norms[owners]).cpu().numpy())

    def _add_top(self, rows: torch.Tensor, norms: torch.Tensor, counts: np.ndarray) -> None:
        most = int(counts.max())
        ids = most_likely(rows, most)
        logprobs = rows.gather(1, ids) - norms[:, None]
        asked = np.arange(most) < counts[:, None]
        self._top_ids.append(ids.cpu().numpy()[asked].astype(np.int32))
        self._top_logprobs.append(logprobs.cpu().numpy()[asked])

    def result(self) -> DetailLogprobs:
        """Of all parts."""
        assert self._next == len(self._details.rows), "a part is missing"
        return DetailLogprobs(
            np.concatenate(self._top_ids),
            np.concatenate(self._top_logprobs),
            np.concatenate(self._id_logprobs),
        )


def _on(values: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(logits.device)
