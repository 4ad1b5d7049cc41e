"""How models of the hub are named: org/name[@revision][:variant], hf://..., or an address."""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from srt.files.model_files import model_stem
from srt.wire.errors import ConfigError, quoted

HUB = "https://huggingface.co"
HF = "hf://"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
_ADDRESS = re.compile(rf"{_SCHEME.pattern}/\S+")
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
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
        return model_stem(Path(unquote(urlsplit(self.url).path)).name)


def shown_address(url: str) -> str:
    """`url` without what may give access: a user with a password, and the query."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # which may be a part of a password with a slash
    except ValueError:  # it is none
        return re.sub(r"//.*@", "//", url.partition("?")[0])
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shown_text(text: str) -> str:
    """`text` with all addresses in it as `shown_address` has them."""
    return _ADDRESS.sub(lambda found: shown_address(found[0]), text)


def shown_model(model: str) -> str:
    """What was given as a model: files and names as they are, addresses as by `shown_address`."""
    is_address = _SCHEME.match(model) or model.partition("/")[0].lower() in _HOSTS
    return shown_address(model) if is_address else model


def endpoint() -> str:
    """The address of the hub, which HF_ENDPOINT may change."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def _place_of_hub() -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(endpoint())
        return parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"HF_ENDPOINT {shown_address(endpoint())} is no address") from None


def parse_name(model: str) -> HubName | Link | None:
    """What `model` names elsewhere; None for what is to be found on this machine. What lies here
    under a name of the hub goes before.

    Raises ConfigError for an address or hf:// that names no model.
    """
    scheme, has_scheme, rest = model.partition("://")
    if has_scheme and scheme.lower() in ("http", "https"):
        return _of_address(f"{scheme.lower()}://{rest}")
    if model.partition("/")[0].lower() in _HOSTS and not _lies_here(model):
        return _of_address(f"https://{model}")
    if has_scheme and scheme.lower() == "hf":
        found = _NAME.fullmatch(rest)
        if found is None:
            shown = quoted(shown_model(model))
            raise ConfigError(f"model {shown}: hf:// is followed by org/name[@revision]")
        return _name(found)
    if _SCHEME.match(model) and not _lies_here(model):
        raise ConfigError(
            f"model {quoted(shown_model(model))}: it may begin with https:// or hf://"
        )
    found = _NAME.fullmatch(model)
    if found is None or model.lower().endswith(".gguf") or _lies_here(model):
        return None
    return _name(found)


def _lies_here(model: str) -> bool:
    try:
        return Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, `~` of no user, a NUL
        return False


def _name(found: re.Match[str]) -> HubName:
    parts = {name: value or "" for name, value in found.groupdict().items()}
    if parts.get("variant") and parts["file"]:
        raise ConfigError(f"model {quoted(found[0])} names a file and a quantisation")
    file, revision = unquote(parts["file"].strip("/")), unquote(parts["revision"])
    return HubName(parts["repo"], revision, parts.get("variant", ""), file)


def _of_address(url: str) -> HubName | Link:
    try:
        url.encode()
        parts = urlsplit(url)
        place = parts.hostname, parts.port
    except ValueError:  # UnicodeEncodeError is one; its text may have what gives access
        raise ConfigError(f"model {quoted(shown_address(url))} is no address") from None
    if parts.hostname in _HOSTS or place == _place_of_hub():
        path = parts.path.rstrip("/")
        found = _PATH.fullmatch(path) or _NAME.fullmatch(path[1:])
        file = "" if found is None else found["file"]
        if found is None or (file and not file.lower().endswith(".gguf")):
            what = "of the hub only models and their .gguf files"
            raise ConfigError(f"model {quoted(shown_address(url))}: {what}")
        return _name(found)
    if not parts.path.lower().endswith(".gguf"):
        raise ConfigError(f"model {shown_address(url)}: an address must be that of a .gguf file")
    return Link(url)
