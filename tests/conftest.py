"""Fixtures for all tests. A server takes seconds to start, so the healthy one is shared."""

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the embedded model with the scheduler's books checked after every step. Tests
    must leave it idle; at the end every slot must be free or in the tree."""
    with running_server(tmp_path_factory.mktemp("server"), "--check-invariants") as server:
        yield server
        server.wait_idle()
