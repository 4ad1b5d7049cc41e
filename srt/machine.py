"""What this process may use of the machine: CPUs, memory, open files, a folder for caches; how it
keeps what users write to itself; and the machine's class."""

import math
import mmap
import os
import platform
import resource
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY_INFO = Path("/proc/meminfo")


def cache_folder() -> Path:
    """Where we keep what can be made again. Raises OSError where this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "srt"
    try:
        return Path.home() / ".cache" / "srt"
    except RuntimeError as error:
        raise OSError(f"there is no folder for caches: {error}") from None


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: the file is readable by this user only, new or not. What is no
    regular file, such as /dev/stdout, keeps its mode, and so does what belongs to another user,
    even if this one is root."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    if is_own and stat.S_IMODE(found.st_mode) & 0o077:
        with suppress(PermissionError):  # a file system without modes
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & 0o700)
    return fd


def allow_files(wanted: int) -> int:
    """Raise this process's limit of open files to `wanted`, or as near to it as it may be. Returns
    which of the two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def machine() -> dict[str, Any]:
    """The class of the machine, for a report."""
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def cpu_name() -> str:
    """The model of its processor, as far as the system says it."""
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """Who made its processor: `AuthenticAMD`, `GenuineIntel`; "" where the system does not say."""
    return _cpu_fact("vendor_id")


def _cpu_fact(name: str) -> str:
    """Of the first processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def usable_cpus() -> int:
    """The CPUs that may run this process, or as many whole ones as its control group has time for;
    at least 1."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for folder in _groups("cpu"):
        with suppress(OSError, ValueError):  # not this version of control groups, or no limit
            quota, period = (folder / "cpu.max").read_text().split()
            cpus = min(cpus, math.floor(int(quota) / int(period)))
        with suppress(OSError, ValueError):
            allowed = int((folder / "cpu.cfs_quota_us").read_text())
            if allowed > 0:
                of = int((folder / "cpu.cfs_period_us").read_text())
                cpus = min(cpus, math.floor(allowed / of))
    return max(1, cpus)


def memory_limit() -> int:
    """Bytes of memory that the machine has, or that the control group may take."""
    physical: int = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return min([physical, *(most for most, _, _ in _group_memory())])


def memory_left() -> int:
    """Bytes that are free and that the control group, if any, may still take."""
    free: int = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    return min([free, *(most - used for most, used, _ in _group_memory())])


def memory_available() -> int:
    """Bytes that can be had without swapping: what is free, and cached files."""
    available: int = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMORY_INFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        available = int(line.split()[1]) * 1024
    return min([available, *(most - used + cached for most, used, cached in _group_memory())])


def _group_memory() -> Iterator[tuple[int, int, int]]:
    """The limit and the use of each control group that this process is in, and how much of the use
    are cached files that it gives up when it needs memory, in bytes."""
    for folder in _groups("memory"):
        for limit, used, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            with suppress(OSError, ValueError):
                sizes = int((folder / limit).read_text()), int((folder / used).read_text())
                yield *sizes, _cached_files(folder, prefix)


def _cached_files(group: Path, prefix: str) -> int:
    """Active ones too: a model that was read twice is among them."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        sizes = {line[0]: int(line[1]) for line in lines if len(line) == 2}
        return sum(sizes.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
    return 0


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, from its own outwards. Version 1 has a tree for
    each controller. A container sees its own group at the root, whatever its path says."""
    paths = {"": "/", controller: "/"}
    with suppress(OSError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update((name, path) for name in controllers.split(",") if name in paths)
    for name, path in paths.items():
        tree = CONTROL_GROUPS / name
        folder = tree / path.lstrip("/")
        while folder != tree:
            yield folder
            folder = folder.parent
        yield tree
