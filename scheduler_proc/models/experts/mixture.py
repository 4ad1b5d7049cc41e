"""A layer's mixture of experts on torch: the products of the experts that tokens use.

Pairs of a token and an expert are sorted by expert, so that each used expert has one product of
each kind. What experts give is weighed and summed per token in float32, in ascending order of their
ids, the shared expert last: what a token gets does not depend on the order in which pairs come.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from scheduler_proc.models.config import RouterRule
from scheduler_proc.models.experts.routing import Chosen, choose

# [T, 2 * width], gate first, -> [T, width].
Activate = Callable[[torch.Tensor], torch.Tensor]


class SharedExpert(NamedTuple):
    """The expert that every token uses; its output is multiplied by sigmoid(x . score)."""

    gate_up: torch.Tensor  # [2 * width, hidden], gate first
    down: torch.Tensor  # [hidden, width]
    score: torch.Tensor | None  # [1, hidden] float32


class Mixture(NamedTuple):
    """A layer's router and experts. The router is in float32, whatever the experts are in."""

    router: torch.Tensor  # [count, hidden] float32
    router_bias: torch.Tensor | None  # [count] float32
    correction: torch.Tensor | None  # [count] float32
    gate_up: torch.Tensor  # [count, 2 * width, hidden], gate first
    down: torch.Tensor  # [count, hidden, width]
    shared: SharedExpert | None
    counts: torch.Tensor | None = None  # [count] int64: tokens that have used each; None: unknown

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All weights."""
        every = (self.router, self.router_bias, self.correction, self.gate_up, self.down)
        return [t for t in (*every, *(self.shared or ())) if t is not None]


# What `sum_of_experts` computes.
SumOfExperts = Callable[[Mixture, Chosen, torch.Tensor, Activate], torch.Tensor]


class MixtureKernels(NamedTuple):
    """What a device computes mixtures with: the activation, and the products of experts."""

    activate: Activate
    sum_of_experts: SumOfExperts


def run_mixture(
    mixture: Mixture, rule: RouterRule, used: int, x: torch.Tensor, kernels: MixtureKernels
) -> torch.Tensor:
    """What the mixture makes of normalised hidden states [T, hidden]: the same shape and dtype."""
    activate = kernels.activate
    wide = x.float()
    logits = F.linear(wide, mixture.router, mixture.router_bias)
    chosen = choose(rule, used, logits, mixture.correction)
    if mixture.counts is not None:
        ids = chosen.ids.flatten()
        mixture.counts.index_add_(0, ids, torch.ones_like(ids))
    total = kernels.sum_of_experts(mixture, chosen, x, activate)
    if mixture.shared is not None:
        gate_up, down, score = mixture.shared
        shared = F.linear(activate(F.linear(x, gate_up)), down).float()
        if score is not None:
            shared = shared * F.linear(wide, score).sigmoid()
        total = total + shared
    return total.to(x.dtype)


def sum_of_experts(
    mixture: Mixture, chosen: Chosen, x: torch.Tensor, activate: Activate
) -> torch.Tensor:
    """The weighted sum of the chosen experts' outputs for x [T, hidden]: float32 [T, hidden]."""
    used = chosen.ids.shape[1]
    order = chosen.ids.flatten().argsort(stable=True)  # pairs by expert, then by token
    tokens, weights = order // used, chosen.weights.flatten()[order][:, None]
    counts = chosen.ids.flatten().bincount(minlength=len(mixture.gate_up)).tolist()
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            own = tokens[start : start + count]
            inner = activate(F.linear(x[own], mixture.gate_up[expert]))
            outputs = F.linear(inner, mixture.down[expert]).float()
            total.index_add_(0, own, outputs * weights[start : start + count])
            start += count
    return total
