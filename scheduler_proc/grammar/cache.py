"""Folders of artefacts, bounded in bytes: the least recently used go first.

There are two: the ring's, private to one server, from which the scheduler maps, and the on-disk
cache, which any number of servers of one user share. A file appears in a folder whole or not at
all, and is never changed: taking one away does not disturb a process that has mapped it.
"""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import shutil
import time
import unicodedata
from pathlib import Path
from typing import NamedTuple

import msgspec

import scheduler_proc.grammar.closing
import scheduler_proc.kernels
import srt.answers.captures
import srt.patterns
from scheduler_proc.grammar.artefact import FORMAT_VERSION, read_artefact
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.kernels.build import LIBRARY
from srt.args import ServerArgs
from srt.machine import cache_folder, private

log = logging.getLogger(__name__)

RING_BYTES = 512 * 2**20
CACHE_BYTES = 1024 * 2**20
STALE_TEMPORARY_S = 600.0  # a temporary file this old was left by a process that was killed
_TEMPORARY = ".tmp-"


def compiler_version() -> str:
    """Names the code that compiles: what other code made is not taken from the cache. A hash of
    this package's modules, those that read patterns and look for completions, the kernels,
    which compute the masks, and the libraries under them; and of Python's Unicode tables, from
    which classes and cases of letters are made."""
    digest = hashlib.sha256(unicodedata.unidata_version.encode())
    ours = (
        __file__,
        srt.patterns.__file__,
        srt.answers.captures.__file__,
        scheduler_proc.grammar.closing.__file__,
        scheduler_proc.kernels.__file__,
    )
    for module in ours:
        package = Path(module).parent
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    with contextlib.suppress(FileNotFoundError), open(LIBRARY, "rb") as kernels:
        digest.update(hashlib.file_digest(kernels, "sha256").digest())
    for library in ("llguidance", "xgrammar"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{library} {importlib.metadata.version(library)}\0".encode())
    return digest.hexdigest()


def naming_of(*, backend: str, vocabulary: str, version: str) -> str:
    """What `artefact_key` needs: a hash of everything but the constraint that an artefact depends
    on. `vocabulary` is the fingerprint of one, `version` what `compiler_version` says."""
    parts = [FORMAT_VERSION, version, backend, vocabulary]
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()


class _Entry(NamedTuple):
    """One file; tuples sort by age."""

    used_at: float
    path: Path
    num_bytes: int


class ArtefactFolder:
    """`directory` with up to `max_bytes` of artefacts, each named by its key. Every use of one
    counts as its time of modification, so that the order of use outlives the process."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Makes the directory, mode 0700. Raises OSError if that, or writing there, is not
        possible, or if it belongs to another user."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.getuid():
            raise PermissionError(f"{directory} belongs to another user")
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(f"{directory} is not writable")
        self._directory = directory
        self._max_bytes = max_bytes

    def __str__(self) -> str:
        return str(self._directory)

    def path(self, key: str) -> Path:
        """Where the artefact is, if it is there."""
        return self._directory / key

    def temporary(self) -> Path:
        """A new temporary name, of this process, to write to before `add`."""
        return self._directory / f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"

    def touch(self, key: str) -> bool:
        """Whether the artefact is there; it counts as used now."""
        try:
            os.utime(self.path(key))
        except OSError:
            return False
        return True

    def add(self, key: str, temporary: Path) -> None:
        """Take a finished file, which is in this folder under a temporary name."""
        os.replace(temporary, self.path(key))
        temporary.unlink(missing_ok=True)  # it still exists if both were links to one file already

    def copy_from(self, other: "ArtefactFolder", key: str) -> bool:
        """Take over an artefact of another folder: by a hard link if both are on one file system.
        False if it is not there, or damaged, in which case it is removed there. Raises OSError if
        it cannot be written here."""
        source, temporary = other.path(key), self.temporary()
        if not source.exists():
            return False
        try:
            read_artefact(source)
            try:
                os.link(source, temporary)
            except OSError:
                with open(source, "rb") as file, open(temporary, "xb", opener=private) as copy:
                    shutil.copyfileobj(file, copy)
            else:
                os.chmod(temporary, 0o600)  # the file's, which may be an older one with another
            self.add(key, temporary)
        except GrammarError:
            source.unlink(missing_ok=True)
            return False
        except OSError:
            temporary.unlink(missing_ok=True)
            if source.exists():
                raise
            return False
        other.touch(key)
        return True

    def discard(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def trim(self, keep_s: float = 0.0) -> bool:
        """Remove the least recently used until the bound holds, and temporary files that were
        left over. What was used in the last `keep_s` seconds stays: False if that is too much.
        """
        now = time.time()
        entries = sorted(self._entries(now))
        total = sum(entry.num_bytes for entry in entries)
        for entry in entries:
            if total <= self._max_bytes:
                return True
            if keep_s > 0 and entry.used_at > now - keep_s:
                return False
            entry.path.unlink(missing_ok=True)
            total -= entry.num_bytes
        return total <= self._max_bytes

    def remove_temporary(self, pid: int) -> None:
        """Remove what process `pid`, which has ended, was writing."""
        for path in self._directory.glob(f"{_TEMPORARY}{pid}-*"):
            path.unlink(missing_ok=True)

    def _entries(self, now: float) -> list[_Entry]:
        entries = []
        with os.scandir(self._directory) as found:
            for file in found:
                with contextlib.suppress(FileNotFoundError):  # another server has removed it
                    stat = file.stat(follow_symlinks=False)
                    if not file.name.startswith(_TEMPORARY):
                        entries.append(_Entry(stat.st_mtime, Path(file.path), stat.st_size))
                    elif stat.st_mtime < now - STALE_TEMPORARY_S:
                        os.unlink(file.path)
        return entries


def open_cache(args: ServerArgs) -> ArtefactFolder | None:
    """The on-disk cache that the arguments ask for. One that cannot be used is a warning."""
    choice = args.grammar_cache_dir
    if choice in ("", "none"):
        return None
    try:
        is_own = choice == "auto"
        directory = cache_folder() / "grammars" if is_own else Path(choice)
        return ArtefactFolder(directory, CACHE_BYTES)
    except OSError as error:
        log.warning("compiled grammars are not kept: %s", error)
        return None
