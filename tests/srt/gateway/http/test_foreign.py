"""Web pages of others and a server without API keys: what is refused, and what is not."""

import asyncio
import logging
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.gateway.docs import routes as docs
from srt.gateway.http import foreign
from srt.gateway.http.foreign import ForeignPages
from srt.gateway.http.routing import routes_of
from srt.gateway.limits.keys import Keys
from srt.gateway.routes import HANDLERS
from srt.gateway.ui import routes as page
from srt.wire.errors import RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served
from tests.waiting import SOON_S

MACHINE = socket.gethostname()
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"}
CROSS = {"sec-fetch-site": "cross-site"}
LINK = CROSS | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
AHEAD = LINK | {"sec-fetch-site": "none", "sec-purpose": "prefetch;prerender"}  # of a link
SHOWN = ("/", "/ui/x", "/docs", "/openapi.json", "/docs/openapi.json", "/health", "/ready")
TEXT, JSON = {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-8"}
PAGE_OF_OTHERS: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://gateway:81"},  # another port is another origin
    {"origin": "https://gateway:80"},
    {"origin": "ftp://gateway"},
    {"origin": "http://gateway.evil.example"},
    {"origin": "http://gateway@evil.example"},
    {"origin": "http://gateway", **CROSS},
    {"origin": "http://" + "a" * 5000},
    CROSS,
    {"sec-fetch-site": "same-site"},
    CROSS | {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    AHEAD,
    {"host": "evil.example"},  # by rebinding: all else is as for a page of the server's
    {"host": "evil.example:80", "origin": "http://evil.example", "sec-fetch-site": "same-origin"},
]


def code(
    headers: dict[str, str],
    *,
    hosts: tuple[str, ...] = ("Srt-Service.", "gateway"),
    origins: tuple[str, ...] = (),
    method: str = "POST",
    path: str = "/generate",
    is_public: bool = False,
) -> str:
    """What a request is refused with; "" if it is not."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"headers": raw, "method": method}
    try:
        ForeignPages(hosts, origins).check(scope, path, is_public=is_public)
    except RequestError as error:
        return error.info.code
    return ""


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:1", "localhost.:30000", "a.localhost", "a.b.LOCALHOST."),
        *("127.0.0.1", "127.0.0.1:9999", "192.168.1.7:80", "0.0.0.0", "127.0.0.1."),
        *("[::1]", "[::1]:30000", "[FE80::1%25eth0]:1", "[::ffff:1.2.3.4]", "10.0.0.1:"),
        *("srt-service", "SRT-service.:30000", MACHINE, f"{MACHINE.upper()}.:8"),
    ],
)
def test_names_of_the_server_are_taken(host: str) -> None:
    assert code({"host": host}) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:30000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("notlocalhost", "srt-service.evil.example", "x.srt-service", "localhost..", ".localhost"),
        *(
            "",
            ":30000",
            "::1",
            "[::1",
            "[evil.example]",
            "[]",
            "[::1]x",
            "127.0.0.1:x",
            "a..localhost",
        ),
        *("127.1", "0x7f.1", "256.0.0.1", "localhost:123456", "user@localhost", "localhost/evil"),
        *("evil.example/.localhost", "localhost, evil.example", "b\xfccher", "localhost\x00"),
        *("a" * 5000, "a." * 200 + "localhost"),
    ],
)
def test_other_names_are_refused_unless_all_are_allowed(host: str) -> None:
    assert code({"host": host}) == "forbidden"
    assert code({"host": host}, hosts=("*",)) == code({"host": host}, path="/ready") == ""


@given(st.ip_addresses(), st.integers(0, 65535), st.booleans())
def test_addresses_are_taken(address: Any, port: int, has_port: bool) -> None:
    name = str(address) if address.version == 4 else f"[{address}]"
    assert code({"host": f"{name}:{port}" if has_port else name}) == ""


@given(st.from_regex(r"[a-z0-9_-]{1,9}(\.[a-z0-9-]{1,9}){0,3}\.[a-z]{2,9}", fullmatch=True))
def test_names_of_the_dns_are_not(name: str) -> None:
    is_own = name.endswith(".localhost") or name == MACHINE.lower()
    assert code({"host": name}) == ("" if is_own else "forbidden")


@given(st.text(st.characters(max_codepoint=255), max_size=40), st.sampled_from(["host", "origin"]))
def test_whatever_stands_there_is_judged(text: str, field: str) -> None:
    assert code({"host": "localhost"} | {field: text}) in ("", "forbidden")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://gateway", "gateway"),
        ("http://gateway:80", "GATEWAY."),
        ("http://gateway", "gateway:80"),
        ("https://gateway", "gateway"),  # behind a proxy that speaks TLS
        ("https://gateway:443", "gateway"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),  # the port of a container
        ("http://[::1]:8080", "[::1]:8080"),
    ],
)
def test_the_servers_own_pages_may(origin: str, host: str) -> None:
    own = {"origin": origin, "host": host, "sec-fetch-site": "same-origin"}
    assert code(own) == code(own | JSON | {"content-length": "9"}) == ""


@pytest.mark.parametrize("headers", PAGE_OF_OTHERS)
def test_pages_of_others_may_not(headers: dict[str, str]) -> None:
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        assert code({"host": "gateway"} | headers, method=method) == "forbidden"
        is_named = "origin" in headers and headers.get("host") != "evil.example"
        if is_named:
            named = {"host": "gateway"} | headers
            assert code(named, method=method, origins=(headers["origin"],), hosts=("*",)) == ""
        everybody = code({"host": "gateway"} | headers, method=method, origins=("*",), hosts=("*",))
        assert everybody == ""


def test_a_link_opens_what_is_public() -> None:
    host = {"host": "localhost"}
    assert code(host | LINK, method="GET", path="/", is_public=True) == ""
    for change in (
        {"sec-fetch-dest": "iframe"},
        {"sec-fetch-mode": "no-cors"},
        {"origin": "null"},
        {"host": "evil.example"},
    ):
        changed = host | LINK | change
        assert code(changed, method="GET", path="/", is_public=True) == "forbidden"
    assert code(host | LINK, path="/", is_public=True) == "forbidden"
    assert code(host | LINK, method="GET", path="/metrics") == "forbidden"


@pytest.mark.parametrize("sign", [{"origin": "http://gateway"}, {"sec-fetch-mode": "cors"}])
@pytest.mark.parametrize("body", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
def test_bodies_of_pages_are_json(sign: dict[str, str], body: dict[str, str]) -> None:
    sent = {"host": "gateway"} | body
    assert code(sent | TEXT) == code(sent) == code(sent | sign | JSON) == ""
    kinds = ("text/plain; application/json", "text/plain, application/json", "application/jsonp")
    for kind in (*kinds, "multipart/form-data", "application/x-www-form-urlencoded"):
        assert code(sent | sign | {"content-type": kind}) == "unsupported_media_type"
    assert code(sent | sign) == "unsupported_media_type"
    assert code({"host": "gateway", "content-length": "0"} | sign) == ""


ROUTES = [
    (method, path.replace("{name}", "x"))
    for each in [*HANDLERS, *routes_of(docs), *routes_of(page)]
    for path in each.paths
    for method in (*each.methods, "OPTIONS")
]


async def test_no_route_is_left_out() -> None:
    """By whatever method, and also where there is no route; nothing reaches the ring."""
    client = FakeClient()
    async with in_process(client) as http:
        for method, path in [
            *ROUTES,
            ("GET", "/none"),
            ("OPTIONS", "/none"),
            ("GET", "http://gateway//flush_cache/"),
        ]:
            for headers in ({"origin": "null"}, CROSS, AHEAD, LINK, {"host": "evil.example"}):
                answer = await http.request(method, path, headers=headers, content=b"{}")
                is_probe = path in ("/health", "/ready") and "host" in headers
                is_shown = method == "GET" and path in SHOWN and "sec-fetch-dest" in headers
                is_taken = is_probe or is_shown
                assert (answer.status_code == 403) is not is_taken, (method, path, headers)
                if not is_taken:
                    option = "--allowed-hosts" if "host" in headers else "--cors-allow-origins"
                    is_anthropics = path.startswith("/v1/messages")
                    error = answer.json()["error"] if is_anthropics else error_of(answer)
                    kind = error["type"] if is_anthropics else error["code"]
                    assert kind == ("permission_error" if is_anthropics else "forbidden")
                    assert option in error["message"]
    assert client.requests == [] and client.flushes == []


async def test_keys_end_the_rules_at_once() -> None:
    client = FakeClient()
    async with in_process(client, allowed_hosts=()) as http:
        transport: Any = http._transport
        gateway, headers = transport.app.gateway, {"origin": "null", **BROWSER}
        assert (await http.get("/flush_cache", headers=headers)).status_code == 403
        gateway.keys = Keys(("k",))
        assert (await http.get("/flush_cache", headers=headers)).status_code == 401
        key = {"authorization": "Bearer k"}
        assert (await http.get("/flush_cache", headers=headers | key)).status_code == 200
        answer = await http.post(
            "/generate", content=b'{"text": "a"}', headers=headers | key | TEXT
        )
        assert answer.status_code == 200
        gateway.keys = Keys()
        assert (await http.get("/flush_cache", headers=headers | key)).status_code == 403


@pytest.mark.parametrize("path", ["/flush_cache", "/start_profile", "/stop_profile"])
async def test_a_get_with_an_effect_is_not_for_browsers(path: str) -> None:
    async with in_process(FakeClient()) as http:
        await http.post("/start_profile")
        for signs in (
            BROWSER,
            {"referer": "http://evil.example/"},
            {"origin": "http://gateway"},
            {"sec-fetch-site": "none"},
        ):
            refused = await http.get(path, headers=signs)
            assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
            assert "POST" in error_of(refused)["message"]
        assert (await http.post(path, headers=BROWSER)).status_code == 200
        await http.post("/start_profile")
        assert (await http.get(path, headers={"user-agent": "curl/8.5.0"})).status_code == 200


async def test_origins_that_are_named_can_read_why_they_are_refused() -> None:
    named = {"origin": "https://app.example"}
    ask = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    async with in_process(FakeClient(), cors_origins=("https://app.example",)) as http:
        preflight = await http.options("/generate", headers=named | ask)
        refused = await http.post("/generate", content=b'{"text": "a"}', headers=named | TEXT)
        rebound = await http.post("/generate", json={}, headers=named | {"host": "evil.example"})
        other = await http.options("/generate", headers={"origin": "https://b.example"} | ask)
    statuses = [each.status_code for each in (preflight, refused, rebound, other)]
    assert statuses == [200, 415, 403, 403]
    for answer in (preflight, refused, rebound):
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in other.headers


async def test_the_log_tells_of_each_kind_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, foreign.__name__)
    async with in_process(FakeClient()) as http:
        for n in range(20):
            await http.get("/metrics", headers={"host": f"{n}.example"})
            await http.get("/metrics", headers={"origin": f"http://{n}.example"})
        assert len(caplog.records) == 2
        assert "--allowed-hosts" in caplog.text and "--cors-allow-origins" in caplog.text
        monkeypatch.setattr(foreign, "LOG_INTERVAL_S", 0.0)
        await http.get("/metrics", headers={"host": "last.example"})
    assert "last.example" in caplog.messages[-1] and "21 so far" in caplog.messages[-1]


UPGRADE = """Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
"""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /model_info HTTP/1.0\r\n", b"200"),
        ("GET /model_info HTTP/1.0\r\nOrigin: http://evil.example\r\n", b"403"),
        ("HEAD /flush_cache HTTP/1.1\r\nHost: x\r\nUser-Agent: Mozilla/5.0\r\n", b"405"),
        ("HEAD /flush_cache HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8\r\n", b"200"),
        (
            "GET /generate HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n" + UPGRADE,
            b"403",
        ),
    ],
)
async def test_on_a_socket(head: str, status: bytes) -> None:
    """No Host at all, HEAD, and a WebSocket."""
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}\r\n".encode())
        async with asyncio.timeout(SOON_S):
            answer = await reader.readline()
        writer.close()
    assert answer.split()[1] == status
