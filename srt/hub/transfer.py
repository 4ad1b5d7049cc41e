"""Brings one large file: goes on where an earlier attempt ended, and checks what has arrived.

huggingface_hub moves the bytes. It would begin anew in each process, so the file that is not
complete is ours: it lies in the shared cache under the name that older versions gave it.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from srt.progress import Progress, shown
from srt.wire.errors import ConfigError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 2**24
# Another process may bring the same file; how long it may stand still until we give up.
_STILL_S = 120.0
_LOOK_S = 0.5


def bring(
    url: str, headers: dict[str, str], target: Path, size: int, sha256: str, progress: Progress
) -> None:
    """Download `url`, a file of `size` bytes (-1: unknown), to `target`.

    Raises ConfigError if what arrived is not what was announced, and what huggingface_hub raises if
    nothing more arrives; what is there by then is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".incomplete")
    with partial.open("ab") as file, _alone(file, partial):
        if target.exists():  # another process has brought it meanwhile
            progress.have(target.stat().st_size)
            partial.unlink(missing_ok=True)
            return
        there = file.tell()
        if 0 <= size < there:
            file.truncate(0)
            there = 0
        progress.have(there)
        _get(url, headers, file, there, size, progress)
        file.flush()
        if sha256 and _SHA256.fullmatch(sha256) and _digest(partial) != sha256:
            partial.unlink()
            raise ConfigError(f"{url} arrived damaged (its SHA-256 differs): start again")
        os.replace(partial, target)


def headers_for(url: str, location: str, headers: dict[str, str]) -> dict[str, str]:
    """What to send to `location`, where the hub sends those who ask for `url`: the token to the hub
    alone."""
    if urlsplit(url).netloc == urlsplit(location).netloc:
        return headers
    return {key: value for key, value in headers.items() if key.lower() != "authorization"}


def _get(
    url: str, headers: dict[str, str], file: BinaryIO, there: int, size: int, progress: Progress
) -> None:
    from huggingface_hub.file_download import http_get

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
        url,
        file,
        resume_size=there,
        headers=headers,
        expected_size=size if size >= 0 else None,
        tqdm_class=Counter,
    )


@contextmanager
def _alone(file: BinaryIO, partial: Path) -> Iterator[None]:
    """Holds the file against other processes. Raises ConfigError if another holds it and gets no
    further."""
    size, since = -1, time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            now = os.fstat(file.fileno()).st_size
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > _STILL_S:
                raise ConfigError(
                    f"another process holds {partial} at {shown(size)} and gets no further: end it"
                ) from None
            time.sleep(_LOOK_S)
    file.seek(0, os.SEEK_END)
    yield


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
