"""CPU time of the processes below this one, read from /proc (Linux only)."""

from collections.abc import Iterator
from pathlib import Path

_NS = 1e9


def descendants(pid: int) -> Iterator[int]:
    """All processes that `pid` has started, directly or not, and that still run."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """The processes that `pid` itself has started, and that still run."""
    return [int(child) for task in _tasks(pid) for child in _text(task / "children").split()]


def module_of(pid: int) -> str:
    """What `python -m` runs in the process; "" if it runs something else, or has ended."""
    words = _text(Path(f"/proc/{pid}/cmdline")).split("\0")
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


def cpu_seconds(pid: int, engine_module: str = "scheduler_proc") -> dict[str, float]:
    """Seconds of CPU time so far of the processes that `pid` has started, by module.

    Of `engine_module` only the process's first thread and ZeroMQ's count: the others are the
    model's. Processes and threads that end meanwhile may be left out.
    """
    totals: dict[str, float] = {}
    for child in descendants(pid):
        module = module_of(child)
        for task in _tasks(child):
            is_ours = int(task.name) == child or _text(task / "comm").startswith("ZMQ")
            if module == engine_module and not is_ours:
                continue
            totals[module] = totals.get(module, 0.0) + _spent_s(task)
    return totals


def cpu_seconds_below(pid: int) -> dict[str, float]:
    """Seconds of CPU time so far by the module of each process that `pid` has started, with those
    that this one has started."""
    totals: dict[str, float] = {}
    for child in children(pid):
        module = module_of(child)
        spent = sum(
            _spent_s(task) for each in (child, *descendants(child)) for task in _tasks(each)
        )
        totals[module] = totals.get(module, 0.0) + spent
    return totals


def seconds_of(pid: int) -> float:
    """Seconds of CPU time so far of one process's threads; 0 if it has ended."""
    return sum(map(_spent_s, _tasks(pid)))


def added(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What has been added since `before`."""
    return {module: total - before.get(module, 0.0) for module, total in after.items()}


def _spent_s(task: Path) -> float:
    """CPU time of a thread; 0 if it has ended."""
    spent_ns, *_ = _text(task / "schedstat").split() or ["0"]
    return int(spent_ns) / _NS


def _tasks(pid: int) -> list[Path]:
    """The threads of a process; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _text(path: Path) -> str:
    """The text of a file; empty if its thread has ended."""
    try:
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
