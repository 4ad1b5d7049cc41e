"""Brings a model from the hub into the cache that its other tools share, or finds it there."""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from srt.hub import cache
from srt.hub.errors import as_config_error, is_network, status_of
from srt.hub.names import HubName
from srt.hub.offer import Chosen, RepoFile, choose
from srt.hub.transfer import Wanted, bring, check_disk, headers_for
from srt.machine import memory_available
from srt.progress import Progress, shown
from srt.sizing import OTHERS
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

# Larger files are continued where they broke off; beyond the upper bound only the hub's own
# protocol (hf_xet) brings them.
_CONTINUED_BYTES = 2**23
_MOST_BYTES = 50_000_000_000
_AT_ONCE = 4
_TIMEOUT_S = 15.0
_RETRIES = 3
_LONGEST_PAUSE_S = 30.0
_BUSY = (408, 429, 500, 502, 503, 504)


def fetch(name: HubName, *, checks_memory: bool = True) -> Path:
    """The .gguf file or the directory of the model, in the cache; what it lacks is brought.

    Raises ConfigError, which says what to do.
    """
    from huggingface_hub import get_token
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # ours shows the whole model
    try:
        return _fetch(name, checks_memory)
    except Exception as error:
        has_token = get_token() is not None
        raise as_config_error(error, name, has_token=has_token) from None  # its text has addresses


def _fetch(name: HubName, checks_memory: bool) -> Path:
    room = memory_available() - OTHERS if checks_memory else sys.maxsize
    commit, files, is_live = _listing(name)
    try:
        chosen = choose(name, files, lambda path: _small(name, path, commit).read_bytes(), room)
    except ConfigError as error:
        if is_live:
            raise
        raise ConfigError(f"{error} (of what the cache has: the hub was not asked)") from error
    missing = [file for file in chosen.files if _cached(name, file.path, commit) is None]
    _check_memory(name, chosen, room)
    if missing:
        total = sum(file.size for file in missing)
        where = cache.cache_folder()
        blobs = cache.repository_folder(name.repo) / "blobs"
        # Another commit may have brought the same content.
        new = [file for file in missing if not (file.sha256 and (blobs / file.sha256).exists())]
        check_disk(str(name), sum(file.size for file in new), where)
        log.info("bring   %s: %d files, %s, to %s", name, len(missing), shown(total), where)
        with Progress(str(name), total) as progress:
            _bring_all(name, missing, commit, progress)
    _name_commit(name, chosen.files[0].path, commit)
    main = _small(name, chosen.main, commit)
    return main if chosen.kind == "gguf" else main.parent


def _listing(name: HubName) -> tuple[str, Sequence[RepoFile], bool]:
    """The commit that the revision is, its files, and whether the hub says so: from the cache if
    nobody answers."""
    from huggingface_hub import HfApi, constants

    def ask() -> tuple[str, Sequence[RepoFile]]:
        info = HfApi(library_name="srt").model_info(
            name.repo, revision=name.revision or None, files_metadata=True, timeout=_TIMEOUT_S
        )
        files = [
            RepoFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else "")
            for each in info.siblings or ()
        ]
        return info.sha or name.revision, files

    found = cache.snapshot(name.repo, name.revision)
    if constants.HF_HUB_OFFLINE:
        if found is None:
            revision = f" at {name.revision}" if name.revision else ""
            raise ConfigError(
                f"{name.repo}{revision} is not in {cache.cache_folder()}, and HF_HUB_OFFLINE is "
                "set: unset it, or name a model that `srt models` lists"
            )
        return found.commit, found.files, False
    try:
        return *_patiently(ask), True
    except Exception as error:
        if found is None or not (is_network(error) or status_of(error) in _BUSY):
            raise
        log.warning("the hub cannot be reached; %s is taken from the cache", name)
        return found.commit, found.files, False


def _patiently(ask: Callable[[], T]) -> T:
    """What `ask` gives; asks again where the hub is busy, when it says or after a while."""
    for attempt in range(_RETRIES):
        try:
            return ask()
        except Exception as error:
            if status_of(error) not in _BUSY:
                raise
            pause = _pause(error, 2.0**attempt)
            if pause > _LONGEST_PAUSE_S:
                raise
            log.warning("the hub is busy (%d): again in %.0f s", status_of(error), pause)
            time.sleep(pause)
    return ask()


def _pause(error: Exception, otherwise: float) -> float:
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return float(headers.get("Retry-After", otherwise))
    except ValueError:  # a date
        return otherwise


def _cached(name: HubName, path: str, commit: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name.repo, path, revision=commit)
    return Path(found) if isinstance(found, str) else None


def _small(name: HubName, path: str, commit: str) -> Path:
    """A file, of the cache or brought by huggingface_hub."""
    from huggingface_hub import constants, hf_hub_download

    if (found := _cached(name, path, commit)) is not None:
        return found
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{name}: {path} is not in the cache, and HF_HUB_OFFLINE is set")
    return Path(_patiently(lambda: hf_hub_download(name.repo, path, revision=commit)))


def _bring_all(name: HubName, missing: Sequence[RepoFile], commit: str, progress: Progress) -> None:
    def one(file: RepoFile) -> None:
        if _CONTINUED_BYTES <= file.size < _MOST_BYTES:
            _bring_large(name, file, commit, progress)
            _small(name, file.path, commit)
        else:
            _small(name, file.path, commit)
            progress.add(file.size)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        work = [pool.submit(one, file) for file in missing]
        try:
            for each in work:
                each.result()
        except BaseException:
            progress.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _name_commit(name: HubName, path: str, commit: str) -> None:
    """Put the branch's name into the cache, so that it is found when the hub is not there."""
    from huggingface_hub import hf_hub_download

    found = cache.snapshot(name.repo, name.revision)
    if name.revision != commit and (found is None or found.commit != commit):
        _patiently(lambda: hf_hub_download(name.repo, path, revision=name.revision or None))


def _bring_large(name: HubName, file: RepoFile, commit: str, progress: Progress) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(name.repo, file.path, revision=commit)
    found = _patiently(lambda: get_hf_file_metadata(url))
    if not found.etag or os.path.basename(found.etag) != found.etag:
        raise ConfigError(f"{name}: the hub gave no name for the content of {file.path}")
    folder = cache.repository_folder(name.repo) / "blobs"
    headers = headers_for(url, found.location, build_hf_headers(library_name="srt"))
    size = file.size if found.size is None else found.size
    sha256 = file.sha256 or found.etag
    what = Wanted(f"{name}, {file.path}", found.location, headers, size, sha256)
    bring(what, folder / found.etag, progress)


def _check_memory(name: HubName, chosen: Chosen, room: int) -> None:
    if chosen.weight_bytes > room:
        raise ConfigError(
            f"{name}: its weights take {shown(chosen.weight_bytes)} of memory, and "
            f"{shown(max(room, 0))} can be had: take a smaller model or quantisation"
        )
