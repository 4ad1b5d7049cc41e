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

    def required(self, key: str, *other_names: str) -> int:
        """An integer that config.json must have, under the first of the names that is there."""
        value = next((self.config[k] for k in (key, *other_names) if k in self.config), None)
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

    @cached_property
    def decoder_steps(self) -> list[dict[str, Any]]:
        """tokenizer.json's decoder, taken apart if it is a sequence of several."""
        decoder = self.tokenizer.get("decoder") or {"type": None}
        return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]

    @property
    def is_spm(self) -> bool:
        """Whether tokens are written as SentencePiece does, with U+2581 for a space."""
        return any(step["type"] in ("Replace", "Metaspace") for step in self.decoder_steps)

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Templates by name, "default" and "tool_use" among them: from the files that hold one
        each, and from tokenizer_config.json if there are none."""
        paths = {path.stem: path for path in self.path.glob("additional_chat_templates/*.jinja")}
        default = self.path / "chat_template.jinja"
        if default.is_file():
            paths["default"] = default
        if paths:
            return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
        template = self.tokenizer_config.get("chat_template") or {}
        if isinstance(template, list):
            return {item["name"]: item["template"] for item in template}
        return {"default": template} if isinstance(template, str) else template

    def adds_bos(self) -> bool:
        """Whether prompts start with BOS: as tokenizer_config.json says, else tokenizer.json."""
        return self._adds("bos_token", 0)

    def adds_eos(self) -> bool:
        """The same of EOS at the end of prompts."""
        return self._adds("eos_token", -1)

    def _adds(self, kind: str, place: int) -> bool:
        explicit = self.tokenizer_config.get(f"add_{kind}")
        if explicit is not None:
            return bool(explicit)
        token = token_text(self.tokenizer_config.get(kind))
        processor = self.tokenizer.get("post_processor") or {}
        steps = processor.get("processors", [processor])
        return token is not None and any(_special_at(step, place) == token for step in steps)


def token_text(token: Any) -> str | None:
    """A token of tokenizer_config.json, written there as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_at(processor: dict[str, Any], place: int) -> str | None:
    """The special token that a TemplateProcessing puts there: first (0) or last (-1)."""
    if processor.get("type") != "TemplateProcessing":
        return None
    piece = (processor.get("single") or [{}])[place]
    name = piece.get("SpecialToken", {}).get("id")
    return name if isinstance(name, str) else None
