"""The shape of a model, read from a Hugging Face config.json as transformers 4 or 5 writes it.

Called by the checkpoint reader. `families` has a reader for each architecture.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from scheduler_proc.models.config import DecoderConfig, NotComputed, convert, naming
from scheduler_proc.models.families.gemma import read_gemma2, read_gemma3
from scheduler_proc.models.families.granite import read_granite, read_granite_moe
from scheduler_proc.models.families.llama import read_llama, read_mistral
from scheduler_proc.models.families.mixtral import read_mixtral
from scheduler_proc.models.families.olmoe import read_olmoe
from scheduler_proc.models.families.phi3 import read_phi3
from scheduler_proc.models.families.qwen import (
    read_qwen2,
    read_qwen2_5_vl,
    read_qwen3,
    read_qwen3_vl,
)
from scheduler_proc.models.families.qwen_moe import read_qwen2_moe, read_qwen3_moe
from srt.files.model_files import require_file
from srt.files.text_config import text_config
from srt.wire.errors import ConfigError

_Reader = Callable[[Mapping[str, Any], Path], DecoderConfig]

ARCHITECTURES: dict[str, _Reader] = {
    "LlamaForCausalLM": read_llama,
    "MistralForCausalLM": read_mistral,
    "MinistralForCausalLM": read_mistral,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
    "Phi3ForCausalLM": read_phi3,
    "Gemma2ForCausalLM": read_gemma2,
    "Gemma3ForCausalLM": read_gemma3,
    "GraniteForCausalLM": read_granite,
    "MixtralForCausalLM": read_mixtral,
    "Qwen2MoeForCausalLM": read_qwen2_moe,
    "Qwen3MoeForCausalLM": read_qwen3_moe,
    "OlmoeForCausalLM": read_olmoe,
    "GraniteMoeForCausalLM": read_granite_moe,
}
# Where a file names no architecture, and the text of models that see.
_MODEL_TYPES = {
    "llama": read_llama,
    "mistral": read_mistral,
    "ministral": read_mistral,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
    "phi3": read_phi3,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3,
    "granite": read_granite,
    "mixtral": read_mixtral,
    "qwen2_moe": read_qwen2_moe,
    "qwen3_moe": read_qwen3_moe,
    "olmoe": read_olmoe,
    "granitemoe": read_granite_moe,
    "qwen2_5_vl_text": read_qwen2_5_vl,
    "qwen3_vl_text": read_qwen3_vl,
}


class _Kind(Struct):
    architectures: list[str] | None = None
    model_type: str | None = None


def config_from_json(path: Path) -> DecoderConfig:
    """Read config.json at `path`. Raises NotComputed naming what is not supported, and ConfigError
    for a value that is wrong."""
    try:
        require_file(path)
        found = text_config(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error})") from error
    with naming(path):
        return _reader(found, path)(found, path)


def _reader(found: Mapping[str, Any], path: Path) -> _Reader:
    kind = convert(found, _Kind, path)
    architectures = kind.architectures or []
    for name in architectures:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not architectures and kind.model_type in _MODEL_TYPES:
        return _MODEL_TYPES[kind.model_type]
    raise NotComputed(
        f"{path}: architecture {architectures or kind.model_type!r} is not supported "
        f"({', '.join(ARCHITECTURES)} are)"
    )
