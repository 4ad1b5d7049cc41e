"""Random-weight models of a real one's shape, made on the device, in our torch executor."""

import gc
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from scheduler_proc import executor as executors
from scheduler_proc.executor import ExecutorOptions, make_executor, torch_executor
from scheduler_proc.executor.torch_executor import TorchExecutor
from scheduler_proc.models.config import DecoderConfig, Rope
from scheduler_proc.models.decoder import (
    Decoder,
    DecoderLayer,
    DecoderWeights,
    Linear,
    RopeTable,
)
from scheduler_proc.models.rope import rope_frequencies
from srt.files.model_files import ModelFiles

LLAMA_3_8B = DecoderConfig(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab_size=128256,
    context_len=16384,
    rms_eps=1e-5,
    rope=Rope(theta=5e5),
)
TOY = DecoderConfig(
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=64,
    intermediate=96,
    vocab_size=320,
    context_len=256,
    rms_eps=1e-5,
)


def random_decoder(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The model of a shape, with untied embeddings: weights such that states neither grow nor
    vanish."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        weight = torch.empty((rows, columns), dtype=dtype, device=device)
        return weight.normal_(std=columns**-0.5)

    def norm() -> torch.Tensor:
        return torch.ones(config.hidden, dtype=dtype, device=device)

    layers = [
        DecoderLayer(
            input_norm=norm(),
            qkv=Linear(matrix(config.q_size + 2 * config.kv_size, config.hidden)),
            o=Linear(matrix(config.hidden, config.q_size)),
            mlp_norm=norm(),
            gate_up=Linear(matrix(2 * config.intermediate, config.hidden)),
            down=Linear(matrix(config.hidden, config.intermediate)),
        )
        for _ in range(config.layers)
    ]
    embed, head = (matrix(config.vocab_size, config.hidden) for _ in range(2))
    frequencies = rope_frequencies(config.rope, config.rope_dims(config.rope))
    rope = RopeTable(torch.from_numpy(frequencies).to(device), config.rope.amplitude)
    return Decoder(config, DecoderWeights(embed, layers, norm(), head, (rope,)))


def executor_of(model: Decoder, device: torch.device, slots: int, **options: Any) -> TorchExecutor:
    """An executor of this model with a pool of `slots` random keys and values; `options` as those
    of ExecutorOptions."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    files = ModelFiles("random", "hf", Path("random"))
    # Of a model without files there is no tower to be found.
    options |= {"max_total_tokens": slots, "device": str(device), "sees": False}
    chosen = ExecutorOptions(**options)
    with (
        mock.patch.object(executors, "_check_model"),
        mock.patch.object(torch_executor, "load_model", lambda *_, **__: model),
    ):
        executor = make_executor("torch", files, chosen)
    assert isinstance(executor, TorchExecutor)
    for pool in (*executor._pool.k, *executor._pool.v):
        _fill(pool)
    return executor


def _fill(pool: torch.Tensor) -> None:
    """Random numbers, a part at a time where the type has no generator of its own."""
    if pool.dtype.itemsize > 1:
        pool.normal_()
        return
    for part in torch.split(pool, 1 << 14):
        part.copy_(torch.randn(part.shape, dtype=torch.bfloat16, device=pool.device))


def linear_parameters(config: DecoderConfig) -> int:
    """Of the layers' products, which every token takes part in."""
    projected = config.q_size + 2 * config.kv_size + config.q_size + 3 * config.intermediate
    return config.layers * config.hidden * projected


def step_bytes(config: DecoderConfig, slots: int, weight_size: int, slot_bytes: float) -> float:
    """What a decode cannot do without reading: the layers' weights, the head, and the slots."""
    weights = linear_parameters(config) + config.hidden * config.vocab_size
    return weights * weight_size + slots * slot_bytes


def prefill_flops(config: DecoderConfig, tokens: int) -> float:
    """Floating-point operations of a prompt of this many tokens that samples once."""
    pairs = tokens * (tokens + 1) / 2
    linear = 2.0 * tokens * linear_parameters(config) + 2.0 * config.hidden * config.vocab_size
    return linear + 4.0 * config.layers * pairs * config.q_size
