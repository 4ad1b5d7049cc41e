"""Loads Llama weights from a checkpoint into fused tensors of one dtype on one device.

Called by the torch executor at start-up. Every tensor of the model is matched by name and shape
before anything is read: a missing, surplus or ill-shaped one is a ConfigError that names it.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch

from scheduler_proc.models.checkpoint import ROPE_DIVISORS, Checkpoint
from scheduler_proc.models.config import LlamaConfig
from scheduler_proc.models.llama import Linear, LlamaLayer, LlamaWeights
from scheduler_proc.models.rope import rope_frequencies
from srt.errors import ConfigError

# Elements that one job reads: small enough to spread over threads and to bound scratch memory.
_JOB_ELEMENTS = 1 << 21
# Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


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
    config = checkpoint.config
    plan = _WeightPlan(config, torch.device(device), dtype)
    weights = plan.model()
    _check(checkpoint, plan.parts)
    with ThreadPoolExecutor(num_threads or min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(partial(_fill, checkpoint), _jobs(checkpoint, plan.parts)):
            pass
    divisors = checkpoint.rope_divisors()
    if divisors is None:
        return weights
    _require_shape(checkpoint, ROPE_DIVISORS, tuple(divisors.shape), (config.head_dim // 2,))
    return weights._replace(rope_frequencies=weights.rope_frequencies / divisors.to(device))


class _WeightPlan:
    """Allocates the model's tensors and lists which checkpoint tensor fills which part."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.parts: list[_Part] = []
        self._config = config
        self._device = device
        self._dtype = dtype

    def model(self) -> LlamaWeights:
        c = self._config
        embed = self._whole("model.embed_tokens.weight", c.vocab_size, c.hidden)
        head = embed
        if not c.tie_embeddings:
            head = self._whole("lm_head.weight", c.vocab_size, c.hidden)
        layers = [self._layer(f"model.layers.{i}") for i in range(c.layers)]
        norm = self._whole("model.norm.weight", c.hidden)
        return LlamaWeights(embed, layers, norm, head, rope_frequencies(c).to(self._device))

    def _layer(self, prefix: str) -> LlamaLayer:
        c = self._config
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q = (f"{attention}.q_proj", c.q_size, c.heads)
        k = (f"{attention}.k_proj", c.kv_size, c.kv_heads)
        v = (f"{attention}.v_proj", c.kv_size, 0)
        gate_up = [(f"{mlp}.{name}", c.intermediate, 0) for name in ("gate_proj", "up_proj")]
        return LlamaLayer(
            input_norm=self._whole(f"{prefix}.input_layernorm.weight", c.hidden),
            qkv=self._fused([q, k, v], c.hidden, c.attention_bias),
            o=self._fused([(f"{attention}.o_proj", c.hidden, 0)], c.q_size, c.attention_bias),
            post_norm=self._whole(f"{prefix}.post_attention_layernorm.weight", c.hidden),
            gate_up=self._fused(gate_up, c.hidden, c.mlp_bias),
            down=self._fused([(f"{mlp}.down_proj", c.hidden, 0)], c.intermediate, c.mlp_bias),
        )

    def _fused(self, pieces: list[tuple[str, int, int]], inputs: int, bias: bool) -> Linear:
        """One Linear whose outputs are the (name, rows, rope heads) pieces in turn."""
        rows = [piece[1] for piece in pieces]
        weight = self._empty(sum(rows), inputs)
        offsets = self._empty(sum(rows)) if bias else None
        self._add(pieces, torch.split(weight, rows), "weight")
        if offsets is not None:
            self._add(pieces, torch.split(offsets, rows), "bias")
        return Linear(weight, offsets)

    def _add(
        self, pieces: list[tuple[str, int, int]], targets: tuple[torch.Tensor, ...], kind: str
    ) -> None:
        for (name, _, heads), target in zip(pieces, targets, strict=True):
            self.parts.append(_Part(f"{name}.{kind}", target, heads))

    def _whole(self, name: str, *shape: int) -> torch.Tensor:
        target = self._empty(*shape)
        self.parts.append(_Part(name, target))
        return target

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def _check(checkpoint: Checkpoint, parts: list[_Part]) -> None:
    present = set(checkpoint.names())
    wanted = {part.name for part in parts}
    for name in sorted(wanted - present):
        raise ConfigError(f"{checkpoint.path}: tensor {name} is missing")
    if checkpoint.config.tie_embeddings:
        present.discard("lm_head.weight")
    for name in sorted(present - wanted):
        if not _DERIVED.fullmatch(name):
            raise ConfigError(f"{checkpoint.path}: tensor {name} does not belong to this model")
    for part in parts:
        found = checkpoint.shape(part.name)
        _require_shape(checkpoint, part.name, found, tuple(part.target.shape))


def _require_shape(
    checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if found != wanted:
        raise ConfigError(
            f"{checkpoint.path}: tensor {name} has shape {list(found)}, expected {list(wanted)}"
        )


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
