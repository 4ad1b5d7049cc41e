"""Turns logits into token ids: restrictions, top-n-sigma, temperature, top-k, top-p, min-p, the
draw.

Called by the torch executor on the rows that sample. A row's token is a function of that row's
logits, parameters and uniform draw alone: tokens are ranked by (probability, then lowest id) and
probabilities are summed in float64 in a fixed order, whatever else is in the batch.

What can be known from the parameters is decided on the host, before the logits are there. A
`Sampler` that may look at them, as on a CPU, takes shorter ways where they allow it; one that may
not never makes the host wait for the device. Both draw the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.batch import ForwardBatch, Samples
from scheduler_proc.sampling.logprobs import ranked, ranked_by_keys, token_logprobs
from scheduler_proc.sampling.penalties import LateChange
from scheduler_proc.sampling.restrictions import Restrictions
from scheduler_proc.sampling.transfers import Sent, Upload
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


class Sampler:
    """Draws the samples of one batch, of a model with `vocab` ids. A part of an upload."""

    def __init__(
        self,
        batch: ForwardBatch,
        vocab: int,
        upload: Upload,
        *,
        may_look: bool,
        late: Sequence[LateChange] = (),
    ) -> None:
        """`late` are changes of logits by tokens that the step before is still sampling."""
        samples = batch.samples
        self._may_look = may_look
        self._restrictions = Restrictions(batch, late, upload)
        draws = np.flatnonzero(~(samples.temperature <= GREEDY_TEMPERATURE)).astype(np.int32)
        self._draws = upload.indices(draws)
        self._draw = _Draw(samples.take(draws), vocab, upload, may_look) if len(draws) else None
        self._wanted = upload.indices(np.flatnonzero(samples.want_logprob).astype(np.int32))

    def sample(
        self, logits: torch.Tensor, previous_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """logits [S, V] float32 -> (ids [S] int64, log-probabilities [W] float32 of the samples
        that want one, in order), once the upload is sent.

        Log-probabilities are those of the unmodified softmax. A row whose logits are not finite is
        sampled greedily from what is finite; it cannot disturb others. `previous_ids` int64 [S of
        the step before] are what that samples, if any change is late.
        """
        masked = self._restrictions.applied(logits, previous_ids)
        row_max, ids = self._greedy(masked)
        if self._draw is not None:
            rows = self._draws.tensor
            top = row_max[rows]
            drawn = self._draw.ids(masked[rows], top[:, None])
            ids = ids.index_copy(0, rows, torch.where(top.isfinite(), drawn, ids[rows]))
        wanted = self._wanted.tensor
        return ids, token_logprobs(logits[wanted], ids[wanted])

    def _greedy(self, masked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest logit of each row and its id; of ties, the lowest id."""
        if not self._may_look:
            return masked.amax(dim=-1), _finite_argmax(masked)
        row_max, ids = masked.max(dim=-1)
        return row_max, ids if bool(row_max.isfinite().all()) else _finite_argmax(masked)


def _finite_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Argmax with NaN below every finite value but above suppressed ids (-inf)."""
    lowest = torch.finfo(logits.dtype).min
    return logits.nan_to_num(nan=lowest, neginf=-torch.inf).argmax(dim=-1)


class _Group(NamedTuple):
    """Rows that filter, and how many ranks are looked at first, or at all."""

    rows: Sent  # numbers of drawn rows
    ranks: int


class _Draw:
    """How the rows are drawn that are not greedy: n of them."""

    def __init__(self, samples: Samples, vocab: int, upload: Upload, may_look: bool) -> None:
        self._vocab, self._may_look = vocab, may_look
        top_k = np.where(samples.top_k > 0, samples.top_k, vocab).clip(max=vocab).astype(np.int32)
        self._has_sigmas = bool((samples.top_n_sigma > 0).any())
        self._temperature, self._top_k = upload.values(samples.temperature), upload.indices(top_k)
        columns = (samples.top_p, samples.min_p, samples.uniform, samples.top_n_sigma)
        self._columns = upload.values(np.stack([c.astype(np.float64) for c in columns]))
        filters = (top_k < vocab) | (samples.top_p < 1.0) | (samples.min_p > 0.0)
        is_narrow = top_k <= _TOP_CANDIDATES  # the rows that need no sort, whatever the logits are
        chosen = [filters] if may_look else [filters & is_narrow, filters & ~is_narrow]
        self._groups = [
            _Group(upload.indices(np.flatnonzero(rows).astype(np.int32)), self._count(top_k[rows]))
            for rows in chosen
            if rows.any()
        ]

    def _count(self, top_k: np.ndarray) -> int:
        if self._may_look:
            return _candidate_count(top_k, self._vocab)
        widest = int(top_k.max())
        return widest if widest <= _TOP_CANDIDATES else self._vocab

    def ids(self, logits: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """logits [n, V] and their largest [n, 1] -> ids [n]; of rows that are not finite, any."""
        top_p, min_p, uniform, sigmas = self._columns.tensor[:, :, None]
        if self._has_sigmas:
            logits = _within_sigmas(logits, top, sigmas)
        weights = ((logits - top) / self._temperature.tensor[:, None]).exp_()  # largest is 1
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        ids = _invert(cumulative, uniform)
        filters = _Filters(self._top_k.tensor[:, None], top_p, min_p, uniform)
        for group in self._groups:
            rows = group.rows.tensor
            drawn = self._filtered(
                weights[rows], cumulative[rows, -1:], filters.pick(rows), group.ranks
            )
            ids = ids.index_copy(0, rows, drawn)
        return ids

    def _filtered(
        self, weights: torch.Tensor, total: torch.Tensor, filters: _Filters, count: int
    ) -> torch.Tensor:
        """Ids [F] drawn from weights [F, V] (summing to `total` [F, 1]) under the filters, by
        `count` ranks."""
        vocab = self._vocab
        if not self._may_look:
            return _draw_ranked(*ranked_by_keys(weights, count), total, filters, vocab)[0]
        ids, settled = _draw_ranked(*ranked(weights, count), total, filters, vocab)
        rest = (~settled).nonzero()[:, 0]
        if len(rest):
            everything = ranked(weights[rest], vocab)
            again, _ = _draw_ranked(*everything, total[rest], filters.pick(rest), vocab)
            ids = ids.index_copy(0, rest, again)
        return ids


def _candidate_count(top_k: np.ndarray, vocab: int) -> int:
    """How many ranks are enough for all rows, unless top-p or min-p keep more."""
    widest = int(np.where(top_k < vocab, top_k + _TIE_MARGIN, _TOP_CANDIDATES).max())
    return min(widest, vocab)


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
    """First index whose cumulative weight exceeds uniform * total: [n, m], [n, 1] -> [n]. Some
    index if the weights are not finite."""
    total = cumulative[:, -1:]
    # Rounding may lift the product to the total itself, which no index exceeds.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform * total, below_total)
    found = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return found.clamp(max=cumulative.shape[1] - 1)


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
