"""What a process that ends by its own doing, by a crash, an error or a hang, leaves in a file. One
that is killed from outside leaves nothing: so the next one can tell them apart.
"""

import faulthandler
from pathlib import Path


class LastWords:
    """The file. `found` is what the last process has left; it is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found = path.read_text(errors="replace") if path.exists() else ""
        path.write_bytes(b"")

    def listen(self) -> None:
        """If a signal such as SIGSEGV ends this process, leave the stacks of all threads."""
        faulthandler.enable(open(self._path, "a"))  # noqa: SIM115

    def write(self, text: str) -> None:
        """Leave this."""
        with open(self._path, "a") as file:
            file.write(text)
