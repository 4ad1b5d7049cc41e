"""Tiny checkpoints of models that see, with random weights: everything that a directory has.

Their tokenizer has a token for each byte, then the family's special tokens.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")


TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "vocab_size": 384,
    "initializer_range": 0.2,  # of 0.02, all logits would be nearly the same
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "initializer_range": 0.2,
}
_TURNS = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
_NORM = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
_PINPOINTS = [[56, 112], [112, 56], [112, 112]]
_TILES = [f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)]
_SAMPLING = {"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 112}}
_TEMPLATE = """{%- for message in messages %}{{ '<|' + message.role + '|>' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{ 'IMAGE' }}{% elif part.type == 'video' %}{{ 'VIDEO' }}
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


class Family(NamedTuple):
    """How a checkpoint is made. `image` and `video` are what its chat template writes for one."""

    model_class: str
    config: Callable[[dict[str, int]], Any]  # from the ids of the special tokens
    preprocessor: dict[str, Any]
    special: tuple[str, ...]
    image: str
    video: str = ""
    processor: dict[str, Any] | None = None


def _config(name: str, **values: Any) -> Any:
    return getattr(transformers, name)(**values)


def _llava(name: str, text: str, tower: str, **more: Any) -> Callable[[dict[str, int]], Any]:
    def make(ids: dict[str, int]) -> Any:
        kinds = [kind for kind in ("image", "video") if f"<{kind}>" in ids]
        return _config(
            f"{name}Config",
            text_config=_config(f"{text}Config", **TEXT),
            vision_config=_config(f"{tower}VisionConfig", **TOWER),
            **{f"{kind}_token_index": ids[f"<{kind}>"] for kind in kinds},
            **more,
        )

    return make


def _idefics3(name: str) -> Callable[[dict[str, int]], Any]:
    def make(ids: dict[str, int]) -> Any:
        return _config(
            f"{name}Config",
            text_config=_config("LlamaConfig", **TEXT),
            vision_config=_config(f"{name}VisionConfig", **TOWER),
            image_token_id=ids["<image>"],
            scale_factor=2,
        )

    return make


def _gemma3(ids: dict[str, int]) -> Any:
    text = TEXT | {"sliding_window": 24, "query_pre_attn_scalar": 16}
    return _config(
        "Gemma3Config",
        text_config=_config(
            "Gemma3TextConfig", layer_types=["sliding_attention", "full_attention"], **text
        ),
        vision_config=_config("SiglipVisionConfig", vision_use_head=False, **TOWER),
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )


def _qwen(name: str, sections: list[int], tower: dict[str, Any]) -> Callable[[dict[str, int]], Any]:
    def make(ids: dict[str, int]) -> Any:
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
        return _config(
            f"{name}Config",
            text_config=TEXT | {"rope_parameters": rope},
            vision_config=tower | {"out_hidden_size": TEXT["hidden_size"]},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
        )

    return make


_QWEN2_5_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
    "tokens_per_second": 2,
    "initializer_range": 0.2,
}
_QWEN3_TOWER = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 16,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.2,
}
_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
_IDEFICS3_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", *_TILES)


def _squares(name: str, **values: Any) -> dict[str, Any]:
    return {"image_processor_type": name, **_NORM, **values}


def _of_idefics3(name: str, video: str = "", **settings: Any) -> Family:
    return Family(
        f"{name}ForConditionalGeneration",
        _idefics3(name),
        _squares(
            f"{name}ImageProcessor",
            size={"longest_edge": 112},
            max_image_size={"longest_edge": 56},
            **settings,
        ),
        _IDEFICS3_TOKENS,
        "<image>",
        video,
        processor={"image_seq_len": 4},
    )


_CLIP = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
_CROPPED = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}


def _of_llava(name: str, text: str, processor: str, **grid: Any) -> Family:
    return Family(
        f"{name}ForConditionalGeneration",
        _llava(name, text, "CLIP", image_seq_length=16, **grid),
        _squares(f"{processor}ImageProcessor", **_CROPPED, **grid),
        ("<image>",),
        "<image>",
        processor=_CLIP,
    )


def _of_qwen(
    name: str, sections: list[int], tower: dict[str, Any], least: int, patch: int
) -> Family:
    return Family(
        f"{name}ForConditionalGeneration",
        _qwen(name, sections, tower),
        _squares(
            "Qwen2VLImageProcessor",
            size={"shortest_edge": least**2, "longest_edge": (2 * patch) ** 2 * 36},
            patch_size=patch,
            merge_size=2,
            temporal_patch_size=2,
        ),
        _QWEN_TOKENS,
        _QWEN_IMAGE,
        _QWEN_VIDEO,
    )


FAMILIES: dict[str, Family] = {
    "llava": _of_llava("Llava", "Llama", "CLIP"),
    "llava_next": _of_llava("LlavaNext", "Mistral", "LlavaNext", image_grid_pinpoints=_PINPOINTS),
    "llava_onevision": Family(
        "LlavaOnevisionForConditionalGeneration",
        _llava("LlavaOnevision", "Qwen2", "Siglip", image_grid_pinpoints=_PINPOINTS),
        _squares(
            "LlavaOnevisionImageProcessor",
            size={"height": 56, "width": 56},
            image_grid_pinpoints=_PINPOINTS,
        ),
        ("<image>", "<video>"),
        "<image>",
        "<video>",
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "idefics3": _of_idefics3("Idefics3"),
    "smolvlm": _of_idefics3("SmolVLM", "<video>", video_sampling=_SAMPLING),
    "gemma3": Family(
        "Gemma3ForConditionalGeneration",
        _gemma3,
        _squares("Gemma3ImageProcessor", size={"height": 56, "width": 56}),
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        "<start_of_image>",
        processor={"image_seq_length": 4},
    ),
    "qwen2_5_vl": _of_qwen("Qwen2_5_VL", [2, 3, 3], _QWEN2_5_TOWER, 56, 14),
    "qwen3_vl": _of_qwen("Qwen3VL", [4, 2, 2], _QWEN3_TOWER, 64, 16),
}


def make_vision_checkpoint(family: str, path: Path, seed: int = 0) -> Any:
    """Write a checkpoint of a family to the directory `path`; returns the model of transformers."""
    made = FAMILIES[family]
    ids = _write_tokenizer(path, made)
    config = made.config(ids)
    # What is padding for the defaults would be an ordinary token here.
    for each in (config, config.get_text_config()):
        each.pad_token_id = each.bos_token_id = None
        each.eos_token_id = ids["<|end|>"]
    torch.manual_seed(seed)
    model = getattr(transformers, made.model_class)(config).eval()
    with torch.no_grad():  # norms and biases are ones and zeros otherwise
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.generation_config.eos_token_id = ids["<|end|>"]
    model.save_pretrained(path)
    _write(path / "preprocessor_config.json", made.preprocessor)
    if made.processor:
        _write(path / "processor_config.json", made.processor)
    return model


def _write_tokenizer(path: Path, family: Family) -> dict[str, int]:
    """Returns the ids of the special tokens."""
    path.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [*_TURNS, *family.special]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    tokenizer.save(str(path / "tokenizer.json"))
    template = _TEMPLATE.replace("IMAGE", family.image).replace("VIDEO", family.video)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "model_max_length": TEXT["max_position_embeddings"],
        "chat_template": template,
    }
    names = {"image_token": family.special[0], "video_token": family.special[-1]}
    if "qwen" in family.model_class.lower():
        names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    if "Gemma" in family.model_class:
        names = {"image_token": "<image_soft_token>"}
        names |= {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    if "Idefics3" in family.model_class or "SmolVLM" in family.model_class:
        names = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
        names |= {"global_image_token": "<global-img>", "end_of_utterance_token": "<|end|>"}
    _write(path / "tokenizer_config.json", config | {"extra_special_tokens": names})
    return {name: tokenizer.get_vocab()[name] for name in special}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2))
