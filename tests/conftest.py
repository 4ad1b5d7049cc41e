"""Fixtures for all tests. A server takes seconds to start, so the healthy one is shared.

torch computes with one thread, here and in the processes that tests start: several threads, when
other work such as the tests' servers interrupts them, take up to 30 times the CPU time.

A random case never fails because it is slow: a busy machine takes ten times as long. Hypothesis
draws 50 of them, others in each run.

Where there is no GPU, Triton interprets its kernels on the CPU. It decides so when it is imported.

Nothing uses TLS, so httpx finds no root certificates: each new client would take 60 ms of CPU time
to load them.
"""

import gc
import importlib.util
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from srt.offline.engine import Engine
from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

_WANTS_TORCH = re.compile(
    r"^(import|from) (torch|transformers|PIL|av|tests\.(checkpoints_vision|e2e\.reference))",
    re.MULTILINE,
)

gc.disable()  # until all tests are collected: nothing that they import is garbage
os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # it has no certificates

settings.register_profile(
    "ours", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ours")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs all tests of a file, which share its servers, and one all tests that need
    transformers' model, which takes 20 s to load."""

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            uses_reference = "tests.e2e.reference" in (config.rootpath / file).read_text()
            return "reference" if uses_reference else file

    return ByFile(config, log)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where there is no torch (`make test-native`), files of tests that compare with it."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    is_left_out = importlib.util.find_spec("torch") is None and _WANTS_TORCH.search(
        collection_path.read_text()
    )
    return True if is_left_out else None


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
def engine() -> Iterator[Engine]:
    """The same without HTTP, and with a pool of 8,192 tokens."""
    with Engine(max_total_tokens=8192, check_invariants=True) as engine:
        yield engine
        deadline = time.monotonic() + SOON_S
        while engine.stats()["num_running_reqs"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats()["num_used_tokens"] == 0
