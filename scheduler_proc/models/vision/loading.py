"""Loads the tower and projector of a checkpoint: transformers' model without its decoder.

The decoder's tensors are not read: its configuration is cut down to no layers, and the rest of the
checkpoint belongs to nothing. No code of the directory is run, no pickle is opened.
"""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers

from scheduler_proc.models.transformers_model.loading import check_files
from srt.wire.errors import ConfigError

_DECODER = ("language_model.", "text_model.", "lm_head.")


def load_tower(path: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The model, with `get_image_features`, of the checkpoint in `path`.

    Raises ConfigError for a file that cannot be read and a tensor that is missing.
    """
    library: Any = transformers
    check_files(path, config)
    without = copy.deepcopy(config)
    text = without.get_text_config()
    text.num_hidden_layers = 0
    text.vocab_size = 1
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = []
    for each in (without, text):
        each.pad_token_id = None
    library.utils.logging.disable_progress_bar()
    verbosity = library.utils.logging.get_verbosity()
    library.utils.logging.set_verbosity_error()  # it would list what is left out
    try:
        model, info = library.AutoModelForImageTextToText.from_pretrained(
            path,
            config=without,
            dtype=dtype,
            attn_implementation="sdpa",  # config.json could name a kernel of somebody else's
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: the vision tower cannot be loaded: {error}") from error
    finally:
        library.utils.logging.set_verbosity(verbosity)
    for kind in ("missing_keys", "mismatched_keys"):
        names = (key if isinstance(key, str) else key[0] for key in info[kind])
        wrong = sorted(name for name in names if not any(part in name for part in _DECODER))
        if wrong:
            raise ConfigError(f"{path}: tensor {wrong[0]} is missing or of another shape")
    inner = model.model
    inner.language_model = None
    return inner.eval().to(device)
