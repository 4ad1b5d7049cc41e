"""A program on a terminal of its own, driven as a person would."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import SOON_S

_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07]*\x07")

UP, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b\r", "\x03", "\x04"


def pasted(text: str) -> str:
    """As terminals send what is pasted."""
    return f"\x1b[200~{text}\x1b[201~"


class Terminal:
    """A running program. `text` is all that it has written, without escape sequences."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        # It answers no questions about the place of the cursor.
        more = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, **more},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        os.close(theirs)
        self._raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        return _SEQUENCES.sub("", self._raw.decode(errors="replace"))

    def write(self, keys: str) -> None:
        data = keys.encode()
        while data:
            self._read(0.0)  # a full pipe in the other direction would block both
            data = data[os.write(self._ours, data[:1024]) :]

    def wait_for(self, text: str, timeout_s: float = SOON_S) -> str:
        """Read until `text` comes, after what was waited for before; returns what came until it."""
        deadline = time.monotonic() + timeout_s
        while (at := self.text.find(text, self._seen)) < 0:
            is_open = self._read(0.1)
            assert is_open and time.monotonic() < deadline, (text, self.text)
        came = self.text[self._seen : at]
        self._seen = at + len(text)
        return came

    def wait_end(self, timeout_s: float = SOON_S) -> int:
        """The exit status."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self._read(0.1)
            assert time.monotonic() < deadline, self.text
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self, wait_s: float) -> bool:
        """Take what is there; False at the end."""
        while select.select([self._ours], [], [], wait_s)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return False
            if not data:
                return False
            self._raw += data
            wait_s = 0.0
        return True
