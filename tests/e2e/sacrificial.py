"""A server for tests that kill its parts, one after the other."""

import pytest

from tests.e2e.server import Server
from tests.waiting import SOON_S

STEP_TIMEOUT_S = 8.0  # of a step, and of a scheduler's silence
PART_TIMEOUT_S = 7.0  # of another part's silence
COMPILE_TIMEOUT_S = 8.0
OPTIONS = (
    *("--check-invariants", "--max-total-tokens", "32768", "--max-queue-wait", "600"),
    *("--step-timeout", str(STEP_TIMEOUT_S), "--part-timeout", str(PART_TIMEOUT_S)),
    *("--grammar-compile-timeout", str(COMPILE_TIMEOUT_S)),
)


class Sacrificial:
    """Its scheduler has the faults of `faulty_scheduler`."""

    def __init__(self, tmp: pytest.TempPathFactory) -> None:
        self._tmp = tmp
        self._server: Server | None = None
        self.user = ""  # the test that has it
        self.broken_by: list[str] = []  # not yet reported

    def whole(self) -> Server:
        """The server, ready and idle, with all slots free or in the tree. A new one if it is not
        so within a minute."""
        if self._server is not None:
            old, self._server = self._server, None
            try:
                old.wait_ready(SOON_S)
                old.wait_idle()
                self._server = old
                return old
            except Exception as error:
                self.broken_by.append(self.user)
                print(f"the server for tests that kill is broken: {error}")
                old.kill()
        tmp = self._tmp.mktemp("sacrificial")
        self._server = Server(tmp, *OPTIONS, launcher="tests.e2e.faulty_launch")
        self._server.wait_ready()
        return self._server

    def end(self) -> None:
        """Stop the server; its exit must be clean."""
        if self._server is not None:
            assert self._server.stop() == 0, self._server.log()
