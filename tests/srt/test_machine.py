"""What is read of control groups, from files as systems write them."""

import os
from pathlib import Path

import pytest

from srt import machine


class Groups:
    """Folders in place of the system's, and the file that says which of them are ours."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "cgroup"
        self._own = folder / "own"
        self._own.write_text("0::/\n")
        self._folder.mkdir()
        monkeypatch.setattr(machine, "CONTROL_GROUPS", self._folder)
        monkeypatch.setattr(machine, "OWN_GROUPS", self._own)

    def own(self, text: str) -> None:
        self._own.write_text(text)

    def write(self, path: str, text: str) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return Groups(tmp_path, monkeypatch)


def test_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else may read it, whether it is new or was there; a device stays as it is, and what
    belongs to others."""
    new, old, read_only = tmp_path / "new", tmp_path / "old", tmp_path / "read-only"
    for path, mode in ((old, 0o666), (read_only, 0o444)):
        path.write_text("before")
        path.chmod(mode)
    umask = os.umask(0)
    try:
        for path in (new, old):
            with open(path, "w", opener=machine.private) as file:
                file.write("mine")
        open(read_only, opener=machine.private).close()
    finally:
        os.umask(umask)
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert found == {"new": 0o600, "old": 0o600, "read-only": 0o400}
    assert old.read_text() == "mine"
    before = os.stat(os.devnull).st_mode
    open(os.devnull, "w", opener=machine.private).close()
    assert os.stat(os.devnull).st_mode == before
    old.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: old.stat().st_uid + 1)
    open(old, "w", opener=machine.private).close()
    assert old.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("?", 8)]
)
def test_cpus_of_a_quota(groups: Groups, quota: str, cpus: int) -> None:
    groups.write("cpu.max", quota)
    assert machine.usable_cpus() == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("300000", 3)])
def test_cpus_of_a_quota_in_version_1(groups: Groups, quota: str, cpus: int) -> None:
    groups.own("3:cpu,cpuacct:/job\n1:name=systemd:/\n")
    groups.write("cpu/job/cpu.cfs_quota_us", quota)
    groups.write("cpu/job/cpu.cfs_period_us", "100000")
    assert machine.usable_cpus() == cpus


def test_the_narrowest_group_above_us_counts(groups: Groups) -> None:
    groups.own("0::/outer/inner\n")
    groups.write("outer/inner/cpu.max", "max 100000")
    groups.write("outer/cpu.max", "400000 100000")
    assert machine.usable_cpus() == 4
    groups.write("outer/inner/memory.max", "max")
    groups.write("outer/inner/memory.current", "1")
    groups.write("outer/memory.max", "1000000")
    groups.write("outer/memory.current", "400000")
    assert machine.memory_limit() == 1000000
    assert machine.memory_left() == machine.memory_available() == 600000
    groups.write("outer/memory.stat", "anon 100000\nactive_file 7\ninactive_file 250000\n")
    assert (machine.memory_left(), machine.memory_available()) == (600000, 850007)


def test_a_container_sees_its_group_at_the_root(groups: Groups) -> None:
    groups.own("5:memory:/docker/0123\n")
    groups.write("memory/memory.limit_in_bytes", "1000000")
    groups.write("memory/memory.usage_in_bytes", "300000")
    assert (machine.memory_limit(), machine.memory_left()) == (1000000, 700000)
    groups.write(
        "memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 150000\ntotal_active_file 50000\n",
    )
    assert machine.memory_available() == 900000


def test_without_groups_the_machine_counts(groups: Groups) -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_limit() == physical
    assert 0 < machine.memory_left() < physical
    assert 0 < machine.memory_available() < physical
    assert machine.usable_cpus() == 8


def test_the_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "srt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the rule says to leave alone
    monkeypatch.setenv("HOME", "/home/x")
    assert machine.cache_folder() == Path("/home/x/.cache/srt")

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OSError, match="no folder for caches"):
        machine.cache_folder()
