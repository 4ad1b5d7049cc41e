"""Writing K and V to the slots of a pool, whatever the pool's element type.

Models call it before they attend. A pool of float8_e4m3fn holds value / scale, rounded, and at most
the largest number of that type; what reads it multiplies by the same scale (`LayerTensors`).
"""

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max


def store(pool: torch.Tensor, slots: torch.Tensor, values: torch.Tensor, scale: float) -> None:
    """Write values [T, kv_heads, dim] to `slots` [T] int64 of pool [num_slots, kv_heads, dim].
    `scale` counts for pools of eight bits only."""
    if pool.dtype != FP8:
        pool.index_copy_(0, slots, values.to(pool.dtype))
        return
    scaled = (values.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    # torch copies eight-bit floats by index on no device; their bytes it does.
    pool.view(torch.uint8).index_copy_(0, slots, scaled.view(torch.uint8))
