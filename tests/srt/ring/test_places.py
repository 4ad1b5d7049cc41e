"""What lies in a ring's directory, and who may read it."""

import errno
import os
from pathlib import Path

import pytest

from srt.args import ServerArgs
from srt.ring.places import create_ring
from srt.wire.errors import ConfigError


def test_keys_are_for_the_servers_user_only(tmp_path: Path) -> None:
    ring = create_ring(ServerArgs(ring_dir=str(tmp_path / "ring"), api_key="sesame"))
    assert ring.directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in ring.directory.iterdir()}
    assert modes == {"args.json": 0o600, "page_key": 0o600}
    assert ring.read_args().api_key == "sesame"


def test_each_ring_has_a_page_key_of_its_own(tmp_path: Path) -> None:
    keys = set()
    for name in "ab":
        ring = create_ring(ServerArgs(ring_dir=str(tmp_path / name)))
        keys.add(ring.read_page_key())
    assert len(keys) == 2 and all(len(key) >= 20 for key in keys)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """And nothing is left on it."""

    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ConfigError, match=r"bytes are needed: make room, or .* --ring-dir"):
        create_ring(ServerArgs(ring_dir=str(tmp_path / "ring")))
    assert not (tmp_path / "ring").exists()


def test_no_temporary_directory_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the only disk is full."""
    full = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    def refuse() -> str:
        raise full

    monkeypatch.setattr("tempfile.gettempdir", refuse)
    told = r"can be written \(No usable .* in \['/tmp'\]\): is the disk full\? .* --ring-dir"
    with pytest.raises(ConfigError, match=told):
        create_ring(ServerArgs())


def test_other_errors_of_the_disk_are_told_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="Input/output"):
        create_ring(ServerArgs(ring_dir=str(tmp_path / "ring")))
    assert not (tmp_path / "ring").exists()


def test_a_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for place in ("/proc/ring", tmp_path / "file" / "ring"):
        with pytest.raises(ConfigError, match=r"ring cannot be made: .*; choose .* --ring-dir"):
            create_ring(ServerArgs(ring_dir=str(place)))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("x" * 90)))
    with pytest.raises(ConfigError, match=r"is too long .* a shorter one by --ring-dir"):
        create_ring(ServerArgs())


def test_a_file_system_without_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Socket:
        def __init__(self, family: int) -> None: ...

        def __enter__(self) -> "Socket":
            return self

        def __exit__(self, *exc: object) -> None: ...

        def bind(self, path: str) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("srt.ring.places.socket.socket", Socket)
    with pytest.raises(ConfigError, match="ring cannot hold sockets: Operation not permitted"):
        create_ring(ServerArgs(ring_dir=str(tmp_path / "ring")))
    assert not (tmp_path / "ring").exists()
