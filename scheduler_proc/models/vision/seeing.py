"""Whether a model sees anything, found without torch, which only a tower needs."""

from typing import Any

import msgspec

from srt.files.model_files import ModelFiles
from srt.files.text_config import sees
from srt.wire.errors import ConfigError


def seeing_config(files: ModelFiles) -> dict[str, Any] | None:
    """What config.json of the model at `files` says; None if it sees nothing."""
    if files.kind != "hf":
        return None
    path = files.path / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return config if sees(config) else None
