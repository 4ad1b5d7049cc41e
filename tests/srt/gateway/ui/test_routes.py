"""The page's files and what it may see: by key and by origin."""

from typing import Any

import pytest

from srt.wire.errors import UNAUTHORIZED
from tests.fakes import READY, FakeClient
from tests.srt.gateway.setup import PAGE, error_of, in_process
from tests.ui import vendor

WATCHED = ["/ui/events", "/ui/text?node=3", "/tree"]
KEYS: dict[str, Any] = {"api_keys": ("first", "second")}
ADMINS: dict[str, Any] = KEYS | {"admin_keys": ("root",)}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def client_with_text() -> FakeClient:
    client = FakeClient()
    client.edges[0, 3] = [100, 101, 102]
    client.ring = READY
    return client


async def test_files_are_open_and_have_a_strict_policy() -> None:
    async with in_process(FakeClient(), **ADMINS) as http:
        page = await http.get("/")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["x-dns-prefetch-control"] == "off"
        script = await http.get("/ui/main.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        tag = {"if-none-match": script.headers["etag"]}
        again = await http.get("/ui/main.js", headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        for path in ("/ui/", "/ui/none.js", "/ui/..%2froutes.py", "/ui/%2e%2e/routes.py"):
            assert (await http.get(path)).status_code == 404


def test_libraries_of_others_are_unchanged() -> None:
    assert vendor.wrong() == []
    for package in vendor.PACKAGES.values():
        assert any(file.name.endswith(".LICENSE.txt") for file in package)


async def test_a_server_may_have_no_page() -> None:
    async with in_process(FakeClient(), has_page=False) as http:
        for path in ("/", "/ui/main.js", "/ui/events"):
            assert (await http.get(path, headers=PAGE)).status_code == 404
        assert (await http.get("/tree", headers=PAGE)).status_code == 200


@pytest.mark.parametrize("path", WATCHED)
async def test_without_admins_the_pages_key_opens_what_is_watched(path: str) -> None:
    for info in ({}, KEYS):
        async with in_process(client_with_text(), **info) as http:
            for headers in ({}, bearer("guess"), bearer(""), {"authorization": "page"}):
                refused = await http.get(path, headers=headers)
                assert refused.status_code == 401 and error_of(refused)["code"] == UNAUTHORIZED
            if info:
                refused = await http.get(path, headers=bearer("first"))
                assert refused.status_code == 403
    async with in_process(client_with_text(), page_key="") as http:
        assert (await http.get(path, headers=bearer(""))).status_code == 401


@pytest.mark.parametrize("path", WATCHED)
async def test_admins_keys_open_it_and_the_pages_does_not(path: str) -> None:
    async with in_process(client_with_text(), **ADMINS) as http:
        for headers, status in ((PAGE, 401), (bearer("first"), 403), ({}, 401)):
            assert (await http.get(path, headers=headers)).status_code == status
    async with in_process(client_with_text(), api_keys=("sole",)) as http:
        assert (await http.get(path, headers=PAGE)).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"origin": "http://gateway.evil.test"},
        {"origin": "http://gateway:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.test", "host": "public.test"},  # behind a proxy
    ],
)
@pytest.mark.parametrize("path", WATCHED)
async def test_other_origins_see_nothing(path: str, headers: dict[str, str]) -> None:
    for cors in ((), ("*",)):
        info: dict[str, Any] = {"cors_origins": cors, "allowed_hosts": ("*",)}
        async with in_process(client_with_text(), **info) as http:
            refused = await http.get(path, headers=PAGE | headers)
            assert refused.status_code == 403 and "origins" in error_of(refused)["message"]


async def test_own_and_named_origins_see_it() -> None:
    info: dict[str, Any] = {"cors_origins": ("http://named.test",), "allowed_hosts": ("*",)}
    async with in_process(client_with_text(), **info) as http:
        for headers in (
            {"origin": "http://gateway"},
            {"origin": "http://named.test"},
            {"origin": "https://public.test", "host": "public.test"},  # behind a proxy
            {"sec-fetch-site": "same-origin"},
            {"host": "127.0.0.1:8000", "sec-fetch-site": "same-origin"},
            {},
        ):
            assert (await http.get("/tree", headers=PAGE | headers)).status_code == 200


async def test_texts_of_nodes() -> None:
    async with in_process(client_with_text()) as http:
        found = await http.get("/ui/text?replica=0&node=3", headers=PAGE)
        assert found.json() == {"text": "Hello, wörld", "tokens": 3, "cut": False}
        gone = await http.get("/ui/text?replica=0&node=4", headers=PAGE)
        assert gone.status_code == 404
        for query in ("node=x", "node=-1", "node=" + 20 * "9", "replica=1&node=3"):
            wrong = await http.get(f"/ui/text?{query}", headers=PAGE)
            name = "replica" if "replica" in query else "node"
            assert (wrong.status_code, error_of(wrong)["param"]) == (400, name)


async def test_long_texts_are_cut() -> None:
    client = client_with_text()
    client.edges[0, 3] = [102] * 2000
    async with in_process(client) as http:
        found = (await http.get("/ui/text?node=3", headers=PAGE)).json()
    assert len(found["text"]) == 4096 and found["cut"] and found["tokens"] == 2000


RUN: dict[str, Any] = {"run": "0" * 32, "name": "judge", "started": 1.5}
STEP: dict[str, Any] = {"id": "0/1", "kind": "gen", "name": "verdict", "t0": 0.5}


async def test_runs_are_posted_with_the_key_and_shown() -> None:
    async with in_process(client_with_text()) as http:
        body = {"runs": [RUN | {"steps": [STEP]}, RUN | {"run": "1" * 32, "steps": [STEP, STEP]}]}
        assert (await http.post("/ui/runs", json=body)).status_code == 401
        foreign = PAGE | {"origin": "http://evil.test"}
        assert (await http.post("/ui/runs", json=body, headers=foreign)).status_code == 403
        taken = await http.post("/ui/runs", json=body, headers=PAGE)
        assert taken.json() == {"steps": 3}
        app: Any = http._transport
        event, _ = app.app.gateway.feed.runs.whole()
    assert event["name"] == "judge" and event["steps"][0]["name"] == "verdict"


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"run": "x"}, "run"),
        ({"run": "0" * 33}, "run"),
        ({"name": "n" * 301}, "name"),
        ({"started": -1}, "started"),
        ({"started": "now"}, "started"),
        ({"steps": [STEP] * 501}, "steps"),
        ({"steps": [STEP | {"text": "x" * 4001}]}, "steps[0].text"),
        ({"steps": [STEP | {"after": ["0/0"] * 65}]}, "steps[0].after"),
        ({"steps": [STEP | {"after": ["x" * 301]}]}, "steps[0].after[0]"),
        ({"steps": [STEP | {"t0": -1}]}, "steps[0].t0"),
        ({"steps": [STEP | {"cached_tokens": 1.5}]}, "steps[0].cached_tokens"),
        ({"steps": [STEP | {"more": 1}]}, "steps[0].more"),
        ({"more": 1}, "more"),
    ],
)
async def test_wrong_reports_are_refused_by_field(change: dict[str, Any], at: str) -> None:
    async with in_process(client_with_text()) as http:
        refused = await http.post("/ui/runs", json={"runs": [RUN | change]}, headers=PAGE)
    assert refused.status_code == 400 and error_of(refused)["param"] == f"runs[0].{at}"
