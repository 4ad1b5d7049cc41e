"""Brings a .gguf file from an address that is no hub's, into a folder of our own."""

import hashlib
import logging
import os
from glob import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from srt.hub.errors import status_of
from srt.hub.names import Link, shown_address
from srt.hub.transfer import Wanted, bring, check_disk
from srt.machine import cache_folder
from srt.progress import Progress, shown
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_TIMEOUT_S = 15.0


def fetch_link(link: Link) -> Path:
    """The file, in the cache. One that lies there already is taken as it is: the folder is that of
    the address and of the version (ETag, time of change, size) that the server names. If the server
    does not answer, the last one of this address is taken.

    Raises ConfigError.
    """
    name = Path(unquote(urlsplit(link.url).path)).name
    digest = hashlib.blake2b(link.url.encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "models" / digest
    address = shown_address(link.url)
    there = sorted(folder.glob(f"*/{escape(name)}"), key=lambda path: path.stat().st_mtime)
    if there and os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return there[-1]
    try:
        answer = httpx.head(link.url, follow_redirects=True, timeout=_TIMEOUT_S)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        if there and isinstance(error, httpx.TransportError):
            log.warning("%s cannot be reached; the file is taken from the cache", address)
            return there[-1]
        status = status_of(error)
        why = f"the server answered {status}" if status else f"{error or type(error).__name__}"
        raise ConfigError(f"model {address}: {why}") from error
    except httpx.InvalidURL as error:
        raise ConfigError(f"model {address}: {error}") from error
    size = int(answer.headers.get("content-length", -1))
    marks = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""))
    version = f"{' '.join(marks)} {size}"
    target = folder / hashlib.blake2b(version.encode(), digest_size=8).hexdigest() / name
    if target.exists():
        return target
    check_disk(str(link), max(size, 0), target.parent)
    log.info("bring   %s, %s, to %s", link, shown(size), target.parent)
    try:
        with Progress(str(link), size) as progress:
            wanted = Wanted(str(link), str(answer.url), {}, size, goes_on=any(marks))
            bring(wanted, target, progress)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{link}: {error}; start again: it goes on there") from error
    return target
