"""Directories with the files that processors are read from: settings and a tokenizer of bytes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from srt.files.model_files import ModelFiles
from tests.running.late import late
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.load import load_processor

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
SPECIAL = (
    "<image>", "<video>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<|image_pad|>", "<|video_pad|>",
    "<|vision_start|>", "<|vision_end|>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip


def token_id(text: str) -> int:
    """The id of a special token."""
    return 256 + SPECIAL.index(text)


def make_tokenizer(**named: str) -> "transformers.PreTrainedTokenizerFast":
    """A tokenizer of single bytes and `SPECIAL`; `named` are special tokens with names."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, extra_special_tokens=named)


def write(path: Path, **files: dict[str, Any]) -> ModelFiles:
    """Write a model directory of JSON files, with a tokenizer."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(make_tokenizer().backend_tokenizer.to_str())
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return ModelFiles(path.name, "hf", path)


def load(path: Path, **files: dict[str, Any]) -> MediaProcessor:
    """The processor of a model directory with these files."""
    processor = load_processor(write(path, **files))
    assert processor is not None
    return processor


def config(family: str, **more: Any) -> dict[str, Any]:
    """config.json of a family, by the part of its architecture's name before "For"."""
    return {"architectures": [f"{family}ForConditionalGeneration"], "vision_config": {}, **more}
