"""What may happen to children that another process forks."""

import os
import select
import signal

import pytest

from tokenizer_proc.children.forker import Forker, Life


class LateForker(Forker):
    """Starts when the first child is wanted: tests add kinds of children until then."""

    async def fork(self, kind: int) -> Life:
        if not self.pid:
            self.start()
        return await super().fork(kind)


def kill(pid: int) -> None:
    """Kill a process that another one waits for, and let it end."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a forker that has not started be unable to fork its first child."""
    fork, calls = os.fork, list[None]()

    def failing() -> int:
        calls.append(None)
        if len(calls) == 2:
            raise BlockingIOError(11, "no process left")
        return fork()

    monkeypatch.setattr(os, "fork", failing)
