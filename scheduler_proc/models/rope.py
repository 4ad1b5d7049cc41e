"""Rotary position embedding: the frequencies, which executors turn into angles.

float32 whatever the model's dtype: positions of a few thousand do not survive in 16 bits.
Frequencies follow the order of operations that checkpoints were trained with.
"""

import math

import numpy as np

from scheduler_proc.models.config import Llama3Rope, LlamaConfig


def rope_frequencies(config: LlamaConfig) -> np.ndarray:
    """Angle per position for each pair of dimensions: [head_dim/2] float32."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies: np.ndarray = 1 / np.float32(config.rope_theta) ** exponents
    scaling = config.rope_scaling
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: np.ndarray, scaling: Llama3Rope) -> np.ndarray:
    """Divide low frequencies by the factor, keep high ones, interpolate between the two."""
    turns = scaling.original_context_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clip(0.0, 1.0)
    stretched: np.ndarray = (1 - keep) * frequencies / scaling.factor + keep * frequencies
    return stretched.astype(np.float32)
