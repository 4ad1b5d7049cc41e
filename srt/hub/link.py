"""Brings a .gguf file from an address that is no hub's, into a folder of our own.

The folder is models/ADDRESS/VERSION/: of the address without its query, which may be a new
signature each time, and of what the server names a version by. Beside the versions lies, for each
whole address that was asked for, the name of the version that it gave.
"""

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx2

from srt.files.model_files import gguf_parts
from srt.hub.errors import is_network, status_of
from srt.hub.names import Link, shown_address, shown_text
from srt.hub.transfer import Wanted, bring, check_disk
from srt.machine import cache_folder
from srt.progress import Progress, shown
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_TIMEOUT_S = 15.0
_LONGEST_NAME = 200  # bytes: file systems have 255, with what marks a file that is not complete
# What servers answer that do not know HEAD, or have signed an address for GET alone.
_NO_HEAD = (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_WHOLE = re.compile(r"bytes \S+/(\d+)")
_MAGIC = b"GGUF"
_MOST_PARTS = 256


def fetch_link(link: Link) -> Path:
    """The file, in the cache, with the other files of a model in several, which must lie beside it.
    A version that lies there already is taken as it is. If the server does not answer, the last one
    of this very address is taken.

    Raises ConfigError.
    """
    address, name = shown_address(link.url), _name_of(link)
    there = cached_link(link)
    if is_offline():
        if there is None:
            raise ConfigError(f"{address} was not brought before, and HF_HUB_OFFLINE is set")
        return there
    parts = [part.name for part in gguf_parts(Path(name))]
    if len(parts) > _MOST_PARTS:
        raise ConfigError(f"model {address}: it has more than {_MOST_PARTS} parts")
    # What is raised has no cause: those of the library hold addresses.
    try:
        answers = [_ask(_beside(link.url, part)) for part in parts]
    except httpx2.TransportError as error:
        if there is None:
            raise ConfigError(f"model {address}: {_reason(error)}") from None
        log.warning("%s cannot be reached; the file is taken from the cache", address)
        return there
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ConfigError(f"model {address}: {_reason(error)}") from None
    except (ImportError, ValueError) as error:
        raise ConfigError(f"the proxy that the environment names: {error}") from None
    version = _digest(" ".join(_version_of(answer, link) for answer in answers))
    target = _folder_of(link) / version
    try:
        _bring_all(link, answers, [target / part for part in parts])
    except ConfigError:
        raise
    except Exception as error:
        is_ours = isinstance(error, OSError) and not is_network(error)  # such as a full disk
        again = "" if is_ours or status_of(error) else "; start again: it goes on there"
        raise ConfigError(f"{link}: {_reason(error)}{again}") from None
    _remember(link, version)
    return target / name


def cached_link(link: Link) -> Path | None:
    """What was brought from this address before, without asking the server."""
    try:
        path = _folder_of(link) / _place_of(link).read_text() / _name_of(link)
        return path if all(part.exists() for part in gguf_parts(path)) else None
    except (OSError, UnicodeDecodeError):
        return None


def _remember(link: Link, version: str) -> None:
    place = _place_of(link)
    try:
        if place.exists() and place.read_text() == version:
            return
        new = place.with_name(f"{place.name}.{os.getpid()}")
        new.write_text(version)
        new.replace(place)
    except (OSError, UnicodeDecodeError) as error:  # of a full disk: this start has its model
        log.warning("%s will not be found without its server: %s", link, error)


def is_offline() -> bool:
    """Whether the variable of Hugging Face's tools says so."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _name_of(link: Link) -> str:
    name = Path(unquote(urlsplit(link.url).path)).name
    if not name.isprintable() or name.startswith(".") or len(os.fsencode(name)) > _LONGEST_NAME:
        rule = f"the file's name must be printable, and at most {_LONGEST_NAME} bytes long"
        raise ConfigError(f"model {shown_address(link.url)}: {rule}")
    return name


def _folder_of(link: Link) -> Path:
    first = gguf_parts(Path(_name_of(link)))[0].name
    return cache_folder() / "models" / _digest(shown_address(_beside(link.url, first)))


def _place_of(link: Link) -> Path:
    return _folder_of(link) / _digest(link.url)


def _beside(url: str, name: str) -> str:
    """The address of the file `name` in the same place."""
    parts = urlsplit(url)
    path = f"{parts.path.rpartition('/')[0]}/{quote(name)}"
    return url if unquote(path) == unquote(parts.path) else urlunsplit(parts._replace(path=path))


def _ask(url: str) -> httpx2.Response:
    """What the server says of the file, without its content. Raises httpx2.HTTPError, and
    ConfigError if it does not send the file as it is."""
    with httpx2.Client(headers={"accept-encoding": "identity"}, timeout=_TIMEOUT_S) as http:
        answer = http.head(url, follow_redirects=True)
        if answer.status_code in _NO_HEAD:
            first = {"range": "bytes=0-0"}
            with http.stream("GET", url, headers=first, follow_redirects=True) as answer:
                pass
    answer.raise_for_status()
    if (encoding := answer.headers.get("content-encoding", "identity")) != "identity":
        raise ConfigError(f"model {shown_address(url)}: the server sends it as {encoding} only")
    return answer


def _size_of(answer: httpx2.Response) -> int:
    """Of the whole file, in bytes; -1 if the server does not say it."""
    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        found = _WHOLE.fullmatch(answer.headers.get("content-range", ""))
        return int(found[1]) if found else -1
    text = answer.headers.get("content-length", "")
    return int(text) if text.isdecimal() else -1


def _marks_of(answer: httpx2.Response) -> str:
    return " ".join(answer.headers.get(mark, "") for mark in ("etag", "last-modified")).strip()


def _version_of(answer: httpx2.Response, link: Link) -> str:
    return f"{_marks_of(answer) or link.url} {_size_of(answer)}"


def _bring_all(link: Link, answers: Sequence[httpx2.Response], targets: Sequence[Path]) -> None:
    """Those that are not there."""
    missing = [
        (answer, _size_of(answer), target)
        for answer, target in zip(answers, targets, strict=True)
        if not target.exists()
    ]
    if not missing:
        return
    sizes = [size for _, size, _ in missing]
    size = sum(sizes) if min(sizes) >= 0 else -1
    folder = targets[0].parent
    check_disk(str(link), max(size, 0), folder)
    size_text = shown(size) if size >= 0 else "of unknown size"
    log.info("bring   %s, %s, to %s", link, size_text, folder)
    with Progress(str(link), size) as progress:
        for answer, each, target in missing:
            goes_on = _marks_of(answer) != ""
            wanted = Wanted(str(link), str(answer.url), {}, each, goes_on=goes_on)
            bring(wanted, target, progress)
            with target.open("rb") as file:
                is_model = file.read(len(_MAGIC)) == _MAGIC
            if not is_model:
                target.unlink()
                raise ConfigError(f"{link}: what the server sent is no GGUF file")


def _reason(error: Exception) -> str:
    """Without addresses, which may hold what gives access to them."""
    if status := status_of(error):
        may_be_old = status in (HTTPStatus.FORBIDDEN, HTTPStatus.GONE)
        return f"the server answered {status}{'; is the address still good?' if may_be_old else ''}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shown_text(str(error)) or type(error).__name__


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
