"""Who sent a request that came through a proxy."""

from ipaddress import ip_address, ip_network

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from srt.gateway.limits.proxies import MAX_PROXIES, naming_callers
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.srt.options.command_lines import parse_args

PROXIES = parse_args(["--trusted-proxies", "10.0.0.0/8,fd00::/8, 192.0.2.7"]).proxy_networks()


async def caller(peer: str | None, *fields: str) -> str | None:
    """Whom the application takes for the client of a request with these X-Forwarded-For."""
    seen: list[tuple[str, int] | None] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["client"])

    headers = [(b"host", b"x"), *((b"x-forwarded-for", field.encode()) for field in fields)]
    scope = {"client": peer and (peer, 1), "headers": headers}
    await naming_callers(app, PROXIES)(scope, None, None)  # type: ignore[arg-type]
    return seen[0] and seen[0][0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((), "10.0.0.1"),
        (("203.0.113.9",), "203.0.113.9"),
        (("198.51.100.1, 203.0.113.9",), "203.0.113.9"),
        (("198.51.100.1", "203.0.113.9, 10.1.1.1", "fd00::5"), "203.0.113.9"),
        (("203.0.113.9:555, [fd00::5]:80,192.0.2.7:1",), "203.0.113.9"),
        (("[2001:DB8::1]:443",), "2001:db8::1"),
        (("2001:db8::1",), "2001:db8::1"),
        (("::ffff:203.0.113.9, ::ffff:10.2.3.4",), "203.0.113.9"),
        (("10.1.1.1, 10.2.2.2",), "10.0.0.1"),
        (("203.0.113.9, unknown",), "10.0.0.1"),
        (("203.0.113.9, ",), "10.0.0.1"),
        (("203.0.113.9:port",), "10.0.0.1"),
        (("unknown, 203.0.113.9",), "203.0.113.9"),
        (("203.0.113.9" + ", 10.1.1.1" * (MAX_PROXIES - 1),), "203.0.113.9"),
        (("203.0.113.9" + ", 10.1.1.1" * MAX_PROXIES,), "10.0.0.1"),
    ],
)
async def test_the_caller_is_the_last_that_is_no_proxy(
    fields: tuple[str, ...], expected: str
) -> None:
    assert await caller("10.0.0.1", *fields) == expected
    assert await caller("203.0.113.1", *fields) == "203.0.113.1"


async def test_peers() -> None:
    for proxy in ("::ffff:10.9.9.9", "fd00::1%eth0", "192.0.2.7"):
        assert await caller(proxy, "203.0.113.9") == "203.0.113.9"
    for other in ("192.0.2.8", "::ffff:192.0.2.8", "::1", "a name"):
        assert await caller(other, "203.0.113.9") == other
    assert await caller(None, "203.0.113.9") is None


ENTRIES = st.ip_addresses().map(str) | st.text(alphabet="0123456789.:[]% ,a", max_size=20)


@given(st.lists(ENTRIES, max_size=50))
async def test_what_a_proxy_names_is_an_address_in_one_form(fields: list[str]) -> None:
    found = await caller("10.0.0.1", *fields)
    assert found is not None and str(ip_address(found)) == found


async def test_requests_of_one_connection_have_callers_of_their_own() -> None:
    client = FakeClient()
    proxies = (ip_network("127.0.0.0/8"),)
    async with (
        served(client, proxies=proxies) as server,
        httpx2.AsyncClient(base_url=server.url) as http,
    ):
        for address in ("203.0.113.1", "203.0.113.2", ""):
            headers = {"x-forwarded-for": address} if address else {}
            await http.post("/generate", json={"text": "a"}, headers=headers)
        assert len(server.connections) == 1
    assert [request.tenant for request in client.requests] == [
        *("ip:203.0.113.1", "ip:203.0.113.2", "ip:127.0.0.1")
    ]
