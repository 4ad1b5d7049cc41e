"""Bare line feeds and folded fields: refused wherever a request is framed, however it is cut into
segments, and taken within bodies."""

from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.gateway.http.framing import BARE_CR, BARE_LF, FOLDED, StrictBuffer
from srt.gateway.http.server import MAX_HEAD_BYTES

BODY = b"\n a\n\r\n\n\r\n\r\n b\r"
CUTS = st.lists(st.integers(1, 40), max_size=30)


def post(framing: bytes, body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n" + body


SIZED = post(b"Content-Length: %d" % len(BODY), BODY)
CHUNKS = b"3;a=b\r\n" + BODY[:3] + b"\r\n%x\r\n" % len(BODY[3:]) + BODY[3:] + b"\r\n0\r\n"
CHUNKED = post(b"Transfer-Encoding: chunked", CHUNKS + b"\r\n")
TRAILED = post(b"Transfer-Encoding: chunked", CHUNKS + b"A: b\r\nC: d\r\n\r\n")
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def read(sent: bytes, cuts: list[int]) -> tuple[list[bytes], str]:
    """The bodies of the requests that a server reads, and why it ended the connection."""
    server = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
    server._receive_buffer = buffer = StrictBuffer()
    bodies: list[bytes] = []
    while sent:
        size = cuts.pop() if cuts else len(sent)
        server.receive_data(sent[:size])
        sent = sent[size:]
        try:
            while (event := _next(server)) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    bodies.append(b"")
                elif isinstance(event, h11.Data):
                    bodies[-1] += bytes(event.data)
        except h11.RemoteProtocolError:
            return bodies, buffer.refusal
    return bodies, ""


def _next(server: h11.Connection) -> Any:
    """The next event; a complete request is answered."""
    if server.our_state is h11.SEND_RESPONSE and server.their_state is h11.DONE:
        server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        server.send(h11.EndOfMessage())
        server.start_next_cycle()
    return server.next_event()


@given(st.lists(st.sampled_from([SIZED, CHUNKED, TRAILED, GET]), min_size=1, max_size=4), CUTS)
def test_bodies_may_have_any_bytes(requests: list[bytes], cuts: list[int]) -> None:
    expected = [b"" if request is GET else BODY for request in requests]
    assert read(b"".join(requests), cuts) == (expected, "")


def mutants() -> list[Any]:
    """Well-formed requests with one line end changed, and some that are known from attacks."""
    found = []
    for request, ends in ((SIZED, 4), (TRAILED, 9), (GET, 3)):
        framing, start = request.replace(BODY, b"#" * len(BODY)), 0
        framing = framing.replace(BODY[:3], b"###").replace(BODY[3:], b"#" * len(BODY[3:]))
        for _ in range(ends):
            start = framing.index(b"\r\n", start) + 2
            if framing[start - 3] != ord("#"):  # h11 checks the end of a chunk's data by itself
                found.append((request[: start - 2] + b"\n" + request[start:], BARE_LF))
    smuggled = b"Transfer-Encoding: chunked"
    for field, reason in (
        (b"X: y\n" + smuggled, BARE_LF),
        (b"X: y\r\n\n" + smuggled, BARE_LF),
        (b"X: y\n\r\n" + smuggled, BARE_LF),
        (b"X: y\r\n " + smuggled, FOLDED),
        (b"X:\r\n\t" + smuggled, FOLDED),
        (b"X: y\r\n \r\n" + smuggled, FOLDED),
        (b"X: y\n " + smuggled, BARE_LF),
    ):
        found.append((post(field + b"\r\nContent-Length: 0", b""), reason))
    found.append((GET.replace(b"Host", b" Host"), FOLDED))
    found.append((TRAILED.replace(b"C: d", b" C: d"), FOLDED))
    for extension, reason in ((b";\nx", BARE_LF), (b";\rx", BARE_CR), (b"\r", BARE_CR)):
        found.append((CHUNKED.replace(b";a=b", extension), reason))
    return found


@pytest.mark.parametrize(("bad", "reason"), mutants())
@given(before=st.sampled_from([b"", SIZED, CHUNKED]), cuts=CUTS)
def test_ends_of_lines_that_others_may_read_otherwise(
    bad: bytes, reason: str, before: bytes, cuts: list[int]
) -> None:
    """What comes behind is not read as a request."""
    bodies, refusal = read(before + bad + GET, cuts)
    assert refusal == reason
    assert len(bodies) <= 2


def test_a_head_of_bare_line_feeds_is_refused_before_its_end() -> None:
    assert read(b"GET / HTTP/1.1\n", []) == ([], BARE_LF)


def test_what_we_override_is_there() -> None:
    """h11's name for a connection's bytes, and what its readers take from them."""
    theirs = type(h11.Connection(h11.SERVER)._receive_buffer)
    assert theirs is StrictBuffer.__base__
    names = {"_data", "_next_line_search", "_multiple_lines_search"}
    assert names <= vars(theirs()).keys()
    methods = {"_extract", "maybe_extract_lines", "maybe_extract_next_line"}
    assert methods <= vars(theirs).keys()
