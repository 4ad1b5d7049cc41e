"""Rotary position embedding: frequencies, angles and the half-rotation of q and k.

Everything here is float32 whatever the model's dtype: positions of a few thousand do not survive
in 16 bits. Frequencies follow the order of operations that checkpoints were trained with.
"""

import math

import torch

from scheduler_proc.models.config import Llama3Rope, LlamaConfig


def rope_frequencies(config: LlamaConfig) -> torch.Tensor:
    """Angle per position for each pair of dimensions: [head_dim/2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: torch.Tensor, scaling: Llama3Rope) -> torch.Tensor:
    """Divide low frequencies by the factor, keep high ones, interpolate between the two."""
    turns = scaling.original_context_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def rope_angles(
    frequencies: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) for `positions` [T], each [T, 1, head_dim/2] float32."""
    angles = (positions.float()[:, None] * frequencies)[:, None, :]
    return angles.cos(), angles.sin()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim/2) of x [T, heads, head_dim]; returns x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)
