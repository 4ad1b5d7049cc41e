"""The radix tree as the page shows it."""

import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server, running_server
from tests.ui.conftest import Open, address, page_key

pytestmark = pytest.mark.ui
Picture = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A pool of 16 tokens, in which nothing but prompts is kept."""
    args = ("--max-total-tokens", "16", "--speculative", "off")
    with running_server(tmp_path_factory.mktemp("small"), *args) as server:
        yield server


def texts_of(page: Page) -> dict[str, str]:
    """The texts of the rows that the list shows now, by node."""
    rows = page.locator("#tree tr[data-node]").all()
    return {
        row.get_attribute("data-node") or "": row.locator("td").nth(1).inner_text() for row in rows
    }


def shows(page: Page, expected: list[str]) -> None:
    """Wait until the list has these paths."""
    nodes = {edges for path in expected for edges in _prefixes(path)}
    tokens = sum(len(edges.split("][")[-1].split()) for edges in nodes)
    page.get_by_role("button", name="Show all").click()
    summary = page.locator("#tree .panel > p.muted").first
    expect(summary).to_contain_text(f"{len(nodes)} nodes · {tokens} of 16 tokens")
    assert tree_of(page) == sorted(expected)
    page.get_by_role("button", name="Show all").click()


def tree_of(page: Page) -> list[str]:
    """Each path through the tree as the list has it, its edges in brackets, in order."""
    paths: list[str] = []

    def walk(above: str) -> None:
        expect(page.locator("#tree tr[data-node] td:nth-child(2):empty")).to_have_count(0)
        for node, text in sorted(texts_of(page).items(), key=lambda item: item[1]):
            page.get_by_role("button", name=f"Open {node}", exact=True).click()
            expect(page.locator("#tree .path li").last).to_have_text(node)
            before = len(paths)
            here = f"{above}[{text.strip()}]"
            walk(here)
            if len(paths) == before:
                paths.append(here)
            up = page.locator("#tree .path li button")
            up.nth(up.count() - 2).click()
            expect(page.locator("#tree .path li").last).not_to_have_text(node)

    walk("")
    return sorted(paths)


def ids_of(server: Server, words: str) -> list[int]:
    body = {"prompt": words, "add_special_tokens": False}
    found: list[int] = httpx2.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    return found


def ask(server: Server, *prompts: list[int]) -> list[int]:
    """Send prompts together; how many tokens of each were cached."""
    body = {"input_ids": list(prompts), "sampling_params": {"max_new_tokens": 0}}
    answers = httpx2.post(f"{server.url}/generate", json=body, timeout=60).json()
    return [answer["meta_info"]["cached_tokens"] for answer in answers]


def test_the_nine_steps_of_the_paper(small: Server, open_page: Open, picture: Picture) -> None:
    """Figure 3 of Zheng et al., arXiv 2312.07104, asserted from the page alone."""
    # One token each; the steps are those of tests/scheduler_proc/memory/test_radix_nine_steps.py.
    letters = {name: ids_of(small, f" {name}") for name in string.ascii_uppercase}
    assert all(len(ids) == 1 for ids in letters.values())

    def prompt(text: str) -> list[int]:
        return [letters[letter][0] for letter in text]

    def spaced(*edges: str) -> str:
        return "".join(f"[{' '.join(edge)}]" for edge in edges)

    system, chat_a = "ABC", "ABCDE"
    page = open_page(address(small))
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#status")).to_have_text("live")
    # (1) Nothing is there.
    shows(page, [])
    steps: list[tuple[list[str], list[int], list[str]]] = [
        ([chat_a], [0], [spaced("ABCDE")]),
        (["ABCDEFGHIJK"], [5], [spaced("ABCDEFGHIJK")]),
        # (4) A second chat splits the edge behind the system prompt.
        ([f"{system}LM"], [3], [spaced("ABC", "DEFGHIJK"), spaced("ABC", "LM")]),
        # (5) Its next turn needs room: the least recently used leaf gives up its tail.
        ([f"{system}LMNOPQ"], [5], [spaced("ABC", "DEFGHIJ"), spaced("ABC", "LMNOPQ")]),
        (["RSTU"], [0], [spaced("ABC", "DEF"), spaced("ABC", "LMNOPQ"), spaced("RSTU")]),
        # (7) A batch with the same examples.
        (
            ["RSTVW", "RSTXY"],
            [3, 3],
            [
                spaced("ABC", "LMNOP"),
                spaced("RST", "U"),
                spaced("RST", "VW"),
                spaced("RST", "XY"),
            ],
        ),
        # (8) The first chat comes back.
        (
            [f"{chat_a}FG"],
            [3],
            [
                spaced("ABC", "DEFG"),
                spaced("ABC", "L"),
                spaced("RST", "U"),
                spaced("RST", "VW"),
                spaced("RST", "XY"),
            ],
        ),
        # (9) More samples of one question: the least recently used leaves go.
        (
            ["RSTVWH", "RSTVWI", "RSTVWJ"],
            [5, 5, 5],
            [
                spaced("ABC", "DEFG"),
                spaced("RST", "VW", "H"),
                spaced("RST", "VW", "I"),
                spaced("RST", "VW", "J"),
                spaced("RST", "X"),
            ],
        ),
    ]
    for number, (prompts, cached, expected) in enumerate(steps, 2):
        assert ask(small, *map(prompt, prompts)) == cached, number
        shows(page, expected)
        picture(page, f"step-{number}")
    expect(page.locator("#tree .evictions li").first).to_contain_text("tokens evicted")


def _prefixes(path: str) -> list[str]:
    edges = path[1:-1].split("][")
    return ["][".join(edges[: i + 1]) for i in range(len(edges))]


def test_why_a_second_request_is_fast_and_why_one_waits(
    tmp_path: Path, open_page: Open, picture: Picture
) -> None:
    args = ("--max-running-requests", "2", "--speculative", "off")
    with running_server(tmp_path, *args) as server:
        page = open_page(address(server))
        page.get_by_role("tab", name="Tree").click()
        long: dict[str, Any] = {"max_new_tokens": 1500, "temperature": 1, "ignore_eos": True}
        text = "The rules of the game are long, and all players know them. " * 20
        with ThreadPoolExecutor(4) as pool:

            def begin(end: str) -> Any:
                body = {"text": text + end, "sampling_params": long, "rid": f"request {end}"}
                return pool.submit(httpx2.post, f"{server.url}/generate", json=body, timeout=120)

            calls = [begin("one")]
            expect(page.get_by_role("row", name="request one")).to_contain_text("decode")
            calls += [begin("two"), begin("three")]
            rows = page.locator("#tree .requests tbody tr")
            expect(rows).to_have_count(3)
            waiting = page.locator("#tree .requests tr.waiting")
            expect(waiting).to_contain_text("all 2 places of the batch are taken")
            shared = page.locator("#tree .requests tr.decode", has_text="2 requests")
            expect(shared).to_have_count(2)
            wanted = page.locator("#tree tr[data-state=wanted]")  # the prefix, by the third
            expect(wanted).to_have_count(1)
            wanted.get_by_role("button").click()
            expect(page.locator("#tree tr[data-state=locked]")).to_have_count(2)  # the ends
            shared.first.focus()  # its path is framed
            picture(page, "waiting")
            key = {"authorization": f"Bearer {page_key(server)}"}
            for name in ("request one", "request two", "request three"):
                httpx2.post(f"{server.url}/abort_request", json={"rid": name}, headers=key)
            for call in calls:
                call.result()
        expect(page.get_by_text("0 running, 0 waiting")).to_be_visible()
        page.close()  # it would say that the server does not answer


def test_nodes_are_found_opened_and_left_by_the_keyboard(server: Server, open_page: Open) -> None:
    for text in ("Alpha beta gamma delta.", "Alpha beta gamma epsilon.", "Zeta eta theta."):
        body = {"text": text * 3, "sampling_params": {"max_new_tokens": 2}}
        httpx2.post(f"{server.url}/generate", json=body, timeout=60)
    page = open_page(address(server))
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Tree")).to_be_focused()
    find = page.get_by_role("searchbox", name="Find")
    find.fill("zeta eta")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 nodes, of the")).to_be_visible()
    first = page.get_by_role("button", name="Open ").first
    name = (first.inner_text()).removeprefix("Open ")
    first.focus()
    expect(page.locator("#tree .detail")).to_contain_text(f"Node {name}")
    page.keyboard.press("Enter")
    expect(page.locator("#tree .path li").last).to_have_text(name)
    page.keyboard.press("Escape")
    expect(page.locator("#tree .path li")).to_have_count(1)


def test_the_slider_goes_back(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_role("tab", name="Tree").click()
    nodes = page.locator("#tree tr[data-node]")
    for number in range(3):
        before = nodes.count()
        text = f"{number} is the number of a story that nobody has told before"
        body = {"text": text, "sampling_params": {"max_new_tokens": 2}}
        httpx2.post(f"{server.url}/generate", json=body, timeout=60)
        expect(nodes).not_to_have_count(before)
        page.wait_for_timeout(1100)  # moments are a second apart
    now = nodes.count()
    page.get_by_role("tab", name="Chat").click()  # what was seen is kept meanwhile
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#status")).to_have_text("live")
    slider = page.get_by_label("Moment")
    slider.focus()
    page.keyboard.press("Home")
    expect(nodes).not_to_have_count(now)
    page.get_by_role("button", name="Now").click()
    expect(nodes).to_have_count(now)


def test_nothing_is_drawn_while_another_tab_is_shown(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#status")).to_have_text("live")
    page.get_by_role("tab", name="Pulse").click()
    page.evaluate("""() => {
        window.drawn = 0;
        const real = CanvasRenderingContext2D.prototype.clearRect;
        CanvasRenderingContext2D.prototype.clearRect = function (...given) {
            if (this.canvas.closest('#tree')) window.drawn += 1;
            return real.apply(this, given);
        };
    }""")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.drawn") == 0
    page.get_by_role("tab", name="Tree").click()
    page.wait_for_function("window.drawn > 0")
