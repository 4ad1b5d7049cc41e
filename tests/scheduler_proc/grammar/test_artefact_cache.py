"""Folders of artefacts stay within their bound, whoever else writes into them."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from scheduler_proc.grammar.artefact import Artefact, read_artefact, write_artefact
from scheduler_proc.grammar.cache import (
    STALE_TEMPORARY_S,
    ArtefactFolder,
    compiler_version,
    naming_of,
    open_cache,
)
from srt.args import ServerArgs
from srt.wire.constraint import Constraint, artefact_key


def put(folder: ArtefactFolder, key: str, age_s: float = 0.0, num_bytes: int = 1000) -> int:
    """Add an artefact that was last used `age_s` ago; returns its size."""
    temporary = folder.temporary()
    size = write_artefact(temporary, Artefact(key, {}, {"a": np.zeros(num_bytes, np.uint8)}))
    folder.add(key, temporary)
    then = time.time() - age_s
    os.utime(folder.path(key), (then, then))
    return size


def keys(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = put(ArtefactFolder(tmp_path / "probe", 1), "x")
    folder = ArtefactFolder(tmp_path / "a", 3 * size)
    for age, key in enumerate("abcde"):
        put(folder, key, age_s=100.0 - age)
    assert folder.touch("a") and not folder.touch("z")
    assert folder.trim()
    assert keys(tmp_path / "a") == ["a", "d", "e"]
    assert folder.trim()
    assert keys(tmp_path / "a") == ["a", "d", "e"]


def test_what_was_just_used_stays(tmp_path: Path) -> None:
    folder = ArtefactFolder(tmp_path, 10)
    put(folder, "old", age_s=60)
    put(folder, "new")
    assert not folder.trim(keep_s=10)
    assert keys(tmp_path) == ["new"]
    assert folder.trim()
    assert keys(tmp_path) == []


def test_left_behind_temporary_files_go(tmp_path: Path) -> None:
    folder = ArtefactFolder(tmp_path, 10**6)
    mine, old = folder.temporary(), tmp_path / ".tmp-1-k"
    for path in (mine, old):
        path.write_bytes(b"half")
    then = time.time() - STALE_TEMPORARY_S - 1
    os.utime(old, (then, then))
    assert folder.trim() and keys(tmp_path) == [mine.name]
    folder.remove_temporary(os.getpid())
    assert keys(tmp_path) == []


@pytest.mark.parametrize("same_file_system", [True, False])
def test_artefacts_travel_between_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_file_system: bool
) -> None:
    def no_link(*_: Any) -> None:
        raise OSError("another file system")

    if not same_file_system:
        monkeypatch.setattr(os, "link", no_link)
    ring, cache = ArtefactFolder(tmp_path / "r", 10**6), ArtefactFolder(tmp_path / "c", 10**6)
    put(cache, "k", age_s=1000)
    cache.path("k").chmod(0o644)
    assert ring.copy_from(cache, "k") and not ring.copy_from(cache, "other")
    assert read_artefact(ring.path("k")).backend == "k"
    assert ring.path("k").stat().st_mode & 0o777 == 0o600
    assert ring.path("k").samefile(cache.path("k")) == same_file_system
    assert time.time() - cache.path("k").stat().st_mtime < 500  # it counts as used
    assert ring.copy_from(cache, "k") and cache.copy_from(ring, "k")  # again, and back
    assert keys(tmp_path / "r") == keys(tmp_path / "c") == ["k"]


def test_a_damaged_one_is_taken_away(tmp_path: Path) -> None:
    ring, cache = ArtefactFolder(tmp_path / "r", 10**6), ArtefactFolder(tmp_path / "c", 10**6)
    put(cache, "k")
    cache.path("k").write_bytes(b"damaged" * 100)
    assert not ring.copy_from(cache, "k")
    assert keys(tmp_path / "r") == keys(tmp_path / "c") == []


def test_many_servers_share_a_cache(tmp_path: Path) -> None:
    """All servers add, take and trim at once, and whatever one takes is whole."""
    faults: list[BaseException] = []

    def server(number: int) -> None:
        try:
            cache = ArtefactFolder(tmp_path / "cache", 8_000)
            ring = ArtefactFolder(tmp_path / f"ring-{number}", 10**6)
            for i in range(60):
                key = f"k{i % 10}"
                if ring.copy_from(cache, key):
                    assert read_artefact(ring.path(key)).backend == key
                    ring.discard(key)
                else:
                    temporary = ring.temporary()
                    write_artefact(temporary, Artefact(key, {}, {"a": np.zeros(900, np.uint8)}))
                    ring.add(key, temporary)
                    cache.copy_from(ring, key)
                cache.trim()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=server, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert faults == []
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 8_000


# ---- names -----------------------------------------------------------------------------------


def test_a_key_depends_on_everything() -> None:
    constraint = Constraint("regex", "a")
    rest = {"backend": "fsm", "vocabulary": "v", "version": "1"}
    constraints = [
        constraint,
        Constraint("ebnf", "a"),
        Constraint("regex", "b"),
        Constraint("regex", "a", "free"),
        Constraint("regex", "a", after="b"),
    ]
    keys = [artefact_key(c, naming_of(**rest)) for c in constraints]
    keys += [artefact_key(constraint, naming_of(**{**rest, name: "other"})) for name in rest]
    assert len(set(keys)) == len(keys) and set(map(len, keys)) == {64}
    assert artefact_key(Constraint("regex", "a"), naming_of(**rest)) == keys[0]


def test_other_code_has_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [compiler_version()]
    assert compiler_version() == versions[0]
    places = [
        ("scheduler_proc.grammar.cache", "cache"),
        ("srt.patterns", "__init__"),
        ("scheduler_proc.kernels", "__init__"),
    ]
    for folder, (module, file) in enumerate(places):
        for name in (f"{file}.py", "other.py", "inner/other.py"):
            path = tmp_path / str(folder) / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text("changed")
            monkeypatch.setattr(f"{module}.__file__", str(tmp_path / str(folder) / f"{file}.py"))
            versions.append(compiler_version())
    assert len(set(versions)) == len(versions)


def test_other_kernels_have_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels compute masks, or numpy does where there are no kernels."""
    versions = [compiler_version()]
    for content in (None, b"one", b"other"):
        monkeypatch.setattr("scheduler_proc.grammar.cache.LIBRARY", tmp_path / "library.so")
        if content is not None:
            (tmp_path / "library.so").write_bytes(content)
        versions.append(compiler_version())
    assert len(set(versions[1:])) == 3 and versions[0] not in versions[2:]


def test_other_unicode_tables_have_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's tables define the classes and cases of letters."""
    version = compiler_version()
    monkeypatch.setattr("unicodedata.unidata_version", "1.0.0")
    assert compiler_version() != version


# ---- where it is -----------------------------------------------------------------------------


def args(directory: str) -> ServerArgs:
    return msgspec.structs.replace(ServerArgs(), grammar_cache_dir=directory)


@pytest.mark.parametrize("choice", ["", "none"])
def test_no_cache(choice: str) -> None:
    assert open_cache(args(choice)) is None


def test_the_default_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert open_cache(args("auto")) is not None
    directory = tmp_path / "x" / "srt" / "grammars"
    assert directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_cache(args("auto")) is not None
    assert (tmp_path / "home" / ".cache" / "srt" / "grammars").is_dir()


def test_a_directory_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert open_cache(args(str(tmp_path / "file" / "cache"))) is None
    assert "compiled grammars are not kept" in caplog.text
