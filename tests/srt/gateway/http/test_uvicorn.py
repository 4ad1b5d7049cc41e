"""uvicorn's names that we override or read, most of them undocumented: `pyproject.toml` has a
ceiling, and these tests say what a later uvicorn lacks."""

import asyncio
import inspect

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from srt.gateway.http.server import BoundedProtocol, _Uvicorn

OVERRIDDEN = [
    *((BoundedProtocol, name) for name in ("connection_made", "connection_lost", "data_received")),
    *((BoundedProtocol, name) for name in ("pause_writing", "resume_writing", "send_400_response")),
    (BoundedProtocol, "on_response_complete"),
    (BoundedProtocol, "_unsupported_upgrade_warning"),
    *((_Uvicorn, name) for name in ("capture_signals", "main_loop", "shutdown")),
]


@pytest.mark.parametrize(("ours", "name"), OVERRIDDEN)
def test_what_we_override_is_there_and_takes_the_same(ours: type, name: str) -> None:
    assert name in vars(ours)
    theirs = getattr(ours.__base__, name)
    assert [*inspect.signature(theirs).parameters] == [
        *inspect.signature(getattr(ours, name)).parameters
    ]
    assert inspect.iscoroutinefunction(theirs) == inspect.iscoroutinefunction(getattr(ours, name))


async def test_what_we_read_is_there() -> None:
    config = uvicorn.Config(lambda: None)
    config.load()
    protocol = H11Protocol(config, ServerState(), {})
    read = ("app", "client", "conn", "cycle", "flow", "logger", "loop", "transport", "shutdown")
    assert [name for name in read if not hasattr(protocol, name)] == []
    read_of_cycle = {"response_complete", "disconnected", "flow", "transport", "conn"}
    assert read_of_cycle <= {*RequestResponseCycle.__init__.__code__.co_names}
    assert "write_paused" in vars(FlowControl(asyncio.Transport()))
    assert "_writer" in vars(protocol.conn)
    server = uvicorn.Server(config)
    server_names = ("on_tick", "server_state", "should_exit", "started", "serve")
    assert [name for name in server_names if not hasattr(server, name)] == []
    assert {"connections", "tasks"} <= vars(server.server_state).keys()
