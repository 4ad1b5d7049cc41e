"""The actor on a node: it keeps an agent, and says how that is. Nothing here imports Ray."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import srt
from srt.cluster.ray.kept_agent import KeptOptions

# What Ray sets for its workers: libraries would take this for the wish of whoever runs the agent.
_OF_RAY = frozenset({"OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV"})
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_HEALTHY_AFTER_S = 60.0


def agent_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An agent's environment: an actor's without what is Ray's, and with this package."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("RAY_") and name not in _OF_RAY
    }
    root = str(Path(srt.__file__).parents[1])
    paths = [root, *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


class Node:
    """Keeps an agent: starts it, and starts it again when it ends, after a pause that grows. The
    agent joins when `join` is called, once for each start: it has a new key each time."""

    def __init__(self, join: str, head: str, own: dict[str, Any], log_level: str) -> None:
        """The arguments are the fields of `KeptOptions`."""
        self._options = KeptOptions(join, head, own, log_level)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._public: str | None = None  # None: it has not said
        self._has_joined = False
        self._is_leaving = False
        self._starts = 0
        self._last = ""  # of what the agent has written
        # The system ends an agent with the thread that has started it: this one never ends.
        threading.Thread(target=self._keep, name="agent", daemon=True).start()

    def state(self) -> dict[str, Any]:
        """How the agent is: the public key of its present process ("" without keys), whether that
        waits to be let join, its number, how often it was started, and its last words if it is not
        there; and the machine's name."""
        with self._lock:
            process, public = self._process, self._public
            return {
                "public": public or "",
                "is_waiting": public is not None and not self._has_joined,
                "pid": 0 if process is None else process.pid,
                "starts": self._starts,
                "last": "" if process is not None else self._last,
                "host": socket.gethostname(),
            }

    def join(self, public: str) -> bool:
        """Let the agent with this public key join, which the head allows by now; False if it is not
        there any more."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or self._public != public:
                return False
            if not self._has_joined:
                with suppress(OSError):  # it has ended
                    process.stdin.write(b"\n")
                    process.stdin.flush()
            self._has_joined = True
            return True

    def leave(self, wait_s: float) -> bool:
        """End the agent for good, within so many seconds; False if it takes longer."""
        with self._lock:
            self._is_leaving = True
            process = self._process
            if process is None or process.stdin is None:
                return True
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_leaving:
            started = time.monotonic()
            self._run()
            if time.monotonic() - started > _HEALTHY_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _run(self) -> None:
        """Start an agent, and wait for its end."""
        with self._lock:
            if self._is_leaving:
                return
            try:
                process = _started()
            except OSError as error:  # the machine has too many processes, or no memory
                self._last = f"it cannot be started: {error}"
                return
            assert process.stdin and process.stdout and process.stderr
            self._process, self._public, self._has_joined = process, None, False
            self._starts += 1
            with suppress(OSError):
                process.stdin.write(msgspec.json.encode(self._options) + b"\n")
                process.stdin.flush()
        # What it writes before, its errors, is less than a pipe holds.
        line = process.stdout.readline().decode()
        with self._lock:
            self._public = line.strip() if line.endswith("\n") else None
        for error in process.stderr:
            text = error.decode(errors="replace")
            sys.stderr.write(text)
            sys.stderr.flush()
            self._last = text.strip() or self._last
        process.wait()
        with self._lock:
            self._process = self._public = None
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                stream.close()


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "srt.cluster.ray.kept_agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=agent_environment(os.environ),
        cwd="/",
        start_new_session=True,
    )
