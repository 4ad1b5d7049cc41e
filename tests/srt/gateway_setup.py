"""What the gateway's tests share: an application over a fake client, and ways to reach it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import msgspec

from srt.gateway.app import create_app
from srt.gateway.context import GatewayInfo
from srt.gateway.server import GatewayServer
from tests.fakes import FakeClient

INFO = GatewayInfo(
    model_name="tiny",
    model_path="/models/tiny.gguf",
    context_len=2048,
    max_total_tokens=4096,
    version="0.1",
    server_args={"port": 30000, "api_key": "sesame"},
)


@asynccontextmanager
async def in_process(client: FakeClient, **info: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client that calls the application directly, without a socket."""
    app = create_app(client, msgspec.structs.replace(INFO, **info))
    transport = httpx.ASGITransport(app=cast(Any, app))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        yield http


@asynccontextmanager
async def served(client: FakeClient, **info: Any) -> AsyncIterator[GatewayServer]:
    """The application behind a real socket."""
    app = create_app(client, msgspec.structs.replace(INFO, **info))
    server = GatewayServer(app, stream_grace_s=0.5)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "param", "retryable"} <= set(error)
    return error


def sse_payloads(text: str) -> list[Any]:
    """The JSON of every event; the stream must end with [DONE]."""
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames[:-2]]
