"""What the gateway's tests share: an application over a fake client, and ways to reach it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
import msgspec
from starlette.types import ASGIApp

from srt.files.vocab import Vocab
from srt.gateway.app import app_of, gateway_over
from srt.gateway.context import GatewayInfo
from srt.gateway.http.server import GatewayServer
from srt.ring.listener import bind_listener
from tests.fakes import DEFAULT_PIECES, READY, FakeClient

INFO = GatewayInfo(
    model_name="tiny",
    model_path="/models/tiny.gguf",
    tokenizer_path="/models/tiny.gguf",
    context_len=2048,
    max_total_tokens=4096,
    version="0.1",
    page_key="page",
    allowed_hosts=("gateway", "x"),  # as the tests call it
    server_args={"port": 30000, "api_key": "sesame"},
)


def fake_vocab(pieces: tuple[str, ...] = DEFAULT_PIECES, template: str = "") -> Vocab:
    """A vocabulary of 1000 ids: 100, 101, ... are `pieces`, the fake client's answer; 2 is the end
    token, and any other id, such as 5, is written `t5`."""
    token_bytes = [f"t{i}".encode() for i in range(1000)]
    token_bytes[2] = b"<end>"
    token_bytes[100 : 100 + len(pieces)] = [piece.encode() for piece in pieces]
    return Vocab("tiny", token_bytes, frozenset({2}), (2,), None, False, 2048, template or None)


VOCAB = fake_vocab()
PAGE = {"authorization": "Bearer page"}


def _app(client: FakeClient, info: dict[str, Any]) -> ASGIApp:
    vocab = fake_vocab(client.pieces, info.pop("template", ""))
    if call_format := info.pop("call_format", ""):
        client.ring = msgspec.structs.replace(READY, call_format=call_format)
    loader, programs = info.pop("loader", None), info.pop("programs", None)
    gateway = gateway_over(client, msgspec.structs.replace(INFO, **info), vocab, programs)
    if loader is not None:
        gateway.media = loader
    return app_of(gateway)


@asynccontextmanager
async def in_process(client: FakeClient, **info: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client that calls the application directly, without a socket."""
    transport = httpx2.ASGITransport(app=cast(Any, _app(client, info)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        yield http


def listener() -> socket.socket:
    """A socket for a server, at any free port."""
    return bind_listener("127.0.0.1", 0)


@asynccontextmanager
async def served(client: FakeClient, **info: Any) -> AsyncIterator[GatewayServer]:
    """The application on a real socket."""
    options = {name: info.pop(name) for name in ("max_connections", "proxies") if name in info}
    server = GatewayServer(_app(client, info), listener(), stream_grace_s=0.5, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "param", "retryable"} <= set(error)
    return error


def sse_payloads(text: str) -> list[Any]:
    """The JSON of every event; the stream must end with [DONE]."""
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames[:-2]]
