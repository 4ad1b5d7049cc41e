"""The page for everybody: screen readers, small screens, dark and light."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server
from tests.ui.conftest import Open, address, page_key
from tests.ui.test_chat import send
from tests.ui.test_markdown import MARKED, answer_with

pytestmark = pytest.mark.ui
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = {"chat": "Chat", "tree": "Tree", "pulse": "Pulse", "programs": "Programs"}

STEP: dict[str, Any] = {"kind": "gen", "prompt_tokens": 40, "cached_tokens": 30, "text": "yes"}
RUN: dict[str, Any] = {
    "run": "a" * 32,
    "name": "judge",
    "steps": [
        STEP | {"id": "0/0", "name": "topic", "t0": 0, "t1": 1},
        STEP | {"id": "0/fork1.0/0", "name": "verdict", "t0": 1, "t1": 2, "after": ["0/0"]},
        STEP
        | {"id": "0/fork1.1/0", "name": "w" * 80, "t0": 1, "t1": 3, "after": ["0/0"]}
        | {"error": "it failed " + "x" * 300, "from_log": True},
        STEP
        | {"id": "0/2", "name": "look_up", "kind": "effect", "t0": 2, "t1": 2.001}
        | {"after": ["0/fork1.0/0"]},
        STEP | {"id": "0/3", "name": "sum", "t0": 3, "after": ["0/2", "0/fork1.1/0"]},
    ],
}


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds, by rule."""
    # By the tester's interface and not as a script of the page, which its policy forbids.
    page.evaluate(AXE.read_text())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (each["id"], [node["html"][:200] for node in each["nodes"]])
        for each in result["violations"]
    ]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_axe_finds_nothing(
    server: Server, open_page: Open, picture: Any, scheme: str, width: int
) -> None:
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4}}
    httpx2.post(f"{server.url}/generate", json=body, timeout=60)
    key = {"authorization": f"Bearer {page_key(server)}"}
    httpx2.post(
        f"{server.url}/ui/runs", json={"runs": [RUN | {"started": time.time() - 5}]}, headers=key
    ).raise_for_status()
    size = {"width": width, "height": 800}
    page = open_page(address(server), color_scheme=scheme, viewport=size)
    found = [("welcome", violations(page))]
    for name, title in VIEWS.items():
        page.get_by_role("tab", name=title).click()
        if name == "chat":
            page.locator("summary").first.click() if width < 800 else None
            page.get_by_label("Show tokens").check()
            page.get_by_role("textbox", name="Message", exact=True).fill("Say it.")
            page.get_by_role("button", name="Send").click()
            expect(page.get_by_text("ended by")).to_have_count(1)
            expect(page.locator("details.prompt")).to_have_count(1)
        else:
            expect(page.locator("#status")).to_have_text("live")
        if name == "tree":
            expect(page.locator("#tree tr[data-node]").first).to_be_visible()
        if name == "programs":
            page.get_by_text("As a table").click()
            expect(page.get_by_role("row")).to_have_count(6)
            page.get_by_role("button", name=f"gen {'w' * 80}").focus()
        picture(page, f"{name}-{scheme}-{width}")
        found.append((name, violations(page)))
        # Nothing is wider than the screen.
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert found == [(name, []) for name in ("welcome", *VIEWS)]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed")
def test_axe_finds_nothing_in_an_answer(server: Server, open_page: Open) -> None:
    for scheme in ("light", "dark"):
        page = open_page(address(server), color_scheme=scheme)
        answer_with(
            page, {"reasoning_content": MARKED}, {"content": f"{MARKED}\n#\n[](https://a.test)"}
        )
        send(page, "Show it.")
        page.locator("details.reasoning summary").click()
        expect(page.get_by_role("group", name="Table")).to_have_count(2)
        assert violations(page) == []


CROOKED = """
    [...document.querySelectorAll('table')].flatMap((table) => [...table.tHead?.rows[0].cells ?? []]
        .filter((head, at) => {
            const cells = [...table.tBodies[0].rows].map((row) => row.cells[at]);
            const side = (cell) => getComputedStyle(cell).textAlign;
            return cells.some((cell) => side(cell) !== side(head));
        })
        .map((head) => head.textContent))
"""


def test_heads_of_tables_stand_above_their_cells(server: Server, open_page: Open) -> None:
    run = RUN | {"run": "b" * 32, "started": time.time() - 5}
    key = {"authorization": f"Bearer {page_key(server)}"}
    httpx2.post(f"{server.url}/ui/runs", json={"runs": [run]}, headers=key).raise_for_status()
    page = open_page(address(server))
    long = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000}, "rid": "long"}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(httpx2.post, f"{server.url}/generate", json=long, timeout=120)
        for title in ("Tree", "Pulse", "Programs"):
            page.get_by_role("tab", name=title).click()
            if title == "Programs":
                page.get_by_text("As a table").click()
            rows = page.get_by_role("tabpanel").locator("tbody tr")
            expect(rows.first).to_be_visible()
            if title == "Tree":
                expect(page.get_by_role("row", name="long")).to_be_visible()
            assert page.locator("th.number:visible").count() > 2
            assert page.evaluate(CROOKED) == []
        httpx2.post(f"{server.url}/abort_request", json={"rid": "long"}, headers=key)
        call.result()


def test_times_of_charts_are_written_as_the_reader_does(server: Server, open_page: Open) -> None:
    page = open_page(address(server), locale="de-DE")
    page.evaluate("""() => {
        window.drawn = new Set();
        const real = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            if (this.canvas.closest('#pulse')) window.drawn.add(text);
            return real.call(this, text, ...place);
        };
    }""")
    page.get_by_role("tab", name="Pulse").click()
    page.wait_for_function("[...window.drawn].some((text) => /^[0-9]+:[0-9]+:[0-9]+$/.test(text))")
    odd = page.evaluate("[...window.drawn].filter((text) => /[/]|am|pm/i.test(text))")
    assert odd == []


def test_the_slider_reaches_its_ends(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_role("tab", name="Tree").click()
    slider = page.get_by_label("Moment")
    padding = "(slider) => getComputedStyle(slider).paddingInline"
    assert slider.evaluate(padding) == "0px"
    assert slider.evaluate("(slider) => slider.value === slider.max && slider.max > 0")


def test_all_views_are_reached_by_the_keyboard(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.keyboard.press("Shift+Tab")
    page.get_by_role("tab", name="Chat").focus()
    for title in ("Tree", "Pulse", "Programs", "Chat"):
        page.keyboard.press("ArrowRight")
        tab = page.get_by_role("tab", name=title)
        expect(tab).to_be_focused()
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=title)).to_be_visible()


def test_the_pulse_has_figures_and_parts(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_role("tab", name="Pulse").click()
    expect(page.locator("#status")).to_have_text("live")
    for number in range(4):
        body = {"text": f"Count to {number}", "sampling_params": {"max_new_tokens": 60}}
        httpx2.post(f"{server.url}/generate", json=body, timeout=60)
    figure = page.locator("figure", has_text="Throughput")
    expect(figure.locator("b").first).not_to_have_text("–")
    pool = page.locator("figure", has_text="KV pool")
    expect(pool.locator(".value", has_text="in the tree")).not_to_contain_text(" 0")
    rows = page.get_by_role("region", name="Processes").locator("tbody tr")
    names = {"launcher", "scheduler", "tokenizer", "detokenizer", "gateway", "compiler", "programs"}
    expect(rows).to_have_count(len(names))
    assert {row.locator("td").first.inner_text() for row in rows.all()} == names
    expect(rows.filter(has_text="scheduler").locator("td").nth(3)).not_to_have_text("–")
