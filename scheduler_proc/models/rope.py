"""Rotary position embedding: the frequencies, which executors turn into angles.

float32 whatever the model's dtype: positions of a few thousand do not survive in 16 bits.
Frequencies follow the order of operations that checkpoints were trained with, as transformers'
modeling_rope_utils has it. Sources: YaRN, arXiv:2309.00071; LongRoPE, arXiv:2402.13753.
"""

import math

import numpy as np

from scheduler_proc.models.config import LinearRope, Llama3Rope, LongRope, Rope, YarnRope


def rope_frequencies(rope: Rope, dims: int) -> np.ndarray:
    """Angle per position for each of the pairs that `dims` dimensions make: [dims/2] float32."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    wavelengths = np.float32(rope.theta) ** exponents
    frequencies: np.ndarray = 1 / wavelengths
    match rope.scaling:
        case LinearRope(factor=factor):
            return frequencies / np.float32(factor)
        case Llama3Rope() as scaling:
            return _stretch(frequencies, scaling)
        case YarnRope() as scaling:
            return _ramp(frequencies, wavelengths, scaling, rope.theta)
        case LongRope(factors=factors):
            stretched: np.ndarray = 1 / (np.array(factors, np.float32) * wavelengths)
            return stretched
    return frequencies


def _stretch(frequencies: np.ndarray, scaling: Llama3Rope) -> np.ndarray:
    """Divide low frequencies by the factor, keep high ones, interpolate between the two."""
    turns = scaling.original_context_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clip(0.0, 1.0)
    stretched: np.ndarray = (1 - keep) * frequencies / scaling.factor + keep * frequencies
    return stretched.astype(np.float32)


def _ramp(
    frequencies: np.ndarray, wavelengths: np.ndarray, scaling: YarnRope, theta: float
) -> np.ndarray:
    """Keep the pairs before the ramp, divide those after it by the factor."""
    dims = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        """The pair, as a real number, that makes this many turns in the original context."""
        context_len = scaling.original_context_len
        return dims * math.log(context_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    start, end = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, dims - 1)
    width = end - start if end != start else 0.001
    pairs = np.arange(len(frequencies), dtype=np.float32)
    stretch = ((pairs - np.float32(start)) / np.float32(width)).clip(0.0, 1.0)
    ramped: np.ndarray = 1 / (np.float32(scaling.factor) * wavelengths) * stretch + frequencies * (
        1 - stretch
    )
    return ramped.astype(np.float32)
