"""Keys, pages of others, and parts of the server that are lost while somebody watches."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.server import Server, running_server
from tests.ui.conftest import Open, address
from tests.ui.foreign_pages import REBOUND, WAYS, empty_pages, outcomes, state_of

pytestmark = pytest.mark.ui
NOISE = ("Failed to load resource", "ERR_")  # what the browser says of a lost connection


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = ("--api-key", "user-one,user-two", "--admin-api-key", "root", "--strict-model")
    with running_server(tmp_path_factory.mktemp("guarded"), *args) as server:
        assert f"{server.url}/\n" in server.log() and "#key" not in server.log()
        yield server


def give_keys(page: Page, admin: str = "", api: str = "") -> None:
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Admin's key").fill(admin)
    page.get_by_label("API key").fill(api)
    page.get_by_role("button", name="Save").click()


def say_hello(page: Page, answers: int = 1) -> None:
    page.get_by_label("Most tokens").fill("4")
    page.get_by_role("textbox", name="Message", exact=True).fill("Hello.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("ended by")).to_have_count(answers)


def test_without_the_key_the_chat_works_and_the_rest_is_refused(
    server: Server, open_page: Open
) -> None:
    for fragment in ("", "#key=guessed"):
        page = open_page(f"{server.url}/{fragment}", expects=("status of 401",))
        say_hello(page)
        page.get_by_role("tab", name="Tree").click()
        expect(page.locator("#status")).to_contain_text("needs the key in the address")
        expect(page.locator("#tree tr[data-node]")).to_have_count(0)
    page.evaluate("(key) => { location.hash = key }", address(server).partition("#")[2])
    expect(page.locator("#status")).to_have_text("live")
    assert "key" not in page.url and page.url.endswith("#/tree")


def test_escape_keeps_the_keys(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    give_keys(page, admin="first")
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Admin's key").fill("second")
    page.keyboard.press("Escape")
    assert page.evaluate("sessionStorage.getItem('srt-admin-key')") == "first"


def test_with_keys_each_opens_what_is_its(guarded: Server, open_page: Open) -> None:
    page = open_page(f"{guarded.url}/", expects=("status of 401", "status of 403"))
    page.get_by_role("button", name="A question").click()
    expect(page.get_by_role("alert")).to_contain_text("Keys")
    give_keys(page, api="user-one")
    page.get_by_role("button", name="A question").click()
    expect(page.get_by_text("ended by")).to_have_count(1)
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#status")).to_contain_text("API key")
    give_keys(page, admin="user-one")
    expect(page.locator("#status")).to_contain_text("admin")
    give_keys(page, admin="root")
    expect(page.locator("#status")).to_have_text("live")
    expect(page.locator("#tree tr[data-node]").first).to_be_visible()
    page.get_by_role("tab", name="Chat").click()
    say_hello(page, answers=2)  # an admin's key opens the chat too


def test_a_page_of_another_origin_gets_nothing(server: Server, open_page: Open) -> None:
    """`localhost` is another origin than 127.0.0.1, at the same server."""
    other = server.url.replace("127.0.0.1", "localhost")
    page = open_page(f"{server.url}/", expects=("localhost", "violates", "Failed", "Fetch API"))
    key = address(server).partition("key=")[2]
    for path in ("/tree", "/ui/events", "/ui/text?node=1"):
        outcome = page.evaluate(
            """async ([url, key]) => {
                try {
                    return (await fetch(url, {headers: {authorization: `Bearer ${key}`}})).status;
                } catch (error) { return 'refused'; }
            }""",
            [other + path, key],
        )
        assert outcome == "refused"
        headers = {"authorization": f"Bearer {key}", "origin": other}
        assert httpx2.get(server.url + path, headers=headers).status_code == 403


@pytest.fixture
def foreign_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def generate(server: Server) -> None:
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 2}}
    httpx2.post(f"{server.url}/generate", json=body, timeout=60).raise_for_status()


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
def test_a_page_of_somebody_else_can_do_nothing(
    server: Server, foreign_page: Page, open_page: Open, host: str
) -> None:
    """Neither from another port of this machine nor from another site. A link still opens the
    server's own page."""
    generate(server)
    before = state_of(server)
    with empty_pages() as port:
        foreign_page.goto(f"http://{host}:{port}/")
        got, statuses = outcomes(foreign_page, server.url, WAYS)
        assert got == dict.fromkeys(WAYS, "nothing")
        assert statuses and {*statuses} == {403}
        assert state_of(server) == before
        generate(server)  # it is not paused
        foreign_page.evaluate("(url) => { location.href = url }", f"{server.url}/")
        expect(foreign_page.get_by_role("button", name="Send")).to_be_visible()
    say_hello(open_page(address(server).replace("127.0.0.1", "localhost")))


def test_a_page_whose_name_is_rebound_can_do_nothing(server: Server, foreign_page: Page) -> None:
    """Its name resolves to the server's address, whose origin it then is."""
    generate(server)
    before = state_of(server)
    own = server.url.replace("127.0.0.1", "evil.example")
    foreign_page.goto(f"{own}/health")  # stands for a page that was loaded before that
    got, statuses = outcomes(foreign_page, own, REBOUND)
    assert all("--allowed-hosts" in text for text in got.values()), got
    assert statuses == [403] * len(REBOUND)
    assert state_of(server) == before


@pytest.mark.parametrize("part", ["gateway", "scheduler"])
def test_the_page_comes_back_after_a_part_was_killed(
    tmp_path: Path, open_page: Open, part: str
) -> None:
    with running_server(tmp_path) as server:
        page = open_page(address(server), expects=NOISE)
        say_hello(page)
        page.get_by_role("tab", name="Tree").click()
        expect(page.locator("#tree tr[data-node]").first).to_be_visible()
        os.kill(server.pids()[part], signal.SIGKILL)
        if part == "gateway":
            expect(page.locator("#status")).to_contain_text("connection lost")
        else:
            expect(page.locator("#tree tr[data-node]")).to_have_count(0)  # its tree is gone
        expect(page.locator("#status")).to_have_text("live")
        page.get_by_role("tab", name="Pulse").click()
        row = page.get_by_role("region", name="Processes").get_by_role("row", name=part)
        expect(row).to_contain_text("ready")
        expect(row.locator("td").last).to_have_text("1")
        page.get_by_role("tab", name="Chat").click()
        say_hello(page, answers=2)
        page.get_by_role("tab", name="Tree").click()
        expect(page.locator("#tree tr[data-node]").first).to_be_visible()
        page.reload()  # the key is still the server's
        expect(page.locator("#tree tr[data-node]").first).to_be_visible()


def test_a_server_may_have_no_page(tmp_path: Path) -> None:
    with running_server(tmp_path, "--no-ui") as server:
        assert httpx2.get(f"{server.url}/").status_code == 404
        assert "#key" not in server.log()


def test_a_server_that_stops_does_not_wait_for_pages(tmp_path: Path, open_page: Open) -> None:
    with running_server(tmp_path) as server:
        page = open_page(address(server), expects=NOISE)
        page.get_by_role("tab", name="Tree").click()
        expect(page.locator("#status")).to_have_text("live")
        assert server.stop() == 0
        expect(page.locator("#status")).to_contain_text("connection lost")
