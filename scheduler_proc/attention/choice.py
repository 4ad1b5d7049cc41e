"""Chooses the attention backend of a model: `--attention-backend`.

A backend's module is imported only when it is made: triton and flashinfer need not be installed.
"""

import importlib
import logging
from collections.abc import Sequence
from typing import Any

import torch

from scheduler_proc.attention.base import AttentionBackend, LayerKind
from scheduler_proc.attention.reference import ReferenceAttention
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

ATTENTION_BACKENDS = ("auto", "flashinfer", "triton", "reference")

# Module, class, and how to get what the module imports; the one that served faster first
# (bench/README.md, "A GPU").
_FAST = {
    "triton": (
        "scheduler_proc.attention.triton",
        "TritonAttention",
        "triton comes with the CUDA builds of torch",
    ),
    "flashinfer": (
        "scheduler_proc.attention.flashinfer",
        "FlashInferAttention",
        "pip install --no-deps flashinfer-python; docs/cuda.md says what else",
    ),
}
# Those that cannot plan steps with `visible_until`.
_CAUSAL_ONLY = frozenset({"flashinfer"})


def make_attention(
    name: str,
    kinds: Sequence[LayerKind],
    *,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    deterministic: bool = False,
    sees_both_ways: bool = False,
) -> AttentionBackend:
    """The backend `name` (one of ATTENTION_BACKENDS) for these layers; with `sees_both_ways`, one
    that plans steps with `visible_until`.

    "auto" is on a CUDA device triton where it can, else flashinfer, else reference, and the log
    says why not the ones before; on another device it is reference. Raises ConfigError for an
    unknown name, and for a backend that cannot run the layers: naming the size, the type or the
    package.
    """
    if name not in ATTENTION_BACKENDS:
        known = ", ".join(ATTENTION_BACKENDS)
        raise ConfigError(f"--attention-backend {name!r} is not one of {known}")
    if name == "reference" or (name == "auto" and device.type != "cuda"):
        return ReferenceAttention(device)
    options = {
        "device": device,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "deterministic": deterministic,
    }
    if name != "auto":
        try:
            return _made(name, kinds, options, sees_both_ways)
        except ConfigError as error:
            raise ConfigError(f"--attention-backend {name}: {error}") from error
    for candidate in _FAST:
        try:
            backend = _made(candidate, kinds, options, sees_both_ways)
        except ConfigError as error:
            log.warning("attention does not run on %s: %s", candidate, error)
        else:
            log.info("attention runs on %s", candidate)
            return backend
    log.warning("attention runs on the reference implementation, which is many times slower")
    return ReferenceAttention(device)


def _made(
    name: str, kinds: Sequence[LayerKind], options: dict[str, Any], sees_both_ways: bool
) -> AttentionBackend:
    if sees_both_ways and name in _CAUSAL_ONLY:
        raise ConfigError("the tokens of the model's pictures see each other both ways")
    module, class_name, remedy = _FAST[name]
    try:
        make = getattr(importlib.import_module(module), class_name)
        backend: AttentionBackend = make(kinds, **options)
    except ImportError as error:
        raise ConfigError(f"{error} ({remedy})") from error
    return backend
