"""Which experts a token uses, and with which weights: the rules of `RouterRule`, in float32."""

from typing import NamedTuple

import torch

from scheduler_proc.models.config import RouterRule

# The weights of a token are divided by at least this: scores may all be 0.
_LEAST_SUM = 1e-20


class Chosen(NamedTuple):
    """The experts of each token, ids ascending, and their weights: int64 and float32 [T, used]."""

    ids: torch.Tensor
    weights: torch.Tensor


def choose(
    rule: RouterRule, used: int, logits: torch.Tensor, correction: torch.Tensor | None = None
) -> Chosen:
    """The best `used` experts by the router's logits [T, count] float32; of equal ones those with
    the lowest ids. `correction` [count] float32 is added to what they are chosen by."""
    scores = _scores(rule, logits)
    ranks = scores if rule.chosen_by == "scores" else logits
    if correction is not None:
        ranks = ranks + correction
    if rule.groups > 1:
        ranks = _in_best_groups(rule, ranks)
    ids = _best(ranks, used).sort(dim=-1).values
    if rule.chosen_by == "scores":
        weights = scores.gather(-1, ids)
    else:
        weights = _scores(rule, logits.gather(-1, ids))
    if rule.normalised:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(_LEAST_SUM)
    return Chosen(ids, weights * rule.scale)


def _scores(rule: RouterRule, logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(-1) if rule.scores == "softmax" else logits.sigmoid()


def _best(ranks: torch.Tensor, count: int) -> torch.Tensor:
    """The columns of the `count` largest of each row, the lowest first among equal ones, which
    topk does not promise."""
    return ranks.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _in_best_groups(rule: RouterRule, ranks: torch.Tensor) -> torch.Tensor:
    """`ranks` with -inf for experts of groups that are not used."""
    groups = ranks.view(len(ranks), rule.groups, -1)
    totals = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
    is_left_out = torch.ones_like(totals, dtype=torch.bool)
    is_left_out.scatter_(-1, _best(totals, rule.used_groups), False)
    return groups.masked_fill(is_left_out[..., None], -torch.inf).view_as(ranks)
