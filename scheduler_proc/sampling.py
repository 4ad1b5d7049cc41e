"""Turns logits into token ids: penalties and masks, top-n-sigma, temperature, top-k, top-p, min-p,
the draw.

Called by the torch executor on the rows that sample. A row's token is a function of that row's
logits, parameters and uniform draw alone: tokens are ranked by (probability, then lowest id) and
probabilities are summed in float64 in a fixed order, whatever else is in the batch.
"""

from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.batch import Adjust, ForwardBatch, Samples
from scheduler_proc.logprobs import ranked, token_logprobs
from srt.wire.sampling import GREEDY_TEMPERATURE

# Ranks that are tried before a full sort: top-p almost always ends within them.
_TOP_CANDIDATES = 1024
# Extra ranks after top-k, so that tokens tied with the k-th are seen and ordered by id.
_TIE_MARGIN = 16


class _Filters(NamedTuple):
    """Parameters of the rows that filter, each [F, 1] on the logits' device."""

    top_k: torch.Tensor  # int64, the vocabulary size when off
    top_p: torch.Tensor  # float64
    min_p: torch.Tensor  # float64
    uniform: torch.Tensor  # float64

    def pick(self, rows: torch.Tensor) -> "_Filters":
        return _Filters(*(column[rows] for column in self))


def sample(logits: torch.Tensor, batch: ForwardBatch) -> tuple[np.ndarray, np.ndarray]:
    """logits [S, V] float32 -> (ids [S] int32, log-probabilities [S] float32).

    Log-probabilities are those of the unmodified softmax, NaN where not wanted. A row whose
    logits are not finite is sampled greedily from what is finite; it cannot disturb others.
    """
    masked = restricted(logits, batch)
    row_max, ids = masked.max(dim=-1)  # of ties, the lowest id
    finite = row_max.isfinite()
    if not bool(finite.all()):
        ids = torch.where(finite, ids, _finite_argmax(masked))
    draws = ~_on(batch.samples.temperature <= GREEDY_TEMPERATURE, logits) & finite
    if bool(draws.any()):
        rows = draws.nonzero()[:, 0]
        ids = ids.index_copy(0, rows, _draw(masked, row_max, rows, batch.samples))
    logprobs = _chosen_logprobs(logits, ids, batch.samples.want_logprob)
    return ids.cpu().numpy().astype(np.int32), logprobs


def restricted(logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """The logits [S, V] with the batch's changes, and -inf at what its rows may not produce; the
    same tensor if the batch has neither."""
    if batch.adjust is None and not batch.suppressed and batch.masks is None:
        return logits
    result = logits.clone()
    if batch.adjust is not None:
        _adjust(result, batch.adjust)
    for entry in batch.suppressed:
        result[entry.row, _on(entry.ids, logits, torch.int64)] = -torch.inf
    if batch.masks is not None:
        rows = np.flatnonzero(batch.masks.rows >= 0)
        words = batch.masks.words[batch.masks.rows[rows]].view(np.uint8)
        allowed = np.unpackbits(words, axis=1, count=logits.shape[1], bitorder="little")
        result[_on(rows, logits)] = result[_on(rows, logits)].masked_fill(
            ~_on(allowed, logits, torch.bool), -torch.inf
        )
    return result


def _adjust(logits: torch.Tensor, adjust: Adjust) -> None:
    """Change single tokens' logits in place: what repeats, then what is added."""
    counts = np.diff(adjust.indptr)
    rows = _on(np.repeat(np.arange(len(counts)), counts), logits)
    ids = _on(adjust.ids, logits, torch.int64)
    repeat, add = _on(adjust.repeat, logits), _on(adjust.add, logits)
    values = logits[rows, ids]
    logits[rows, ids] = torch.where(values > 0, values / repeat, values * repeat) + add


def _on(column: np.ndarray, logits: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(column)).to(logits.device, dtype)


def _finite_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Argmax with NaN below every finite value but above suppressed ids (-inf)."""
    lowest = torch.finfo(logits.dtype).min
    return logits.nan_to_num(nan=lowest, neginf=-torch.inf).argmax(dim=-1)


def _chosen_logprobs(logits: torch.Tensor, ids: torch.Tensor, wanted: np.ndarray) -> np.ndarray:
    result = np.full(len(wanted), np.nan, dtype=np.float32)
    if wanted.any():
        rows = _on(np.flatnonzero(wanted), logits)
        result[wanted] = token_logprobs(logits[rows], ids[rows]).cpu().numpy()
    return result


def _draw(
    masked: torch.Tensor, row_max: torch.Tensor, rows: torch.Tensor, samples: Samples
) -> torch.Tensor:
    """Ids [n] for the non-greedy `rows` [n]."""
    temperature = _on(samples.temperature, masked)[rows, None]
    logits, top = masked[rows], row_max[rows, None]
    if (samples.top_n_sigma > 0).any():
        sigmas = _on(samples.top_n_sigma, masked, torch.float64)[rows, None]
        logits = _within_sigmas(logits, top, sigmas)
    weights = ((logits - top) / temperature).exp_()  # largest is 1
    vocab = masked.shape[1]
    top_k = _on(samples.top_k, masked, torch.int64)[rows, None]
    filters = _Filters(
        top_k=torch.where(top_k > 0, top_k, vocab).clamp(max=vocab),
        top_p=_on(samples.top_p, masked, torch.float64)[rows, None],
        min_p=_on(samples.min_p, masked, torch.float64)[rows, None],
        uniform=_on(samples.uniform, masked, torch.float64)[rows, None],
    )
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    ids = _invert(cumulative, filters.uniform)
    filtered = (filters.top_k < vocab) | (filters.top_p < 1.0) | (filters.min_p > 0.0)
    chosen = filtered[:, 0].nonzero()[:, 0]
    if len(chosen):
        picked = _draw_filtered(weights[chosen], cumulative[chosen, -1:], filters.pick(chosen))
        ids = ids.index_copy(0, chosen, picked)
    return ids


def _within_sigmas(logits: torch.Tensor, top: torch.Tensor, sigmas: torch.Tensor) -> torch.Tensor:
    """The logits [n, V], with -inf at what is more than `sigmas` [n, 1] standard deviations below
    the largest, `top` [n, 1], in the rows where `sigmas` is above 0. The deviation is of those
    logits that are not -inf."""
    left = logits > -torch.inf
    count = left.sum(dim=-1, keepdim=True)
    values = logits.double()
    mean = _sum(values.where(left, 0.0)) / count
    deviation = (_sum((values - mean).square().where(left, 0.0)) / count).sqrt()
    # Rounding hides in which order the sums were added, so that a logit at the floor itself stays.
    floor = (top - sigmas * deviation).float().where(sigmas > 0, -torch.inf)
    return logits.masked_fill(logits < floor, -torch.inf)


def _sum(values: torch.Tensor) -> torch.Tensor:
    """[n, m] -> [n, 1], in a fixed order, whatever n is."""
    return values.cumsum(dim=-1)[:, -1:]


def _invert(cumulative: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative weight exceeds uniform * total: [n, m], [n, 1] -> [n]."""
    total = cumulative[:, -1:]
    # Rounding may lift the product to the total itself, which no index exceeds.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform * total, below_total)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _draw_filtered(weights: torch.Tensor, total: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """Ids [n] drawn from weights [n, V] (summing to `total` [n, 1]) under the filters."""
    vocab = weights.shape[1]
    count = min(vocab, _candidate_count(filters, vocab))
    ids, settled = _draw_ranked(*ranked(weights, count), total, filters, vocab)
    rest = (~settled).nonzero()[:, 0]
    if len(rest):
        everything = ranked(weights[rest], vocab)
        again, _ = _draw_ranked(*everything, total[rest], filters.pick(rest), vocab)
        ids = ids.index_copy(0, rest, again)
    return ids


def _candidate_count(filters: _Filters, vocab: int) -> int:
    """How many ranks are enough for all rows, unless top-p or min-p keep more."""
    limited = filters.top_k < vocab
    widest = int(torch.where(limited, filters.top_k + _TIE_MARGIN, _TOP_CANDIDATES).max())
    return min(widest, vocab)


def _draw_ranked(
    values: torch.Tensor, ids: torch.Tensor, total: torch.Tensor, filters: _Filters, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from ranked weights [n, m]; also say for which rows m ranks sufficed ([n] bool).

    The kept tokens are the first min(top-k, top-p, min-p) ranks. They are certain when a strictly
    smaller weight follows them (otherwise unseen tokens could be kept, or tie with the last one)
    or when the last weighs nothing and so cannot be drawn.
    """
    seen = values.shape[1]
    cumulative = values.cumsum(dim=-1, dtype=torch.float64)
    last_k = filters.top_k.clamp(max=seen) - 1
    mass = torch.where(filters.top_k < vocab, cumulative.gather(1, last_k), total)
    in_top_p = (cumulative < filters.top_p * mass).sum(dim=-1, keepdim=True) + 1
    in_min_p = (values >= filters.min_p).sum(dim=-1, keepdim=True)  # the top weight is 1
    in_top_p = torch.where(filters.top_p < 1.0, in_top_p, seen)
    kept = torch.minimum(torch.minimum(in_top_p, in_min_p), filters.top_k).clamp(1, seen)
    last = values.gather(1, kept - 1)
    settled = (last > values[:, -1:]) | (last == 0.0) | (seen == vocab)
    ranks = torch.arange(seen, device=values.device)
    cumulative = cumulative.where(ranks < kept, cumulative.gather(1, kept - 1))
    picked = _invert(cumulative, filters.uniform)
    return ids.gather(1, picked[:, None])[:, 0], settled[:, 0]
