"""A causal language model of transformers, as the torch executor runs models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from scheduler_proc.attention.base import LayerKind
from scheduler_proc.models.decoder import KVPool, TokenLayout
from scheduler_proc.models.transformers_model.attention import (
    CausalMask,
    PoolForward,
)
from scheduler_proc.models.transformers_model.checks import MAX_TOKENS, check_and_split
from scheduler_proc.models.transformers_model.loading import (
    context_len,
    load_causal,
    read_config,
    refusal,
)
from scheduler_proc.models.transformers_model.split import SplitModel
from srt.wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """A model in two parts and the attention calls that it makes; a TorchModel.

    `name` is its class in transformers.
    """

    name: str
    split: SplitModel
    layer_kinds: list[LayerKind]
    vocab_size: int
    context_len: int
    dtype: torch.dtype
    device: torch.device

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        return self.split.num_bytes

    def new_pool(self, num_slots: int, kv_dtype: torch.dtype | None = None) -> KVPool:
        """K and V of `num_slots` tokens, of the weights' type if no other is given."""
        return KVPool(self.layer_kinds, num_slots, kv_dtype or self.dtype, self.device)

    def forward(self, input_ids: torch.Tensor, layout: TokenLayout, pool: KVPool) -> torch.Tensor:
        """input_ids [T] int64 -> last hidden states [T, hidden]; writes the pool."""
        step = PoolForward(self.layer_kinds, layout, pool, self.dtype)
        hidden = self.split.hidden(input_ids, layout.positions, step)
        step.check_finished()
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] (from `forward`) -> logits [N, vocab_size] float32."""
        return self.split.logits(hidden)


def load_transformers_model(
    path: Path, device: torch.device, choose_dtype: Callable[[str | None], torch.dtype]
) -> TransformersModel:
    """The model in directory `path`; `choose_dtype` gets the checkpoint's own type or None.

    Raises ConfigError for files that do not fit and for a model that ragged batches do not suit.
    """
    config = read_config(path)
    stored = None if config.dtype is None else str(config.dtype).removeprefix("torch.")
    dtype = choose_dtype(stored)
    causal = load_causal(path, config, dtype, device)
    vocab_size, length = int(config.vocab_size), context_len(path, config)
    name = type(causal).__name__
    try:
        with torch.inference_mode():
            split, kinds = check_and_split(causal, vocab_size, length or MAX_TOKENS)
    except Exception as error:  # a class may fail in any way on attention that is not its own
        raise ConfigError(refusal(name, _reason(error))) from error
    if length is None:
        raise ConfigError(f"{path / 'config.json'}: max_position_embeddings is missing")
    return TransformersModel(name, split, kinds, vocab_size, length, dtype, device)


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if CausalMask.__name__ in str(error):
        return "it computes with its attention mask, as for ALiBi or sparse attention"
    return f"it cannot do with our attention ({type(error).__name__}: {error})"
