"""The HTTP socket, and the limit of open files for its connections."""

import resource
import socket
import subprocess
import sys

import pytest

from srt.ring.listener import bind_listener, url_of
from srt.wire.errors import ConfigError

LIMITS = """
import logging, resource, sys
from srt.ring.listener import allow_connections

logging.basicConfig(format="%(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
for count in (10, 500, 5000, 10):
    allow_connections(count)
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_free_port_and_a_taken_one() -> None:
    with bind_listener("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            bind_listener("127.0.0.1", port)


def test_a_peer_that_has_gone_without_a_word_is_noticed() -> None:
    """An answer may take as long as it likes, so nothing else ends its connection."""
    with bind_listener("127.0.0.1", 0) as sock:
        sock.setblocking(True)
        with socket.create_connection(sock.getsockname()), sock.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            if not all(hasattr(socket, name) for name in names):
                pytest.skip("this system has no such options")
            idle, between, count = (
                accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
            )
            assert idle + between * count <= 120


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1000, reason="needs a higher limit"
)
def test_the_limit_of_files_is_raised_as_far_as_it_goes() -> None:
    """It is never lowered; if it is too low, a line says so."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "(300, 1000)",
        "(756, 1000)",
        "5000 connections need 5256 open files, 1000 are allowed",
        "(1000, 1000)",
        "(1000, 1000)",
    ]
