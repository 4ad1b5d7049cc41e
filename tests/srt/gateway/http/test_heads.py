"""Heads on the gateway's socket: two lengths, bad framing, many fields, large ones, requests one
after another, and HEAD."""

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest

from srt.gateway.http import unread
from srt.gateway.http.framing import BARE_LF
from srt.gateway.http.server import MAX_HEAD_BYTES, MAX_HEADERS, BoundedProtocol
from srt.gateway.routes import HANDLERS
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S

BODY = json.dumps({"text": "a"}).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CL, TE = f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"


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
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("te", [TE, "transfer-encoding:\tCHUNKED "])
async def test_two_lengths_close_the_connection(length: int, order: int, te: str) -> None:
    """What follows is not answered: a proxy may have taken it for a part of the body."""
    head = generate(*[f"Content-Length: {length}", te][::order])
    answer = await answers(head, CHUNKED + NEXT)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
    assert "both Content-Length and Transfer-Encoding" in error(answer)["message"]


@pytest.mark.parametrize(
    ("fields", "rest"),
    [
        ((CL, "Content-Length: 3"), BODY),
        ((f"{CL}, 3",), BODY),
        ((f"Content-Length: +{len(BODY)}",), BODY),
        (("Content-Length: -1",), BODY),
        (("Content-Length:",), BODY),
        ((CL.replace(":", " :"),), BODY),
        (("Content-Length: 1\r\n 2",), BODY),
        (("Transfer-Encoding:\r\n chunked",), CHUNKED),
        ((CL, f"X: y\r\n {TE}"), BODY),
        ((CL, f"X: y\n{TE}"), BODY),
        ((f"{CL}\n",), BODY),
        (("Transfer-Encoding: identity",), BODY),
        ((CL, "Transfer-Encoding: identity"), BODY),
        ((TE, TE), CHUNKED),
        (("Transfer-Encoding: gzip, chunked",), CHUNKED),
        (("Transfer-Encoding: chunked, chunked",), CHUNKED),
        (("Transfer-Encoding: \x0bchunked",), CHUNKED),
        (("Transfer-Encoding: xchunked",), CHUNKED),
        ((CL, f"X: y\r{TE}"), BODY),
        ((CL, "X: a\0b"), BODY),
        ((CL, "Host: y"), BODY),
        ((TE,), b"0x" + CHUNKED),
        ((TE,), b"+" + CHUNKED),
        ((TE,), CHUNKED.replace(b"\r\n", b"\n")),
        ((TE,), b"%x\r\n" % (len(BODY) - 1) + CHUNKED.partition(b"\r\n")[2]),
        ((TE,), CHUNKED.replace(b"\r\n", b";a\nb\r\n", 1)),
        ((TE,), b"0" * 30 + CHUNKED),
    ],
)
async def test_what_others_may_read_otherwise_closes_the_connection(
    fields: tuple[str, ...], rest: bytes
) -> None:
    answer = await answers(generate(*fields), rest + NEXT)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b'"bad_request"' in answer


@pytest.mark.parametrize(
    ("fields", "rest"),
    [
        ((CL, CL), BODY),
        ((f"{CL}, {len(BODY)}",), BODY),
        (("transfer-encoding:\tcHuNkEd ",), CHUNKED),
        ((TE,), CHUNKED.replace(b"\r\n", b";a=b\r\n", 1)),
        ((TE,), CHUNKED[:-2] + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ((CL, "Connection: Upgrade", "Upgrade: websocket"), BODY),
    ],
)
async def test_requests_behind_one_another_are_answered_in_order(
    fields: tuple[str, ...], rest: bytes
) -> None:
    """Each ends where its head says, and an upgrade to another protocol is ignored."""
    both = generate(*fields).encode() + b"\r\n" + rest
    answer = await answers("GET /nothing HTTP/1.1\r\nHost: x\r\n", both * 2 + LAST)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"404", b"200", b"200", b"200"]
    assert answer.count(b'"meta_info"') == 2


async def test_an_http_1_0_connection_ends_with_its_answer() -> None:
    answer = await answers(generate(CL).replace("HTTP/1.1", "HTTP/1.0"), BODY + NEXT)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("fields", [("Content-Encoding: gzip",), ("content-encoding: , Br",)])
@pytest.mark.parametrize("path", ["/generate", "/nothing"])
async def test_a_body_with_a_coding_is_refused_by_name(fields: tuple[str, ...], path: str) -> None:
    """Before it is read as JSON; the next request of the connection is answered."""
    head = generate(CL, *fields, "Content-Encoding: identity").replace("/generate", path)
    answer = await answers(head, BODY + LAST)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"415", b"200"]
    assert f"Content-Encoding '{fields[0].split()[-1]}'".encode() in answer
    assert b"\r\naccept-encoding: identity\r\n" in answer


async def test_no_coding_of_a_body_is_none() -> None:
    answer = await answers(generate(CL, "Content-Encoding: Identity,"), BODY + LAST)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"200"]
    head = "GET /health HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
    for field in ("", "Content-Length: 0\r\n"):
        assert (await answers(head + field, LAST)).count(b"HTTP/1.1 200 ") == 2


UNKNOWN = "POST /nothing HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "head",
    [
        UNKNOWN + "Content-Length: 1000\r\n",
        UNKNOWN + "Content-Length: 1000\r\nExpect: 100-Continue\r\n",
    ],
)
async def test_the_rest_of_an_answered_body_is_not_waited_for(
    head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it comes in small pieces; and no other request is read on the connection."""
    monkeypatch.setattr(BoundedProtocol, "head_timeout_s", 0.5)
    monkeypatch.setattr(unread, "UNREAD_TIMEOUT_S", 60.0 if "Expect" in head else 0.1)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode() + b"\r\n")
        async with asyncio.timeout(SOON_S):
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")
            writer.write(NEXT)
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("is_answered", [False, True])
async def test_bad_chunks_of_an_answered_body_close_the_connection(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says in one line who sent something that is not HTTP."""
    monkeypatch.setattr(unread, "UNREAD_TIMEOUT_S", 0.1 if is_answered else 60.0)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{UNKNOWN}{TE}\r\n\r\n1\r\na\r\n".encode())
        async with asyncio.timeout(SOON_S):
            await reader.readuntil(b"}}" if is_answered else b"\r\n\r\n")
            writer.write(b"1\n")
            assert await reader.read() == b""
        own_port = writer.get_extra_info("sockname")[1]
        writer.close()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"127.0.0.1 port {own_port}: ")
    assert BARE_LF in record.getMessage()
    assert record.exc_info is None


async def test_the_number_of_fields() -> None:
    async with served(FakeClient()) as server, httpx2.AsyncClient(base_url=server.url) as http:
        few = {f"x-{i}": "y" for i in range(MAX_HEADERS - 20)}
        assert (await http.post("/generate", json={"text": "a"}, headers=few)).status_code == 200
        many = {f"x-{i}": "y" for i in range(MAX_HEADERS)}
        refused = await http.post("/generate", json={"text": "a"}, headers=many)
    assert refused.status_code == 400
    assert f"at most {MAX_HEADERS} header fields" in refused.json()["error"]["message"]


async def test_the_size_of_a_head() -> None:
    answer = await answers(generate("x: " + "y" * 2 * MAX_HEAD_BYTES), b"")
    assert answer.startswith(b"HTTP/1.1 400 ")


GETS = sorted(path for route in HANDLERS if "GET" in route.methods for path in route.paths)


@pytest.mark.parametrize("path", [*GETS, "/docs", "/openapi.json", "/v1/models/tiny", "/nothing"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with served(FakeClient()) as server, httpx2.AsyncClient(base_url=server.url) as http:
        whole, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert (await http.get("/health")).status_code == 200  # on the same connection


@pytest.mark.parametrize("behind", [b"", NEXT])
async def test_a_head_that_trickles_in_is_dropped(
    behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first head of a connection or a later one."""
    monkeypatch.setattr(BoundedProtocol, "head_timeout_s", 0.2)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(behind + b"GET /health HTTP/1.1\r\nHost: ")
        answer = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(SOON_S):
            while not answer.done():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        said = b"" if answer.exception() else answer.result()  # a reset, if more was on its way
        writer.close()
    assert said.count(b"HTTP/1.1") <= (1 if behind else 0)
