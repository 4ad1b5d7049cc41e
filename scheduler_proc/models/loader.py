"""Loads weights from a checkpoint into fused tensors of one dtype on one device.

Called by the torch executor at start-up. Every tensor of the model is matched by name and shape
before anything is read: a missing, surplus or ill-shaped one is a ConfigError that names it.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from scheduler_proc.models.checkpoint import EMBED, HEAD, Checkpoint
from scheduler_proc.models.config import DecoderConfig, Rope
from scheduler_proc.models.decoder import DecoderLayer, DecoderWeights, Linear, RopeTable
from scheduler_proc.models.experts.mixture import Mixture, SharedExpert
from scheduler_proc.models.rope import rope_frequencies
from scheduler_proc.models.tensors import (
    NORM,
    LinearSpec,
    MixtureSpec,
    check_tensors,
    kv_scale_names,
    layer_spec,
    require_finite,
)
from srt.wire.errors import ConfigError

# Elements that one job reads: small enough to spread over threads and to bound scratch memory.
_JOB_ELEMENTS = 1 << 21


class _Part(NamedTuple):
    """Rows of a checkpoint tensor from `first` on, and the (view of the) model tensor they fill.

    `heads` is nonzero for q and k rows, which may need their rope pairs reordered. `offset` is
    added to the values. `part` is the number of a matrix in a stack of them.
    """

    name: str
    target: torch.Tensor
    first: int = 0
    heads: int = 0
    offset: float = 0.0
    part: int | None = None


class _Job(NamedTuple):
    """Rows [start, stop) of a checkpoint tensor, or of matrix `part` of it, and where they go (as
    many elements)."""

    name: str
    start: int
    stop: int
    target: torch.Tensor
    offset: float
    part: int | None = None


def load_weights(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    num_threads: int | None = None,
) -> DecoderWeights:
    """Read, dequantise and fuse all weights of `checkpoint`. Raises ConfigError."""
    check_tensors(checkpoint)
    plan = _WeightPlan(checkpoint, torch.device(device), dtype)
    weights = plan.model(checkpoint.rope_divisors())
    with ThreadPoolExecutor(num_threads or min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(partial(_fill, checkpoint), _jobs(checkpoint, plan.parts)):
            pass
    for name, target in plan.scoring:
        require_finite(checkpoint, name, are_finite=bool(target.isfinite().all()))
    return weights


class _WeightPlan:
    """Allocates the model's tensors and lists which checkpoint tensor fills which part; `scoring`
    are those that decide which experts are used."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.parts: list[_Part] = []
        self.scoring: list[tuple[str, torch.Tensor]] = []
        self._config: DecoderConfig = checkpoint.config
        scales = kv_scale_names(checkpoint.config).intersection(checkpoint.tensors)
        self._scales = {name: _scale(checkpoint, name) for name in scales}
        self._device = device
        self._dtype = dtype

    def model(self, rope_divisors: np.ndarray | None) -> DecoderWeights:
        c = self._config
        embed = self._matrix(EMBED)
        head = embed if c.tie_embeddings else self._matrix(HEAD)
        layers = [self._layer(i) for i in range(c.layers)]
        ropes = [self._rope(c.rope, rope_divisors)]
        if c.local_rope is not None:
            ropes.append(self._rope(c.local_rope, None))
        return DecoderWeights(embed, layers, self._norm(NORM, c.hidden), head, tuple(ropes))

    def _layer(self, index: int) -> DecoderLayer:
        c, spec = self._config, layer_spec(self._config, index)
        mlp, (q_size, k_size) = spec.mlp, c.qk_norm_sizes
        return DecoderLayer(
            input_norm=self._norm(spec.input_norm, c.hidden),
            qkv=self._fused(spec.q, spec.k, spec.v),
            o=self._fused(spec.o),
            mlp_norm=self._norm(spec.mlp_norm, c.hidden),
            gate_up=None if mlp is None else self._fused(mlp.gate, mlp.up),
            down=None if mlp is None else self._fused(mlp.down),
            rope=0 if c.layer_rope(index) is c.rope else 1,
            q_norm=self._optional_norm(spec.q_norm, q_size),
            k_norm=self._optional_norm(spec.k_norm, k_size),
            attn_out_norm=self._optional_norm(spec.attn_out_norm, c.hidden),
            mlp_out_norm=self._optional_norm(spec.mlp_out_norm, c.hidden),
            k_scale=self._first_scale(spec.k_scales),
            v_scale=self._first_scale(spec.v_scales),
            mixture=None if spec.mixture is None else self._mixture(spec.mixture),
        )

    def _mixture(self, spec: MixtureSpec) -> Mixture:
        count, width, hidden = spec.experts.count, spec.experts.width, self._config.hidden
        gate_up, down = self._empty(count, 2 * width, hidden), self._empty(count, hidden, width)
        for index in range(count):
            expert = spec.expert(index)
            self._add((expert.gate, expert.up), torch.split(gate_up[index], width), "weight")
            self._add((expert.down,), (down[index],), "weight")
        router, shared = spec.router, None
        if spec.shared is not None:
            shared = SharedExpert(
                self._fused(spec.shared.gate, spec.shared.up).weight,
                self._fused(spec.shared.down).weight,
                self._scoring(spec.shared_score, 1, hidden),
            )
        weight = self._scoring(router.weight, count, hidden)
        assert weight is not None
        return Mixture(
            router=weight,
            router_bias=self._scoring(f"{router.name}.bias" if router.bias else None, count),
            correction=self._scoring(spec.correction, count),
            gate_up=gate_up,
            down=down,
            shared=shared,
            counts=torch.zeros(count, dtype=torch.int64, device=self._device),
        )

    def _scoring(self, name: str | None, *shape: int) -> torch.Tensor | None:
        """What decides which experts are used, if there is such a tensor: float32."""
        if name is None:
            return None
        target = self._filled(name, *shape, dtype=torch.float32)
        self.scoring.append((name, target))
        return target

    def _first_scale(self, names: tuple[str, ...]) -> float:
        return next((self._scales[name] for name in names if name in self._scales), 1.0)

    def _rope(self, rope: Rope, divisors: np.ndarray | None) -> RopeTable:
        frequencies = rope_frequencies(rope, self._config.rope_dims(rope))
        if divisors is not None:
            frequencies = frequencies / divisors
        axes = torch.tensor(rope.axes(), device=self._device) if rope.sections else None
        return RopeTable(torch.from_numpy(frequencies).to(self._device), rope.amplitude, axes)

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
            name, first = f"{spec.name}.{kind}", spec.first
            self.parts.append(_Part(name, target, first, spec.heads, part=spec.part))

    def _optional_norm(self, name: str | None, size: int) -> torch.Tensor | None:
        return None if name is None else self._norm(name, size)

    def _norm(self, name: str, size: int) -> torch.Tensor:
        """In float32 if the sum with the offset may not fit into the model's dtype."""
        c = self._config
        target = self._empty(size, dtype=torch.float32 if c.sandwich_norms else None)
        self.parts.append(_Part(name, target, offset=c.norm_offset))
        return target

    def _matrix(self, name: str) -> torch.Tensor:
        return self._filled(name, self._config.vocab_size, self._config.hidden)

    def _filled(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor that all of the checkpoint's tensor `name` fills."""
        target = self._empty(*shape, dtype=dtype)
        self.parts.append(_Part(name, target))
        return target

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self._dtype, device=self._device)


def _scale(checkpoint: Checkpoint, name: str) -> float:
    """A scale of an eight-bit KV cache: what the numbers in the cache are multiplied by."""
    value = checkpoint.read_scalar(name)
    if not 0 < value < float("inf"):
        raise ConfigError(f"{checkpoint.path}: tensor {name} is {value}, which is no scale")
    return value


def _jobs(checkpoint: Checkpoint, parts: list[_Part]) -> Iterator[_Job]:
    """What to read for every part: large ones in several jobs."""
    for part in parts:
        target, total, first = part.target, len(part.target), part.first
        if part.heads and checkpoint.interleaved_rope:
            view = _interleaved_view(target, part.heads)
            yield _Job(part.name, first, first + total, view, part.offset)
            continue
        # A power of two, so that quantised rows regroup evenly (see checkpoint._BLOCKS_PER_ROW).
        rows = 1 << max(0, (_JOB_ELEMENTS // target[0].numel()).bit_length() - 1)
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            rows_here = target[start:stop]
            yield _Job(part.name, first + start, first + stop, rows_here, part.offset, part.part)


def _interleaved_view(target: torch.Tensor, heads: int) -> torch.Tensor:
    """A view of q/k rows in llama.cpp's order: [heads, head_dim/2, 2, ...].

    llama.cpp stores the pair (i, i + head_dim/2) of a head side by side; we rotate halves.
    """
    return target.view(heads, 2, -1, *target.shape[1:]).transpose(1, 2)


def _fill(checkpoint: Checkpoint, job: _Job) -> None:
    source = checkpoint.read_rows(job.name, job.start, job.stop, job.part)
    job.target.copy_(source.view(job.target.shape))
    if job.offset:
        job.target.add_(job.offset)
