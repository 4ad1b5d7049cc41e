"""The models that see, by their architectures. Imports Pillow, as their modules do."""

from collections.abc import Callable
from pathlib import Path

from srt.wire.errors import ConfigError
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.families.gemma3 import Gemma3
from tokenizer_proc.media.families.idefics3 import Idefics3
from tokenizer_proc.media.families.llava import Llava, LlavaNext
from tokenizer_proc.media.families.llava_onevision import LlavaOnevision
from tokenizer_proc.media.families.qwen_vl import Qwen3VL, Qwen25VL
from tokenizer_proc.media.families.smolvlm import SmolVLM
from tokenizer_proc.media.settings import Checkpoint

FAMILIES: dict[str, Callable[[Checkpoint], MediaProcessor]] = {
    "LlavaForConditionalGeneration": Llava,
    "LlavaNextForConditionalGeneration": LlavaNext,
    "LlavaOnevisionForConditionalGeneration": LlavaOnevision,
    "Idefics3ForConditionalGeneration": Idefics3,
    "SmolVLMForConditionalGeneration": SmolVLM,
    "Gemma3ForConditionalGeneration": Gemma3,
    "Qwen2_5_VLForConditionalGeneration": Qwen25VL,
    "Qwen3VLForConditionalGeneration": Qwen3VL,
}


def processor_of(path: Path, text_path: Path) -> MediaProcessor | None:
    """How the model in the directory `path`, whose tokenizer is read from the file `text_path`,
    turns files into items; None if it has no vision.

    Raises ConfigError if it has and we do not know how, or a setting is not supported.
    """
    checkpoint = Checkpoint(path, text_path)
    architectures = checkpoint.config.get("architectures", list[str], [])
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name](checkpoint)
    if checkpoint.config.has("vision_config"):
        raise ConfigError(
            f"{path}: vision of {architectures} is not supported ({', '.join(FAMILIES)} are)"
        )
    return None
