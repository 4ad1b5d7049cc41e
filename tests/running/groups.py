"""Which process runs which tests: all that use a fixture of the session run in one, so that its
server is started once, and all that load torch or transformers, as that takes seconds.

Every process that runs tests finds the same groups in its collection. The process that hands the
tests out collects none: it reads the groups from a file that the others write.
"""

import json
import re
import shutil
import sys
import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.running import profiles

# Those that take longest, the longest first: what is begun last should be short. A group is named
# like the fixture that its tests share, or like a file if they share none.
LONGEST = ("server", "torch", "sacrificial", "engine", "keyed")
_WANTS_TORCH = re.compile(
    r"^ *(import|from) (torch|transformers|PIL|av)\b"
    r"|^ *from tests\.(checkpoints_vision|e2e\.reference|scheduler_proc\.kernels\.sampler"
    r"|scheduler_proc\.models\.(checkpoints|families)"
    r"|tokenizer_proc\.media\.(checkpoints|test_families)) import\b"
    r"|(find_spec|importorskip)\(\"xgrammar\""  # which imports torch
    r"|\blate\(\"(torch|transformers|scheduler_proc)\b",
    re.MULTILINE,
)
_FILE = "groups_file"
_GROUPS = pytest.StashKey[str]()


@cache
def wants_torch(file: Path) -> bool:
    """Whether a test module names torch, transformers, or what comes with them."""
    return bool(_WANTS_TORCH.search(file.read_text()))


def shared_by(item: pytest.Item) -> list[str]:
    """Our fixtures of the whole session that a test uses."""
    found = getattr(item, "_fixtureinfo", None)
    definitions = found.name2fixturedefs.items() if found is not None else ()
    return [
        name
        for name, of_name in definitions
        if of_name and of_name[-1].scope == "session" and of_name[-1].baseid.startswith("tests")
    ]


def group_tests(items: list[pytest.Item]) -> dict[str, str]:
    """The group of each test, by its id. Fixtures that one test uses are in one group."""
    joined: dict[str, str] = {}

    def first(name: str) -> str:
        while name in joined:
            name = joined[name]
        return name

    shared = {item.nodeid: shared_by(item) for item in items}
    for names in shared.values():
        if roots := sorted({first(name) for name in names}, key=rank):
            joined |= dict.fromkeys(roots[1:], roots[0])
    groups = {}
    for item in items:
        own = "torch" if wants_torch(item.path) else item.nodeid.partition("::")[0]
        groups[item.nodeid] = first(names[0]) if (names := shared[item.nodeid]) else own
    return groups


def rank(group: str) -> tuple[int, str]:
    """The place of a group among those that have one, before all others."""
    return (LONGEST.index(group), "") if group in LONGEST else (len(LONGEST), group)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole groups, in the order of the collection."""

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = json.loads(Path(self.config.stash[_GROUPS]).read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]


class Groups:
    """Hooks of pytest and xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = getattr(config, "workerinput", {}).get(_FILE)
        self._config = config
        self._groups: dict[str, str] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """In the process that hands tests out: name the file to one that runs them."""
        if _GROUPS not in self._config.stash:
            folder = tempfile.mkdtemp(prefix="groups-")
            self._config.stash[_GROUPS] = str(Path(folder) / "groups.json")
        node.workerinput[_FILE] = self._config.stash[_GROUPS]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        config.option.loadscopereorder = False
        return ByGroup(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Without xdist too: a server of the session then ends before the next one starts."""
        self._groups = group_tests(items)
        items.sort(key=lambda item: rank(self._groups[item.nodeid])[0])
        if self._file is not None:
            own = Path(f"{self._file}.{self._config.workerinput['workerid']}")  # type: ignore[attr-defined]
            own.write_text(json.dumps(self._groups))
            own.replace(self._file)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """A test of another group that loads torch does so in a second process: it is named."""
        before = "torch" in sys.modules
        result = yield
        is_short = self._file is not None and profiles.chosen() == profiles.PROFILES["short"]
        if is_short and not before and "torch" in sys.modules:
            if (group := self._groups[item.nodeid]) != "torch":
                item.user_properties.append(("loads torch", group))
        return result

    def pytest_unconfigure(self) -> None:
        if self._file is None and _GROUPS in self._config.stash:
            shutil.rmtree(Path(self._config.stash[_GROUPS]).parent, ignore_errors=True)
