"""Servers that the end-to-end tests share, beside the healthy one of `tests/conftest.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sacrificial import Sacrificial
from tests.e2e.server import Server, running_server

# Of the server with keys: those of its file and of its command line.
KEYS = ("victims-key", "attackers-key", "from-the-file", "from-the-command-line")
ADMIN = "admins-key"


@pytest.fixture(scope="session")
def sacrificial_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrificial]:
    """See `sacrificial`; this one serves fixtures of a module."""
    sacrificial = Sacrificial(tmp_path_factory)
    yield sacrificial
    sacrificial.end()


@pytest.fixture
def sacrificial(sacrificial_server: Sacrificial, request: pytest.FixtureRequest) -> Server:
    """A server whose parts tests may kill or stop. It is whole when a test begins: by itself after
    what the test before has done to it. Else it is started anew, and the run fails."""
    server = sacrificial_server.whole()
    while sacrificial_server.broken_by:
        request.node.user_properties.append(("broken by", sacrificial_server.broken_by.pop()))
    sacrificial_server.user = request.node.nodeid
    return server


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with API keys, from its command line and from the file `keys` beside `directory`,
    which everybody may read; with pages of two origins that may ask it; and strict about names."""
    tmp: Path = tmp_path_factory.mktemp("keyed")
    keys = tmp / "keys"
    keys.write_text(f"{KEYS[0]}\n{KEYS[1]}\n\n  {KEYS[2]}  \n")
    keys.chmod(0o644)
    options = ["--api-key-file", str(keys), "--api-key", KEYS[3], "--admin-api-key", ADMIN]
    options += ["--response-store-mib", "1", "--max-queue-wait", "600", "--stream-interval", "4"]
    options += ["--cors-allow-origins", "https://app.example, https://b.example"]
    options += ["--strict-model", "--unknown-fields", "refuse"]
    with running_server(tmp, *options) as server:
        yield server


@pytest.fixture(scope="session")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that drafts from a request's own text alone, in a pool that does not hold many
    requests at once."""
    args = ("--speculative", "own", "--speculative-max-tokens", "6", "--max-total-tokens", "3000")
    tmp = tmp_path_factory.mktemp("guessing")
    with running_server(tmp, *args, "--check-invariants") as server:
        yield server
        server.wait_idle()
