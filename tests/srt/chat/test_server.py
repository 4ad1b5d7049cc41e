"""Who answers where a chat looks for a server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from srt.chat.main import make_parser
from srt.chat.server import Place, models_at
from srt.client.face import AsyncClient
from srt.wire.errors import ConfigError


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The address of a server that gives this answer to all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "models"),
    [
        (200, b'{"object": "list", "data": [{"id": "a"}, {"id": "b"}]}', ["a", "b"]),
        (200, b"<html>", None),
        (200, b"{}", None),
        (200, b"[1]", None),
        (401, b"", None),
        (404, b'{"detail": "Not Found"}', None),
        (404, b'{"error": "Not Found"}', None),
        (404, b'{"error": {"message": "Not Found"}}', None),
    ],
)
async def test_who_serves_models(status: int, body: bytes, models: list[str] | None) -> None:
    with answering(status, body) as url:
        assert await models_at(url, None, is_chosen=False) == models


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"", r"it answered 401 \(see --api-key"),
        (403, b'{"error": "Forbidden"}', r"it answered 403 \(see --api-key"),
        (503, b'{"error": {"message": "it starts"}}', "it starts$"),
        (404, b"<html>", "it answered 404$"),
    ],
)
async def test_who_was_chosen_and_does_not_tell(status: int, body: bytes, message: str) -> None:
    with answering(status, body) as url, pytest.raises(ConfigError, match=message):
        await models_at(url, None)


async def test_who_wants_a_key() -> None:
    refusal = b'{"error": {"message": "a key is needed"}}'
    with answering(401, refusal) as url, pytest.raises(ConfigError, match="a key is needed"):
        await models_at(url, None, is_chosen=False)


async def test_a_refusal_is_shown_as_text() -> None:
    refusal = b'{"error": {"message": "\\u001b]0;title\\u0007"}}'
    with answering(403, refusal) as url, pytest.raises(ConfigError) as caught:
        await models_at(url, None)
    assert "\x1b" not in str(caught.value)


async def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b'{"data": [{"id": "proxy"}]}') as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with answering(200, b'{"data": [{"id": "own"}]}') as url:
            assert await models_at(url, "key") == ["own"]


async def test_a_proxy_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="the proxy that the environment names"):
        await models_at("http://example.com", None)
    with pytest.raises(ConfigError, match="the proxy that the environment names"):
        AsyncClient("http://example.com")


async def test_nobody() -> None:
    assert await models_at("http://127.0.0.1:9", "key") is None


def test_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("sesame\nother\n")
    parser = make_parser()
    args = parser.parse_args(["--api-key-file", str(tmp_path / "key"), "--url", "host:1/v1/"])
    assert (args.api_key, args.url) == ("sesame", "http://host:1")
    assert parser.parse_args(["--url", "HTTP://host:1"]).url == "http://host:1"
    assert parser.parse_args(["--url", "ipc:///tmp/ring"]).url == "ipc:///tmp/ring"
    for refused in (
        ["--max-tokens", "0"],
        ["--url", "ftp://host"],
        ["--url", "http://host?x=1"],
        ["--api", "secret"],
        ["--api-key-file", "/no/such"],
        ["--api-key", "a\nb"],
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(refused)
        assert refused[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "asked", "temperature", "top_p"),
    [
        ("smollm2", {}, 0.2, 0.9),
        ("smollm2", {"top_p": 0.5}, None, 0.5),
        ("smollm2", {"temperature": 0}, 0, None),
        ("org/name", {}, None, None),
    ],
)
def test_the_embedded_model_has_the_sampling_of_its_card(
    model: str, asked: dict[str, Any], temperature: float | None, top_p: float | None
) -> None:
    found = Place("http://x", model).sampling({"temperature": None, "top_p": None, **asked})
    assert found == {"temperature": temperature, "top_p": top_p}
