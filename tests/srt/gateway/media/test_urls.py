"""Addresses of pictures: which ones may be fetched, and base64 in slices."""

import base64
import os

import pytest

from srt.gateway.media import urls
from srt.gateway.media.urls import (
    MAX_TEXT_CHARS,
    WebAddress,
    base64_start,
    decoded,
    is_public,
    web_address,
)
from srt.wire.errors import RequestError

DOMAINS = ("pictures.test", "10.0.0.1")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://pictures.test", ("http", 80, "/")),
        ("HTTPS://Pictures.Test:443/a?b=c#d", ("https", 443, "/a?b=c")),
        ("https://pictures.test:80?x", ("https", 80, "/?x")),
        ("http://pictures.test./a", ("http", 80, "/a")),
    ],
)
def test_what_may_be_fetched(url: str, address: tuple[str, int, str]) -> None:
    scheme, port, target = address
    assert web_address(url, DOMAINS) == WebAddress(scheme, "pictures.test", port, target)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://other.test/", "--media-domain"),
        ("http://x.pictures.test/", "--media-domain"),
        ("http://pictures.test.evil.test/", "--media-domain"),
        ("http://pictures.test:22/", "port 80 or 443"),
        ("http://pictures.test:8080/", "port 80 or 443"),
        ("http://user@pictures.test/", "no http(s) URL"),
        ("http://pictures.test\\@evil.test/", "no http(s) URL"),
        ("http://pictures.test/a b", "no http(s) URL"),
        ("http://pictures.test/\r\nX: y", "no http(s) URL"),
        ("http://pictures.test/ä", "no http(s) URL"),
        ("http://[::1]/", "no http(s) URL"),
        ("http:///a", "no http(s) URL"),
        ("ftp://pictures.test/a", "no http(s) URL"),
        ("http://pictures.test/" + "a" * 9000, "no http(s) URL"),
    ],
)
def test_what_may_not_be_fetched(url: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        web_address(url, DOMAINS)
    assert reason in caught.value.info.reason and caught.value.info.param == ""
    assert url not in caught.value.info.message


def test_without_the_option_no_host_is_fetched_from() -> None:
    with pytest.raises(RequestError, match=r"from any host \(--media-domain\)"):
        web_address("http://pictures.test/", ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::7f00:1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "fe80::1%eth0",
        "fec0::1",
        "fd00::1",
        "ff0e::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2606:4700::1111"],
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


def whole(url: str, bare: bool = False) -> bytes:
    return b"".join(decoded(url, base64_start(url, bare=bare), len(url)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 48, 300])
def test_base64_in_slices(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "SLICE_CHARS", 8)
    data = os.urandom(size)
    text = base64.b64encode(data).decode()
    for url in (f"data:image/png;base64,{text}", f"DATA:;charset=x;Base64,{text}"):
        assert whole(url) == data
    assert whole(text, bare=True) == data


@pytest.mark.parametrize("size", [1, 2, 3, 5, 48, 300])
def test_base64_in_lines(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mail has it, and with blanks anywhere, also around and after its padding."""
    data = os.urandom(size)
    text = base64.b64encode(data).decode()
    for slice_chars in (4, 8, 12, 2**16):
        monkeypatch.setattr(urls, "SLICE_CHARS", slice_chars)
        for lines in (
            base64.encodebytes(data).decode(),
            "\r\n".join(["", *text, ""]),
            f" {text}\f\t",
        ):
            assert whole(lines, bare=True) == data
            assert whole(f"data:;base64,{lines}") == data


@pytest.mark.parametrize(
    "text",
    [
        "AAA",
        "AA=A",
        "AAAAAA==AAAA",
        "AA==AAAA",
        "AAAAAAA=AAAA",
        "AA-_",
        "AAA\n",
        "AA A",
        "AAAA\vAAAA",
        "AAAA\xa0AAAA",
        "AA==\nAAAA",
        "AA=\n",
        "ÄAAA",
        "=AAA",
        "AAAA=",
        "AAAA====",
    ],
)
def test_base64_is_strict(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (4, 8, 2**16):
        monkeypatch.setattr(urls, "SLICE_CHARS", size)
        with pytest.raises(RequestError, match="is not valid base64"):
            whole(f"data:image/png;base64,{text}")


@pytest.mark.parametrize(
    ("url", "bare", "reason"),
    [
        ("data:image/png,AAAA", True, "must be a data: URL"),
        ("file:///etc/passwd", False, "must be a data: URL"),
        ("AAAA", False, "must be a data: URL"),
        ("data:image/png;base64,", False, "has no contents"),
        ("", True, "has no contents"),
        ("A" * (MAX_TEXT_CHARS + 4), True, "has more than 20000000 bytes"),
    ],
)
def test_what_is_no_base64(url: str, bare: bool, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        base64_start(url, bare=bare)
    if bare and len(url) < 100 and url:
        with pytest.raises(RequestError):
            whole("file:///etc/passwd", bare=True)
