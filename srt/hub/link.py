"""Brings a .gguf file from an address that is no hub's, into a folder of our own."""

import hashlib
import logging
import os
import re
from glob import escape
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from srt.hub.errors import is_network, status_of
from srt.hub.names import Link, shown_address
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


def fetch_link(link: Link) -> Path:
    """The file, in the cache. One that lies there already is taken as it is: the folder is that of
    the address and of the version (ETag, time of change, size) that the server names. The address
    counts without its query, which may be a new signature each time, where the server does name a
    version. If the server does not answer, the last one of this address is taken.

    Raises ConfigError.
    """
    name = Path(unquote(urlsplit(link.url).path)).name
    address = shown_address(link.url)
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(f"model {address}: its name has more than {_LONGEST_NAME} bytes")
    folder = cache_folder() / "models" / _digest(address)
    there = sorted(folder.glob(f"*/{escape(name)}"), key=lambda path: path.stat().st_mtime)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        if there:
            return there[-1]
        raise ConfigError(f"{address} is not in {folder.parent}, and HF_HUB_OFFLINE is set")
    try:
        answer = _ask(link.url)
    except httpx.HTTPError as error:
        if there and isinstance(error, httpx.TransportError):
            log.warning("%s cannot be reached; the file is taken from the cache", address)
            return there[-1]
        status = status_of(error)
        why = f"the server answered {status}" if status else f"{error or type(error).__name__}"
        raise ConfigError(f"model {address}: {why}") from error
    except httpx.InvalidURL as error:
        raise ConfigError(f"model {address}: {error}") from error
    return _brought(link, answer, folder, name)


def _brought(link: Link, answer: httpx.Response, folder: Path, name: str) -> Path:
    """The version that the server has now, brought unless it is in `folder`."""
    size = _size_of(answer)
    marks = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""))
    version = f"{' '.join(marks) if any(marks) else link.url} {size}"
    target = folder / _digest(version) / name
    if target.exists():
        return target
    check_disk(str(link), max(size, 0), target.parent)
    size_text = shown(size) if size >= 0 else "of unknown size"
    log.info("bring   %s, %s, to %s", link, size_text, target.parent)
    try:
        with Progress(str(link), size) as progress:
            wanted = Wanted(str(link), str(answer.url), {}, size, goes_on=any(marks))
            bring(wanted, target, progress)
    except ConfigError:
        raise
    except Exception as error:
        is_ours = isinstance(error, OSError) and not is_network(error)  # such as a full disk
        again = "" if is_ours else "; start again: it goes on there"
        raise ConfigError(f"{link}: {error}{again}") from error
    return target


def _ask(url: str) -> httpx.Response:
    """What the server says of the file, without its content. Raises httpx.HTTPError."""
    # Compressed it would have another size.
    with httpx.Client(headers={"accept-encoding": "identity"}, timeout=_TIMEOUT_S) as http:
        answer = http.head(url, follow_redirects=True)
        if answer.status_code in _NO_HEAD:
            first = {"range": "bytes=0-0"}
            with http.stream("GET", url, headers=first, follow_redirects=True) as answer:
                pass
    return answer.raise_for_status()


def _size_of(answer: httpx.Response) -> int:
    """Of the whole file, in bytes; -1 if the server does not say it."""
    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
        found = _WHOLE.fullmatch(answer.headers.get("content-range", ""))
        return int(found[1]) if found else -1
    text = answer.headers.get("content-length", "")
    return int(text) if text.isdecimal() else -1


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
