"""CPU time of the processes below this one, read from /proc (Linux only)."""

from collections.abc import Iterator
from pathlib import Path

_NS = 1e9


def descendants(pid: int) -> Iterator[int]:
    """All processes that `pid` has started, directly or not, and that run."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from descendants(child)


def module_of(pid: int) -> str:
    """What `python -m` runs in the process; "" if it runs something else."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


def cpu_seconds(pid: int, engine_module: str = "scheduler_proc") -> dict[str, float]:
    """Seconds of CPU time so far of the processes that `pid` has started, by module.

    Of `engine_module` only the process's first thread counts, and ZeroMQ's: the others are the
    model's.
    """
    totals: dict[str, float] = {}
    for child in descendants(pid):
        module = module_of(child)
        for task in Path(f"/proc/{child}/task").iterdir():
            is_ours = int(task.name) == child or (task / "comm").read_text().startswith("ZMQ")
            if module == engine_module and not is_ours:
                continue
            seconds = int((task / "schedstat").read_text().split()[0]) / _NS
            totals[module] = totals.get(module, 0.0) + seconds
    return totals


def added(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What has been added since `before`."""
    return {module: total - before.get(module, 0.0) for module, total in after.items()}
