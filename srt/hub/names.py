"""How models of the hub are named: org/name[@revision][:variant], hf://..., or an address."""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from srt.wire.errors import ConfigError, quoted

HUB = "https://huggingface.co"
_PREFIX = "hf://"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[^:@\s]+?))?(?P<file>/[^:@]+?\.gguf)?"
    r"(?::(?P<variant>[^:@/\s]+))?",
    re.IGNORECASE,
)
# Of a page or a file of a repository.
_PATH = re.compile(
    rf"/(?P<repo>{_PART}/{_PART})(?:/(?:resolve|blob|tree|raw)/(?P<revision>[^/]+))?(?P<file>/.+)?"
)


class HubName(NamedTuple):
    """A model of the hub. `revision` "" is the default branch; `variant` names one of several GGUF
    models by its quantisation, and `file` one by its path."""

    repo: str
    revision: str = ""
    variant: str = ""
    file: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        variant = f":{self.variant}" if self.variant else ""
        return f"{self.repo}{revision}{f'/{self.file}' if self.file else ''}{variant}"


class Link(NamedTuple):
    """The address of a .gguf file that no hub has."""

    url: str

    def __str__(self) -> str:
        return Path(unquote(urlsplit(self.url).path)).stem


def endpoint() -> str:
    """The address of the hub, which HF_ENDPOINT may change."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def parse_name(model: str) -> HubName | Link | None:
    """What `model` names elsewhere; None for what is to be found on this machine. What lies here
    under a name of the hub goes before.

    Raises ConfigError for an address or hf:// that names no model.
    """
    if model.startswith(("http://", "https://")):
        return _of_address(model)
    if model.startswith(_PREFIX):
        found = _NAME.fullmatch(model.removeprefix(_PREFIX))
        if found is None:
            raise ConfigError(f"model {quoted(model)}: hf:// is followed by org/name[@revision]")
        return _name(found)
    found = _NAME.fullmatch(model)
    is_file = model.lower().endswith(".gguf") or Path(model).expanduser().exists()
    return None if found is None or is_file else _name(found)


def _name(found: re.Match[str]) -> HubName:
    parts = {name: value or "" for name, value in found.groupdict().items()}
    if parts.get("variant") and parts["file"]:
        raise ConfigError(f"model {quoted(found[0])} names a file and a quantisation")
    file = unquote(parts["file"].strip("/"))
    return HubName(parts["repo"], parts["revision"], parts.get("variant", ""), file)


def _of_address(url: str) -> HubName | Link:
    parts = urlsplit(url)
    hosts = {urlsplit(endpoint()).netloc, urlsplit(HUB).netloc, "hf.co", "www.huggingface.co"}
    if parts.netloc in hosts:
        found = _PATH.fullmatch(parts.path.rstrip("/"))
        if found is None or (found["file"] and not found["file"].lower().endswith(".gguf")):
            raise ConfigError(f"model {quoted(url)}: of the hub only models and their .gguf files")
        return _name(found)
    if not parts.path.lower().endswith(".gguf"):
        raise ConfigError(f"model {quoted(url)}: an address must be that of a .gguf file")
    return Link(url)
