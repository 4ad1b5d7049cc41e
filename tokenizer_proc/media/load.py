"""Chooses how a model sees, from its files. What only models that see need is imported for them."""

import json
from pathlib import Path

from srt.files.hf import tokenizer_path
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tokenizer_proc.media.base import MediaProcessor


def load_processor(files: ModelFiles) -> MediaProcessor | None:
    """How the model turns files into items; None if it has no vision.

    Raises ConfigError if it has and we do not know how, a setting is not supported, or what reads
    pictures is not installed.
    """
    if files.kind != "hf" or not _may_see(files.path / "config.json"):
        return None
    try:
        from tokenizer_proc.media.families.catalogue import processor_of
    except ImportError as error:
        raise ConfigError(
            f"{files.path}: the model sees pictures: {error}; `pip install 'srt-lang[vision]'`, or "
            "serve its text alone, with --limit-media 0"
        ) from error
    return processor_of(files.path, tokenizer_path(files.text_path))


def _may_see(config: Path) -> bool:
    """Whether a look at what the families say is worth it; yes if the file cannot be read, which
    they say best."""
    try:
        content = json.loads(config.read_bytes())
        names = content.get("architectures") or []
        return "vision_config" in content or any("ConditionalGeneration" in n for n in names)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return True
