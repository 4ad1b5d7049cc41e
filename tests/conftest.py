"""Fixtures for all tests. A server takes seconds to start, so the healthy one is shared.

torch computes with one thread, here and in what the tests start: threads that wait for each other
beside other work, the tests' own servers included, take up to 30 times the CPU time.

Nothing speaks TLS: that every new httpx client loads root certificates, in 60 ms of CPU time, is of
no use.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from srt.engine import Engine
from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # which has none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share its servers, so one process runs them; and those that need transformers'
    model too, which takes 20 s to load."""
    for item in items:
        module = vars(getattr(item, "module", item))
        uses_reference = "reference_logits" in module or "reference_model" in module
        group = "reference" if uses_reference else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the embedded model with the scheduler's books checked after every step. Tests
    must leave it idle; at the end every slot must be free or in the tree."""
    args = ("--check-invariants", "--max-queue-wait", "600")  # however slow the machine is
    with running_server(tmp_path_factory.mktemp("server"), *args) as server:
        yield server
        server.wait_idle()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """As `server` is, without HTTP and with a pool of 8,192 tokens."""
    with Engine(max_total_tokens=8192, check_invariants=True) as engine:
        yield engine
        deadline = time.monotonic() + SOON_S
        while engine.stats()["num_running_reqs"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats()["num_used_tokens"] == 0
