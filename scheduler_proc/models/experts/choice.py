"""Chooses what computes the products of experts."""

import importlib.util

import torch

from scheduler_proc.models.experts.mixture import SumOfExperts, sum_of_experts
from srt.wire.errors import ConfigError


def products_on(device: torch.device) -> SumOfExperts:
    """What computes the products of experts on `device`. Raises ConfigError on CUDA without
    Triton: the loop over experts waits for the device, which graphs of steps cannot."""
    if device.type != "cuda":
        return sum_of_experts
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("a mixture of experts on CUDA needs triton (pip install triton)")
    from scheduler_proc.models.experts import grouped  # imports triton

    return grouped.sum_of_experts
