"""Brings one large file: goes on where an earlier attempt ended, and checks what has arrived.

huggingface_hub moves the bytes. It would begin anew in each process, so the file that is not
complete is ours: it lies in the shared cache under a name that no version of it uses.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from srt.progress import Progress, shown
from srt.wire.errors import ConfigError

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Another process may bring the same file; how long it may stand still until we give up.
_STILL_S = 120.0
_LOOK_S = 0.5
_DISK_LEFT = 2**26  # bytes, for others


class Wanted(NamedTuple):
    """A file: what to call it in errors, as its address may hold what gives access to it; where it
    is, and what to send there; its size in bytes (-1: unknown) and its SHA-256 (or ""); whether
    what an earlier attempt left is sure to be of the same version."""

    name: str
    url: str
    headers: dict[str, str]
    size: int
    sha256: str = ""
    goes_on: bool = True


def check_disk(name: str, wanted: int, folder: Path) -> None:
    """Raise ConfigError, with figures, unless `folder` has room for so many bytes."""
    there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
    free = shutil.disk_usage(there).free
    if wanted + _DISK_LEFT > free:
        raise ConfigError(
            f"{name}: {shown(wanted)} are to be brought to {folder}, which has {shown(free)} free: "
            "make room, or name another place with HF_HOME or XDG_CACHE_HOME"
        )


def bring(wanted: Wanted, target: Path, progress: Progress) -> None:
    """Download the file to `target`.

    Raises ConfigError if what arrived is not what was announced, and what huggingface_hub raises if
    nothing more arrives; what is there by then is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".srt-incomplete")
    with _alone(partial, progress) as file:
        if target.exists():  # another process has brought it meanwhile
            progress.have(target.stat().st_size)
            partial.unlink(missing_ok=True)
            return
        there = file.tell()
        if not wanted.goes_on or 0 <= wanted.size < there:
            file.truncate(0)
            there = 0
        progress.have(there)
        _get(wanted, file, there, progress)
        file.flush()
        if _SHA256.fullmatch(wanted.sha256) and _digest(partial) != wanted.sha256:
            partial.unlink()
            raise ConfigError(f"{wanted.name} arrived damaged (its SHA-256 differs): start again")
        os.replace(partial, target)


def headers_for(url: str, location: str, headers: dict[str, str]) -> dict[str, str]:
    """What to send to `location`, where the hub sends those who ask for `url`: the token to the hub
    alone."""
    if urlsplit(url).netloc == urlsplit(location).netloc:
        return headers
    return {key: value for key, value in headers.items() if key.lower() != "authorization"}


def _get(wanted: Wanted, file: BinaryIO, there: int, progress: Progress) -> None:
    from huggingface_hub.file_download import http_get

    # Its warnings have the whole address.
    logging.getLogger("huggingface_hub.file_download").setLevel(logging.ERROR)

    class Counter:
        """What http_get takes for a progress bar."""

        def __init__(self, **options: Any) -> None:
            pass

        def __enter__(self) -> "Counter":
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def update(self, num_bytes: int) -> None:
            progress.add(num_bytes)

        close = __exit__

    http_get(
        wanted.url,
        file,
        resume_size=there,
        headers=wanted.headers,
        expected_size=wanted.size if wanted.size >= 0 else None,
        tqdm_class=Counter,
    )


@contextmanager
def _alone(partial: Path, progress: Progress) -> Iterator[BinaryIO]:
    """The file, held against other processes, at its end. Raises ConfigError if another holds it
    and gets no further, and InterruptedError if `progress` is ended meanwhile."""
    size, since = -1, time.monotonic()
    while True:
        with partial.open("ab") as file:
            is_held = _lock(file)
            if is_held and _is_at(partial, file):  # the one who held it may have removed it
                file.seek(0, os.SEEK_END)
                yield file
                return
            now = os.fstat(file.fileno()).st_size
        if is_held:
            continue
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > _STILL_S:
            raise ConfigError(
                f"another process holds {partial} at {shown(size)} and gets no further: end it"
            )
        progress.add(0)
        time.sleep(_LOOK_S)


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
