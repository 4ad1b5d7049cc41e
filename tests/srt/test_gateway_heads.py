"""Heads of requests: two lengths, many fields, large ones, and HEAD."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from srt.gateway.heads import MAX_HEAD_BYTES, MAX_HEADERS
from tests.fakes import FakeClient
from tests.srt.gateway_setup import served
from tests.waiting import SOON_S

BODY = json.dumps({"text": "a"}).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def answers(head: str, rest: bytes) -> bytes:
    """All that the server says until it closes the connection."""
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode() + b"\r\n" + rest)
        async with asyncio.timeout(SOON_S):
            said = await reader.read()
        writer.close()
        return said


def generate(*fields: str) -> str:
    return "".join(f"{line}\r\n" for line in ("POST /generate HTTP/1.1", "Host: x", *fields))


def error(answer: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return dict(body["error"])


@pytest.mark.parametrize("length", [len(BODY), len(CHUNKED), 0])
async def test_two_lengths_close_the_connection(length: int) -> None:
    """What follows, which a proxy may have taken for a part of the body, is not answered."""
    head = generate(f"Content-Length: {length}", "Transfer-Encoding: chunked")
    answer = await answers(head, CHUNKED + NEXT)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
    assert "both Content-Length and Transfer-Encoding" in error(answer)["message"]


async def test_the_number_of_fields() -> None:
    async with served(FakeClient()) as server, httpx.AsyncClient(base_url=server.url) as http:
        few = {f"x-{i}": "y" for i in range(MAX_HEADERS - 20)}
        assert (await http.post("/generate", json={"text": "a"}, headers=few)).status_code == 200
        many = {f"x-{i}": "y" for i in range(MAX_HEADERS)}
        refused = await http.post("/generate", json={"text": "a"}, headers=many)
    assert refused.status_code == 400
    assert f"at most {MAX_HEADERS} header fields" in refused.json()["error"]["message"]


async def test_the_size_of_a_head() -> None:
    answer = await answers(generate("x: " + "y" * 2 * MAX_HEAD_BYTES), b"")
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/nothing"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with served(FakeClient()) as server, httpx.AsyncClient(base_url=server.url) as http:
        whole, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert (await http.get("/health")).status_code == 200  # on the same connection
