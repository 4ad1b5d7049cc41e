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
        help="append to this file the tests that failed in the last run and pass in this one (with "
        "--last-failed), and else what running tests again does not make good, after a '!'; only "
        "--flaky=FILE: pytest looks for its settings beside a file named alone",
    )


class Report:
    """Hooks of pytest and xdist, in the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._profile: str = config.getoption("--profile")
        self._file: str | None = config.getoption("--flaky")
        self._is_again: bool = config.getoption("lf", False)
        self._passed: list[str] = []
        self._ended: set[str] = set()
        self._grave: list[str] = []  # what is no test's failure
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
        test = report.nodeid
        if report.when == "call" and report.passed:
            self._passed.append(test)
        if report.when == "setup":
            broken = (value for name, value in report.user_properties if name == "broken by")
            self._grave += [
                f"The server for tests that kill did not recover from {it}" for it in broken
            ]
        if report.when == "teardown":
            self._ended.add(test)
            if report.failed:
                self._grave.append(f"What is torn down after {test} was not as it should be")
            torch = [group for name, group in report.user_properties if name == "loads torch"]
            for group in torch:
                self._say(f"{test} loads torch, in the group {group} (tests/running/groups.py)")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A server that does not recover fails the run, though no test does."""
        if len(self._ended) < self._count and not session.config.option.collectonly:
            self._grave.append(f"{self._count - len(self._ended)} tests have not been run")
        if self._grave and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self) -> None:
        for text in self._grave:
            self._say(f"{text}.")
        lines = [f"! {text}" for text in self._grave]
        if self._is_again and self._passed:
            self._say("flaky: they failed among others and pass alone:")
            for test in self._passed:
                self._say(f"  {test}")
            lines += self._passed
        if self._file is not None:
            with Path(self._file).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
