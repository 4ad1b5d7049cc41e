"""The page in a real browser: `make test-ui`. These tests are marked `ui`, and run by themselves.

Each page fails its test if it writes an error to the console, breaks its content security policy,
or asks anything of another origin. Pictures are kept in $UI_PICTURES, if that is set.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# `make test` installs no playwright.
collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = [
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]
TIMEOUT_MS = 30_000

Open = Callable[..., "Page"]


def page_key(server: Server) -> str:
    """The key in the address that the server has written."""
    return (server.directory / "page_key").read_text()


def address(server: Server, view: str = "chat") -> str:
    """The page's address, as the server has written it, or of a view of it."""
    written = f"{server.url}/#key={page_key(server)}"
    assert written in server.log()
    return written if view == "chat" else f"{server.url}/#/{view}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("SRT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path is not None, "no browser: set SRT_BROWSER"
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT_MS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=OPTIONS) as browser,
    ):
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("page")) as server:
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens an address in a context of its own, which watches what the page does."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def opened(url: str, expects: tuple[str, ...] = (), **options: Any) -> Page:
        """`expects` are parts of messages that are no problems here."""
        permissions = ["clipboard-read", "clipboard-write"]
        context = browser.new_context(permissions=permissions, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        origin = urlsplit(url).netloc

        def heard(text: str) -> None:
            if not any(part in text for part in expects):
                problems.append(text)

        def asked(request: Any) -> None:
            target = urlsplit(request.url)
            if target.scheme not in ("data", "blob") and target.netloc != origin:
                problems.append(f"asked {request.url}")

        page.on("console", lambda m: heard(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: heard(str(error)))
        page.on("request", asked)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Keeps a picture of a page."""

    def keep(page: Page, name: str) -> None:
        if folder := os.environ.get("UI_PICTURES"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return keep
