"""Reads a model directory as transformers does: its configuration, then its weights.

No code of the directory is run, no pickle is opened, nothing is fetched. What transformers would
let pass (tensors that are missing or left over) is an error here.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from scheduler_proc.models.checkpoint import safetensors_files
from scheduler_proc.models.transformers_model.attention import NAME
from srt.files.context import hf_context_len
from srt.wire.errors import ConfigError

# What tensors of old checkpoints end with that transformers computes itself.
_DERIVED = ("inv_freq", "masked_bias")


def read_config(path: Path) -> Any:
    """The configuration of the model in directory `path`.

    Raises ConfigError for what is not a causal language model that transformers itself has, and
    for weights that are quantised, adapters, or not in safetensors.
    """
    file = path / "config.json"
    try:
        config = transformers.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each family's class checks its keys in its own way
        raise ConfigError(f"{file}: {_in_short(error)}") from error
    _check_architecture(config, file)
    check_files(path, config)
    return config


def check_files(path: Path, config: Any) -> None:
    """Raise ConfigError for weights that are quantised, adapters, or not in safetensors."""
    if getattr(config, "quantization_config", None) is not None:
        file = path / "config.json"
        raise ConfigError(f"{file}: quantised safetensors are not supported (use GGUF)")
    if (path / "adapter_config.json").is_file():
        raise ConfigError(f"{path}: adapters are not supported (adapter_config.json)")
    safetensors_files(path)  # transformers would follow an index anywhere
    if not any(path.glob("*.safetensors")):
        raise ConfigError(f"{path}: no .safetensors file (weights in pickles are never read)")


def _check_architecture(config: Any, file: Path) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"{file}: encoder-decoder models are not supported ({config.model_type})")
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    known = (classes,) if isinstance(classes, str) else classes
    name = architecture(config) if config.architectures or not known else known[0]
    if name not in known or name.endswith("ForConditionalGeneration"):
        raise ConfigError(f"{file}: {name} is not a causal language model of text in transformers")


def refusal(name: str, reason: str) -> str:
    """The message that the class `name` of transformers cannot be used, and why."""
    return f"transformers' {name} cannot be served: {reason}"


def architecture(config: Any) -> str:
    """What the file calls the model's class, else its type."""
    return str(next(iter(config.architectures or ()), config.model_type))


def context_len(path: Path, config: Any) -> int | None:
    """Positions that can be computed, as the tokenizer process counts them; None: no bound."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        return None
    return hf_context_len(json.loads((path / "config.json").read_text(encoding="utf-8")), length)


def load_causal(path: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The model with its weights on `device`; it calls our attention. Raises ConfigError.

    transformers reads tensors straight to a device only with accelerate; without it, the whole
    model goes through the host's memory.
    """
    library: Any = transformers
    is_direct = device.type != "cpu" and library.utils.is_accelerate_available()
    library.utils.logging.disable_progress_bar()
    try:
        causal, info = library.AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **({"device_map": {"": device}} if is_direct else {}),
        )
    except KeyError as error:
        if error.args != (NAME,):
            raise
        raise ConfigError(
            refusal(architecture(config), "it has no attention but its own")
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: {_in_short(error)}") from error
    if info["missing_keys"]:
        raise ConfigError(f"{path}: tensor {min(info['missing_keys'])} is missing")
    surplus = [key for key in info["unexpected_keys"] if not key.endswith(_DERIVED)]
    if surplus:
        raise ConfigError(f"{path}: tensor {min(surplus)} does not belong to this model")
    return causal.eval().to(device)


def _in_short(error: Exception) -> str:
    """What transformers says, on one line; it would explain how to run a model's code."""
    if "trust_remote_code" in str(error):
        return "the model needs code of its own, which is never run"
    return textwrap.shorten(str(error), 300)
