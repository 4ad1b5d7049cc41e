"""The package FlashInfer: what it can run, and its import."""

import importlib
from collections.abc import Sequence
from types import ModuleType

import torch

from scheduler_proc.attention.base import LayerKind
from srt.wire.errors import ConfigError

_HEAD_DIMS = (64, 128, 256)


def check(kinds: Sequence[LayerKind], dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """Raise ConfigError, naming what does not fit, if FlashInfer cannot run these layers."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise ConfigError(f"FlashInfer computes in float16 and bfloat16, not in {dtype}")
    if kv_dtype not in (dtype, torch.float8_e4m3fn):
        raise ConfigError(f"FlashInfer reads pools of {dtype} or float8_e4m3fn, not of {kv_dtype}")
    for kind in kinds:
        if kind.head_dim not in _HEAD_DIMS:
            raise ConfigError(
                f"FlashInfer has kernels for head sizes {_HEAD_DIMS}, not for {kind.head_dim}"
            )
        if kind.value_dim != kind.head_dim:
            raise ConfigError(
                f"FlashInfer needs values of the keys' head size, and a layer has keys of "
                f"{kind.head_dim} and values of {kind.value_dim}"
            )
        if kind.heads % kind.kv_heads:
            raise ConfigError(
                f"FlashInfer needs heads in groups of one size, and a layer has {kind.heads} for "
                f"{kind.kv_heads} KV heads"
            )
        if kind.sinks:
            raise ConfigError("FlashInfer's fa2 kernels have no attention sinks")


def load_package(device: torch.device) -> ModuleType:
    """The package, if it is installed and the device can run its kernels; else ConfigError."""
    # It imports without CUDA too, and fails only when a wrapper allocates pinned memory.
    if device.type != "cuda" or not torch.cuda.is_available():
        raise ConfigError(f"FlashInfer needs a CUDA device, not {device}")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(
            f"FlashInfer needs compute capability 8.0, and {name} has {capability[0]}."
            f"{capability[1]}"
        )
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:  # its libraries may not fit torch, which shows in any error
        raise ConfigError(
            f"FlashInfer cannot be imported ({error}): install what docs/cuda.md names, without "
            "dependencies, which would replace torch"
        ) from error
