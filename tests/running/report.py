"""What a run of the tests says of itself: how long it takes, which longer ones there are, and which
tests failed among others and pass alone."""

from pathlib import Path
from typing import Any

import pytest

# Of each profile: how long it takes on two quiet cores, and what the longer ones are.
ABOUT = {
    "short": "Each capability once: 4 to 6 minutes on two cores. All tests: make test-full. The\n"
    "long forms: make test-slow. The page in a browser: make test-ui.",
    "full": "All tests but the slow ones and the page's: 16 to 26 minutes on two cores.",
    "rest": "What make test did not run: 12 to 20 minutes on two cores.",
    "slow": "The long forms: hours.",
    "ui": "The page in a browser: some minutes.",
}


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--flaky",
        metavar="FILE",
        help="append the ids of the tests that pass to this file, when those run that have failed",
    )


class Report:
    """Hooks of pytest and xdist, in the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._profile: str = config.getoption("--profile")
        self._flaky: str | None = config.getoption("--flaky")
        self._passed: list[str] = []
        self._broken_by: list[str] = []
        self._terminal: Any = None
        self._count = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        self._say(ABOUT[self._profile])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._say_count(len(ids))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._say_count(len(session.items))

    def _say_count(self, count: int) -> None:
        if count and not self._count:
            self._count = count
            self._say(f"{count:,} tests.")

    def _say(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.write_line(text)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)
        if report.when == "setup":
            self._broken_by += [
                str(it) for name, it in report.user_properties if name == "broken by"
            ]

    def pytest_terminal_summary(self) -> None:
        for test in self._broken_by:
            self._say(f"The server for tests that kill was started again after {test}.")
        if self._flaky is not None and self._passed:
            self._say("flaky: they failed among others and pass alone:")
            for test in self._passed:
                self._say(f"  {test}")
            with Path(self._flaky).open("a") as file:
                file.writelines(f"{test}\n" for test in self._passed)
