"""One process that the supervisor starts, and what is known of it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

from srt.wire.ring_state import Facts, Heartbeat

# What ends a part. Not SIGTERM, which all of a service may get while requests are to end.
STOP_SIGNAL = signal.SIGUSR1
MODULES = {
    "tokenizer": "tokenizer_proc",
    "scheduler": "scheduler_proc",
    "detokenizer": "detokenizer_proc",
    "compiler": "scheduler_proc.grammar.worker",
    "programs": "srt.programs",
    "hub": "srt.cluster",
    "gateway": "srt.gateway",
}


@dataclass
class Child:
    """The part's present process, or its last. `state` is "starting", "ready" or "dead"."""

    part: str
    replica: int | None = None  # of a scheduler
    process: subprocess.Popen[bytes] | None = None
    state: str = "starting"
    started_at: float = 0.0
    restarts: int = 0
    has_served: bool = False
    made_progress: bool = False  # since its start
    is_silent: bool = False  # for too long
    beat: Heartbeat | None = None
    beat_at: float = 0.0
    facts: Facts | None = None  # as last told, also by a process before
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        """Of the present process; 0 if there is none."""
        return 0 if self.process is None or self.state == "dead" else self.process.pid

    def start(
        self,
        directory: Path,
        epoch: int,
        incarnations: Sequence[int],
        death_fd: int,
        listener: socket | None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in the ring of `directory`; the end of the file descriptor `death_fd` is
        the launcher's. `listener` is the gateway's."""
        command = [sys.executable, "-m", MODULES[self.part.partition(".")[0]], str(directory)]
        command += [str(epoch), ",".join(map(str, incarnations)), str(death_fd)]
        fds = [death_fd]
        command += self._arguments()
        if listener is not None:
            fds.append(listener.fileno())
            command.append(str(listener.fileno()))
        self.process = subprocess.Popen(
            command,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            preexec_fn=_leave_stops_to_launcher,
        )
        self.exited.clear()
        self.state, self.beat = "starting", None
        self.started_at = self.beat_at = time.monotonic()
        self.made_progress = self.is_silent = False
        return self.process

    def _arguments(self) -> list[str]:
        """What this part gets besides what all get."""
        return [] if self.replica is None else [str(self.replica)]


class RemoteChild(Child):
    """A scheduler of another machine, whose process is none of this one's. While no machine has its
    place its state is "absent"."""


@dataclass
class NodeChild(Child):
    """A scheduler on the machine of an agent, where its number is `share`."""

    share: int = 0

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), str(self.share)]


def described(status: int) -> str:
    """How a process has ended, from a Popen's status."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-status, f'signal {-status}')}"


def _leave_stops_to_launcher() -> None:
    """Ignore Ctrl-C, which reaches the whole process group, and SIGTERM, which a service manager
    sends to all of a service: the launcher drains, and ends its children by STOP_SIGNAL."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _environment() -> dict[str, str]:
    """An environment in which children find the packages that the launcher finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
