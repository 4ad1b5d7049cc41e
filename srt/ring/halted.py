"""What the kernel says of a ring's processes while their launcher, which else tells it, is silent.

A launcher that is stopped takes no notice of the end of a part: that stays a zombie, is not
replaced, and whoever waits for it would wait for ever.
"""

import functools
from enum import Enum
from pathlib import Path

from srt.wire.ring_state import RING_PARTS, RingEvent, scheduler_part

_PID_NAMESPACE = Path("/proc/self/ns/pid")
_ENDED, _STOPPED = "ZXx", "Tt"  # states in /proc/PID/stat


class Halted(Enum):
    """How a process does not run."""

    ENDED = "ended"
    STOPPED = "stopped"


@functools.cache
def pid_namespace() -> int:
    """Which processes the numbers mean that this process sees; 0 if that is not known."""
    try:
        return _PID_NAMESPACE.stat().st_ino
    except OSError:
        return 0


def halted_parts(event: RingEvent) -> dict[str, Halted]:
    """Those of the parts on each request's way that have ended or are stopped, as far as this
    process can see: none in another PID namespace, where the numbers mean other processes."""
    if event.pid_namespace == 0 or event.pid_namespace != pid_namespace():
        return {}
    replicas = len(event.incarnations)
    parts = [*RING_PARTS, *(scheduler_part(i, replicas) for i in event.ready_schedulers)]
    states = {part: _state(event.pids.get(part, 0)) for part in parts}
    return {part: state for part, state in states.items() if state is not None}


def _state(pid: int) -> Halted | None:
    """None if it runs, or is not known."""
    if pid == 0:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state = stat.rpartition(")")[2].split()[0]  # the name before it may hold anything
    if state in _ENDED:
        return Halted.ENDED
    return Halted.STOPPED if state in _STOPPED else None
