"""The JSON files of a Hugging Face model directory that concern text, read once.

Used by `srt.model.vocab`. Only config.json and tokenizer.json must exist; the others default to
empty. Nothing of a model's own code is ever run.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from srt.errors import ConfigError


class HFFiles:
    """Parsed configuration of the model in directory `path`. Raises ConfigError when unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self._read("config.json", must_exist=True)
        self.generation_config = self._read("generation_config.json")
        self.tokenizer = self._read("tokenizer.json", must_exist=True)
        self.tokenizer_config = self._read("tokenizer_config.json")

    def _read(self, name: str, must_exist: bool = False) -> dict[str, Any]:
        path = self.path / name
        if not must_exist and not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: not a JSON object")
        return content

    def required(self, key: str) -> int:
        """An integer that config.json must have."""
        value = self.config.get(key)
        if not isinstance(value, int):
            raise ConfigError(f"{self.path / 'config.json'}: {key} is missing or not an integer")
        return value

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Token text (in the vocabulary's own alphabet) to id, added tokens included."""
        vocab = self.tokenizer.get("model", {}).get("vocab")
        if isinstance(vocab, list):  # Unigram: (piece, score) in the order of ids
            ids = {piece: i for i, (piece, _) in enumerate(vocab)}
        elif isinstance(vocab, dict):
            ids = dict(vocab)
        else:
            raise ConfigError(f"{self.path / 'tokenizer.json'}: the model has no vocab")
        ids |= {item["content"]: item["id"] for item in self.tokenizer.get("added_tokens", [])}
        if not ids:
            raise ConfigError(f"{self.path / 'tokenizer.json'}: the vocab is empty")
        return ids

    def chat_template(self) -> str | None:
        """chat_template.jinja, else tokenizer_config.json's ("default", if it has several)."""
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):
            return {item["name"]: item["template"] for item in template}.get("default")
        return template

    def adds_bos(self) -> bool:
        """Whether prompts start with BOS: as tokenizer_config.json says, else tokenizer.json."""
        explicit = self.tokenizer_config.get("add_bos_token")
        if explicit is not None:
            return bool(explicit)
        bos = token_text(self.tokenizer_config.get("bos_token"))
        processor = self.tokenizer.get("post_processor") or {}
        steps = processor.get("processors", [processor])
        return bos is not None and any(_first_special(step) == bos for step in steps)


def token_text(token: Any) -> str | None:
    """A token of tokenizer_config.json, written there as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _first_special(processor: dict[str, Any]) -> str | None:
    """The special token that a TemplateProcessing puts before a single text."""
    if processor.get("type") != "TemplateProcessing":
        return None
    first = (processor.get("single") or [{}])[0]
    name = first.get("SpecialToken", {}).get("id")
    return name if isinstance(name, str) else None
