"""Loads Llama weights from a checkpoint into fused tensors of one dtype on one device.

Called by the torch executor at start-up. Every tensor of the model is matched by name and shape
before anything is read: a missing, surplus or ill-shaped one is a ConfigError that names it.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch

from scheduler_proc.models.checkpoint import Checkpoint
from scheduler_proc.models.config import LlamaConfig
from scheduler_proc.models.llama import Linear, LlamaLayer, LlamaWeights
from scheduler_proc.models.rope import rope_frequencies
from scheduler_proc.models.tensors import (
    EMBED,
    HEAD,
    NORM,
    LayerSpec,
    LinearSpec,
    check_tensors,
    layer_spec,
)

# Elements that one job reads: small enough to spread over threads and to bound scratch memory.
_JOB_ELEMENTS = 1 << 21


class _Part(NamedTuple):
    """One checkpoint tensor and the (view of the) model tensor that it fills.

    `heads` is nonzero for q and k rows, which may need their rope pairs reordered.
    """

    name: str
    target: torch.Tensor
    heads: int = 0


class _Job(NamedTuple):
    """Rows [start, stop) of a checkpoint tensor, and where they go (as many elements)."""

    name: str
    start: int
    stop: int
    target: torch.Tensor


def load_weights(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    num_threads: int | None = None,
) -> LlamaWeights:
    """Read, dequantise and fuse all weights of `checkpoint`. Raises ConfigError."""
    check_tensors(checkpoint)
    plan = _WeightPlan(checkpoint.config, torch.device(device), dtype)
    frequencies = rope_frequencies(checkpoint.config)
    divisors = checkpoint.rope_divisors()
    if divisors is not None:
        frequencies = frequencies / divisors
    weights = plan.model(torch.from_numpy(frequencies))
    with ThreadPoolExecutor(num_threads or min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(partial(_fill, checkpoint), _jobs(checkpoint, plan.parts)):
            pass
    return weights


class _WeightPlan:
    """Allocates the model's tensors and lists which checkpoint tensor fills which part."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.parts: list[_Part] = []
        self._config = config
        self._device = device
        self._dtype = dtype

    def model(self, rope: torch.Tensor) -> LlamaWeights:
        c = self._config
        embed = self._whole(EMBED, c.vocab_size, c.hidden)
        head = embed if c.tie_embeddings else self._whole(HEAD, c.vocab_size, c.hidden)
        layers = [self._layer(layer_spec(c, i)) for i in range(c.layers)]
        norm = self._whole(NORM, c.hidden)
        return LlamaWeights(embed, layers, norm, head, rope.to(self._device))

    def _layer(self, spec: LayerSpec) -> LlamaLayer:
        hidden = self._config.hidden
        return LlamaLayer(
            input_norm=self._whole(spec.input_norm, hidden),
            qkv=self._fused(spec.q, spec.k, spec.v),
            o=self._fused(spec.o),
            post_norm=self._whole(spec.post_norm, hidden),
            gate_up=self._fused(spec.gate, spec.up),
            down=self._fused(spec.down),
        )

    def _fused(self, *specs: LinearSpec) -> Linear:
        """One Linear whose outputs are those of `specs` in turn."""
        rows = [spec.rows for spec in specs]
        weight = self._empty(sum(rows), specs[0].inputs)
        self._add(specs, torch.split(weight, rows), "weight")
        if not specs[0].bias:
            return Linear(weight)
        offsets = self._empty(sum(rows))
        self._add(specs, torch.split(offsets, rows), "bias")
        return Linear(weight, offsets)

    def _add(
        self, specs: tuple[LinearSpec, ...], targets: tuple[torch.Tensor, ...], kind: str
    ) -> None:
        for spec, target in zip(specs, targets, strict=True):
            self.parts.append(_Part(f"{spec.name}.{kind}", target, spec.heads))

    def _whole(self, name: str, *shape: int) -> torch.Tensor:
        target = self._empty(*shape)
        self.parts.append(_Part(name, target))
        return target

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def _jobs(checkpoint: Checkpoint, parts: list[_Part]) -> Iterator[_Job]:
    """What to read for every part: large ones in several jobs."""
    for part in parts:
        target, total = part.target, len(part.target)
        if part.heads and checkpoint.interleaved_rope:
            yield _Job(part.name, 0, total, _interleaved_view(target, part.heads))
            continue
        # A power of two, so that quantised rows regroup evenly (see checkpoint._BLOCKS_PER_ROW).
        rows = 1 << max(0, (_JOB_ELEMENTS // target[0].numel()).bit_length() - 1)
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            yield _Job(part.name, start, stop, target[start:stop])


def _interleaved_view(target: torch.Tensor, heads: int) -> torch.Tensor:
    """A view of q/k rows in llama.cpp's order: [heads, head_dim/2, 2, ...].

    llama.cpp stores the pair (i, i + head_dim/2) of a head side by side; we rotate halves.
    """
    return target.view(heads, 2, -1, *target.shape[1:]).transpose(1, 2)


def _fill(checkpoint: Checkpoint, job: _Job) -> None:
    source = checkpoint.read_rows(job.name, job.start, job.stop)
    job.target.copy_(source.view(job.target.shape))
