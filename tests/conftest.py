"""Fixtures for all tests. A server takes seconds to start, so the healthy one is shared; all tests
that use it run in one process (`running/groups.py`). `e2e/conftest.py` has more servers.

torch computes with one thread, here and in the processes that tests start: several threads, when
other work such as the tests' servers interrupts them, take up to 30 times the CPU time.

Where there is no GPU, Triton interprets its kernels on the CPU. It decides so when it is imported.

Nothing uses TLS, so httpx2 finds no root certificates: each new client would take 60 ms of CPU time
to load them.
"""

import gc
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from srt.llm import LLM
from srt.offline.engine import Engine
from tests.e2e.server import Server, running_server
from tests.running import profiles, report
from tests.running.groups import Groups, wants_torch
from tests.waiting import SOON_S

gc.disable()  # until all tests are collected: nothing that they import is garbage
os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # it has no certificates


def pytest_addoption(parser: pytest.Parser) -> None:
    profiles.add_option(parser)
    report.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    profiles.choose(config)
    config.pluginmanager.register(Groups(config))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(report.Report(config))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules that the profile selects no test of need not be imported. Where there is no torch
    (`make test-native`), nor can those that compare with it."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if profiles.leaves_out(collection_path):
        return True
    has_torch = importlib.util.find_spec("torch") is not None
    return True if not has_torch and wants_torch(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    profiles.mark_drawing_tests(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What exists now lives to the end: each full garbage collection would take most of a second
    to look at all modules and tests again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the embedded model that checks the scheduler's books after every step, and has
    memory for as many requests as may run. Tests must leave it idle; at the end every slot must be
    free or in the tree."""
    args = ("--check-invariants", "--max-total-tokens", "32768")
    patient = ("--max-queue-wait", "600")  # refuses nothing on a slow machine
    with running_server(tmp_path_factory.mktemp("server"), *args, *patient) as server:
        yield server
        server.wait_idle()


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The same without HTTP, and with a pool of 8,192 tokens."""
    with LLM("smollm2", max_total_tokens=8192, check_invariants=True) as llm:
        yield llm
        engine = llm.engine
        deadline = time.monotonic() + SOON_S
        while engine.stats()["num_running_reqs"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats()["num_used_tokens"] == 0


@pytest.fixture(scope="session")
def engine(llm: LLM) -> Engine:
    """That of `llm`."""
    return llm.engine
