"""Attention by our own Triton kernels. Importing this package does not import triton; making a
backend does."""

from scheduler_proc.attention.triton.backend import TritonAttention

__all__ = ["TritonAttention"]
