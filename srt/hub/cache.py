"""Models in the cache that Hugging Face's tools share (HF_HOME).

Its layout is documented: models--ORG--NAME has `refs`, files with the commit that a branch is, and
`snapshots`, a folder for each commit with links to `blobs`. The library's own scan gives up on a
model that lacks a file, and is what a download that was cut off leaves.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from srt.hub.offer import RepoFile

_PREFIX = "models--"


class Snapshot(NamedTuple):
    """A revision of a repository as far as it lies here: the files by their paths in it."""

    repo: str
    commit: str
    folder: Path
    files: list[RepoFile]

    @property
    def is_default(self) -> bool:
        """Whether it is that of the default branch, which is had without naming a revision."""
        return _commit_of(self.folder.parents[1], "main") == self.commit


def cache_folder() -> Path:
    """Where the cache lies. It may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repository_folder(repo: str) -> Path:
    """Where the cache has what it has of `repo`."""
    return cache_folder() / f"{_PREFIX}{repo.replace('/', '--')}"


def snapshots() -> Iterator[Snapshot]:
    """Of all models in the cache, by their names."""
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*/snapshots/*")):
        name = folder.parents[1].name.removeprefix(_PREFIX)
        yield _read(name.replace("--", "/", 1), folder)


def snapshot(repo: str, revision: str) -> Snapshot | None:
    """What the cache has of this revision, a branch or a commit: "" is the default branch."""
    base = repository_folder(repo)
    commit = _commit_of(base, revision or "main") or revision
    folder = base / "snapshots" / commit
    return _read(repo, folder) if commit and os.path.isdir(folder) else None  # or no such name


def _commit_of(base: Path, revision: str) -> str:
    """What the branch or tag is; "" if the cache does not say it."""
    try:
        return (base / "refs" / revision).read_text().strip()
    except (OSError, ValueError):  # it is not UTF-8, or has a NUL
        return ""


def _read(repo: str, folder: Path) -> Snapshot:
    files = [
        RepoFile(path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()  # and no link that leads nowhere
    ]
    return Snapshot(repo, folder.name, folder, files)
