"""Chooses what computes a model on torch: our own decoder, or a class of transformers."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from scheduler_proc.attention.base import LayerKind
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.config import NotComputed
from scheduler_proc.models.decoder import Decoder, TokenLayout
from scheduler_proc.models.json_config import config_from_json
from scheduler_proc.models.loader import load_weights
from scheduler_proc.models.vision.choice import vision_family
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    from scheduler_proc.models.transformers_model.model import TransformersModel

log = logging.getLogger(__name__)

MODEL_IMPLS = ("auto", "srt", "transformers")

# The type to compute in, given the checkpoint's own ("float16", ...) or None.
ChooseDtype = Callable[[str | None], torch.dtype]


class TorchModel(Protocol):
    """What the torch executor runs. Every call of `forward` gets a pool that the model made."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_len(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the weights."""
        ...

    @property
    def layer_kinds(self) -> list[LayerKind]:
        """The attention of each layer."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    def new_pool(self, num_slots: int, kv_dtype: torch.dtype | None = None) -> Any:
        """K and V of `num_slots` tokens, of the weights' type if no other is given; it has
        `num_bytes`, and `k` and `v` by layer."""
        ...

    def forward(self, input_ids: torch.Tensor, layout: TokenLayout, pool: Any) -> torch.Tensor:
        """input_ids [T] int64 -> last hidden states [T, hidden]; writes the pool."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] (from `forward`) -> logits [N, vocab_size] float32."""
        ...


def load_model(
    files: ModelFiles, impl: str, device: torch.device, choose_dtype: ChooseDtype
) -> TorchModel:
    """The model at `files`, computed by `impl` (one of MODEL_IMPLS).

    "auto" is our own decoder, or transformers, which is logged, for an architecture or an option
    that it does not compute: a value that is wrong is wrong for both.
    Raises ConfigError for an unknown `impl` and for a model that it cannot run.
    """
    if impl not in MODEL_IMPLS:
        raise ConfigError(f"--model-impl {impl!r} is not one of {', '.join(MODEL_IMPLS)}")
    if impl == "transformers":
        if vision_family(files) is not None:
            raise ConfigError(
                "--model-impl transformers: the text of a model that sees is computed by our own "
                "decoder alone"
            )
        return _of_transformers(files, device, choose_dtype)
    refusal = _refusal(files) if impl == "auto" else None
    if refusal is None:
        checkpoint = open_checkpoint(files)
        dtype = choose_dtype(checkpoint.config.dtype)
        return Decoder(checkpoint.config, load_weights(checkpoint, device=device, dtype=dtype))
    try:
        model = _of_transformers(files, device, choose_dtype)
    except ConfigError as error:
        raise ConfigError(f"{refusal}; {error}") from error
    log.warning("transformers' %s computes the model", model.name)
    return model


def _refusal(files: ModelFiles) -> NotComputed | None:
    """Why our own decoder does not compute what a model directory describes, or None if it does.
    Raises ConfigError."""
    if files.kind == "hf":
        try:
            config_from_json(files.path / "config.json")
        except NotComputed as error:
            return error
    return None


def _of_transformers(
    files: ModelFiles, device: torch.device, choose_dtype: ChooseDtype
) -> "TransformersModel":
    if files.kind != "hf":
        raise ConfigError("--model-impl transformers: needs a model directory, not a GGUF file")
    try:
        from scheduler_proc.models.transformers_model.model import load_transformers_model
    except ImportError as error:
        raise ConfigError(
            f"--model-impl transformers: {error} (pip install 'srt-lang[transformers]')"
        ) from error
    return load_transformers_model(files.path, device, choose_dtype)
