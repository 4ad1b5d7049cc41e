"""The page's functions without a view: layouts, rates, critical paths, texts of programs."""

import ast
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server
from tests.ui.conftest import Open

pytestmark = pytest.mark.ui


@pytest.fixture
def page(server: Server, open_page: Open) -> Page:
    return open_page(f"{server.url}/")


def call(page: Page, module: str, body: str, *given: Any) -> Any:
    """What `body` returns, with the module as `m` and what is given as `a`, `b`, ..."""
    names = ", ".join("abc"[: len(given)])
    script = f"async ([{names}]) => {{ const m = await import('/ui/{module}'); {body} }}"
    return page.evaluate(script, list(given))


BOXES = """
    const nodes = new Map(a.map((node) => [node[0], node]));
    const boxes = m.layout(nodes, b[0], b[1], b[2]);
    const uid = (node) => node && node[0];
    return Array.from({length: boxes.count}, (_, i) => [
        uid(boxes.node[i]), boxes.row[i], boxes.x[i], boxes.width[i], boxes.more[i]]);
"""


def node(uid: int, parent: int, tokens: int, below: int, space: int = 1) -> list[int]:
    return [uid, parent, 0, tokens, 0, uid, 0, below, space]


def test_a_layout_is_as_wide_as_tokens(page: Page) -> None:
    nodes = [node(1, 0, 40, 100), node(2, 1, 20, 20), node(3, 1, 40, 40), node(4, 0, 100, 100, 2)]
    found = call(page, "tree/layout.js", BOXES, nodes, [0, 400, 0])
    assert sorted(found) == [
        [1, 0, 0, 200, 0],
        [2, 1, 0, 40, 0],
        [3, 1, 40, 80, 0],
        [4, 0, 200, 200, 0],
    ]
    zoomed = call(page, "tree/layout.js", BOXES, nodes, [3, 400, 0])
    assert zoomed == [[3, 0, 0, 400, 0]]
    # What all stand for may be more than what is shown.
    assert call(page, "tree/layout.js", BOXES, nodes, [0, 400, 400])[0][3] == 100


def test_thin_nodes_are_drawn_together(page: Page) -> None:
    nodes = [node(1, 0, 5000, 10_000), *(node(uid, 1, 1, 1) for uid in range(2, 5002))]
    found = call(page, "tree/layout.js", BOXES, nodes, [0, 1000, 0])
    assert found == [[1, 0, 0, 1000, 0], [None, 1, 0, 500, 5000]]


def test_boxes_of_any_tree_lie_within_their_parents(page: Page) -> None:
    chance = random.Random(3)
    nodes = {0: node(0, 0, 0, 0)}
    for uid in range(1, 400):
        parent = chance.randrange(0, uid)
        nodes[uid] = node(uid, parent, chance.randint(1, 90), 0)
    for uid in range(399, 0, -1):
        nodes[uid][7] += nodes[uid][3]
        if nodes[uid][1]:
            nodes[nodes[uid][1]][7] += nodes[uid][7]
    del nodes[0]
    found = call(page, "tree/layout.js", BOXES, list(nodes.values()), [0, 1200, 0])
    places = {uid: (row, x, width) for uid, row, x, width, _ in found if uid is not None}
    rows: dict[int, list[tuple[float, float]]] = {}
    for uid, (row, x, width) in places.items():
        rows.setdefault(row, []).append((x, width))
        if parent := nodes[uid][1]:
            above, left, wide = places[parent]
            assert row == above + 1 and left - 0.01 <= x and x + width <= left + wide + 0.01
    for boxes in rows.values():
        boxes.sort()
        pairs = pairwise(boxes)
        assert all(x + width <= after + 0.01 for (x, width), (after, _) in pairs)


def test_what_is_being_computed_hangs_below_the_tree(page: Page) -> None:
    nodes = [node(1, 0, 10, 10)]
    reqs = [
        {"rid": "a", "prompt": 15, "output": 3, "node": 1},
        {"rid": "b", "prompt": 7, "output": 0, "node": 0},
        {"rid": "c", "prompt": 10, "output": 0, "node": 1},
    ]
    body = "return [...m.withGrowing(new Map(a.map((n) => [n[0], n])), b).values()]"
    found = {each[0]: each for each in call(page, "tree/layout.js", body, nodes, reqs)}
    assert set(found) == {1, -1, -2} and found[1][7] == 18
    assert (found[-1][1], found[-1][3], found[-2][1], found[-2][3]) == (1, 8, 0, 7)
    assert nodes[0][7] == 10


def test_rates_are_differences_and_a_restart_is_no_rate(page: Page) -> None:
    def pulse(t: float, generated: int, prompt: int, cached: int) -> dict[str, Any]:
        stats = {
            "generation_tokens_total": generated,
            "prompt_tokens_total": prompt,
            "cached_tokens_total": cached,
        }
        latency = {"ttft_s": [0.1, 0.2], "itl_s": None}
        return {"t": t, "replicas": [stats, stats], "latency": latency, "parts": []}

    pulses = [pulse(1, 100, 10, 0), pulse(2, 150, 30, 15), pulse(3, 10, 0, 0)]
    rates = call(page, "pulse/rates.js", "return m.ratesOf(a)", pulses)
    assert rates["generated"] == [None, 100, None]  # of two replicas
    assert rates["hit"] == [None, 75, None]
    assert rates["ttft99"] == [200, 200, 200] and rates["itl50"] == [None, None, None]


def step(name: str, t0: float, t1: float | None, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "t0": t0, "t1": t1, "after": list(after), "error": None} | more


FORKED = [
    step("0/0", 0.0, 1.0),
    step("0/fork1.0/0", 1.0, 2.0, "0/0"),
    step("0/fork1.1/0", 1.0, 3.0, "0/0"),
    step("0/fork1.1/1", 3.001, 4.0, "0/fork1.1/0"),
    step("0/fork1.2/0", 1.0, 4.9, "0/0"),  # which nobody waited for
    step("0/2", 4.002, 5.0, "0/fork1.0/0", "0/fork1.1/1"),
    step("1/0", 0.0, 3.0),  # another row
    step("0/3", 5.0, None, "0/2"),  # at work
]


def test_the_critical_path_is_what_was_waited_for(page: Page) -> None:
    path = "return m.criticalPath(a).map((step) => step.id)"
    found = call(page, "programs/lanes.js", path, FORKED)
    assert found == ["0/0", "0/fork1.1/0", "0/fork1.1/1", "0/2"]
    assert call(page, "programs/lanes.js", path, []) == []
    assert call(page, "programs/lanes.js", path, [step("0/0", 0.0, None)]) == []
    # What a tool does is done while the tool is called; an id that is not there is not waited for.
    inside = [
        step("0/0", 0.0, 1.0, "0/9"),
        step("0/1", 1.0, 4.0, "0/0"),
        step("0/run1/0", 2.0, 3.0, "0/1"),
        step("0/run1/1", 3.0, 4.1, "0/run1/0", "0/1"),
    ]
    assert call(page, "programs/lanes.js", path, inside) == ["0/0", "0/run1/0", "0/run1/1"]
    round_and_round = [step("0/0", 1.0, 1.0, "0/1"), step("0/1", 1.0, 1.0, "0/0", "0/1")]
    assert len(call(page, "programs/lanes.js", path, round_and_round)) == 2


def test_lanes_are_in_the_order_of_their_addresses(page: Page) -> None:
    lanes = call(page, "programs/lanes.js", "return m.lanesOf(a).map(([lane]) => lane)", FORKED)
    assert lanes == ["0", "0/fork1.0", "0/fork1.1", "0/fork1.2", "1"]
    body = "return a.map(m.laneTitle)"
    titles = call(page, "programs/lanes.js", body, ["0", "0/fork1.2", "1", "0/run3/fork1.2"])
    assert titles == ["main", "fork 1, child 2", "row 1", "run 3 › fork 1, child 2"]


def test_connectors_lead_from_lane_to_lane(page: Page) -> None:
    body = "return m.connectors(a).map((pair) => pair.map((step) => step.id))"
    assert sorted(call(page, "programs/lanes.js", body, FORKED)) == [
        ["0/0", "0/fork1.0/0"],
        ["0/0", "0/fork1.1/0"],
        ["0/0", "0/fork1.2/0"],
        ["0/fork1.0/0", "0/2"],
        ["0/fork1.1/1", "0/2"],
    ]


def test_arrow_keys_lead_from_call_to_call(page: Page) -> None:
    body = "return m.neighbour(m.lanesOf(a), b, c)?.id ?? null"

    def after(name: str, key: str) -> str | None:
        found: str | None = call(page, "programs/lanes.js", body, FORKED, name, key)
        return found

    assert after("0/0", "ArrowRight") == "0/2" and after("0/2", "ArrowLeft") == "0/0"
    assert after("0/0", "End") == "0/3" and after("0/3", "Home") == "0/0"
    assert after("0/2", "ArrowDown") == "0/fork1.0/0"
    assert after("0/fork1.0/0", "ArrowDown") == "0/fork1.1/0"
    assert after("0/fork1.1/1", "ArrowUp") == "0/fork1.0/0"
    assert after("0/0", "ArrowLeft") is after("0/0", "ArrowUp") is after("0/0", "x") is None
    assert after("9/9", "ArrowRight") is None


def test_a_run_goes_on_until_it_ends_or_is_silent(page: Page) -> None:
    body = "return m.progress({ ...a, steps: new Map(a.steps.map((s) => [s.id, s])) }, b)"
    run = {"started": 100.0, "ended": None, "heard": 103.0, "steps": [step("0/0", 0.0, 2.5)]}
    found = call(page, "programs/runs.js", body, run, 104.0)
    assert found == {"state": "running", "took": 4.0}
    found = call(page, "programs/runs.js", body, run, 1000.0)
    assert found == {"state": "silent", "took": 63.0}
    found = call(page, "programs/runs.js", body, run, 90.0)  # clocks of two machines
    assert found == {"state": "running", "took": 2.5}
    found = call(page, "programs/runs.js", body, run | {"ended": 102.6}, 1000.0)
    assert found["state"] == "ended" and round(found["took"], 6) == 2.6


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "quotes ' \" and \\ and \n and \t",
        "\u2028\u2029\u202e\u2066\x7f\x85",
        "emoji 😀, é, 中",
        "\x00\x1b[31m",
        {"a": [1, 2.5, None, True, False], "b": {"c": "'''"}},
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
    ],
)
def test_values_are_written_as_python_reads_them(page: Page, value: Any) -> None:
    for indent in ("undefined", "4"):
        text = call(
            page, "chat/copy.js", f"return m.literal(JSON.parse(a), {indent})", json.dumps(value)
        )
        assert ast.literal_eval(text) == value


def test_control_characters_can_be_seen(page: Page) -> None:
    shown = call(page, "dom.js", "return m.visible(a)", "a\x00\x1b\x7f\u202eb\n\tc")
    assert shown == "a␀␛␡⟨U+202E⟩b\n\tc"


def test_rows_stay_the_same_elements(page: Page) -> None:
    body = """
        const row = (key, text) => m.el('tr', { attrs: { 'data-key': key } }, m.el('td', {}, text));
        const table = m.el('tbody');
        m.renew(table, [row('a', 1), row('b', 2), row('x', 0)]);
        const [a, b] = table.children;
        m.renew(table, [row('c', 3), row('b', 4), row('a', 1)]);
        const rows = [...table.children];
        return [rows.map((row) => row.dataset.key + row.textContent), rows[1] === b, rows[2] === a];
    """
    assert call(page, "dom.js", body) == [["c3", "b4", "a1"], True, True]


def test_rows_of_requests_that_share_an_id_go_when_they_end(page: Page) -> None:
    """As those of a `select` with several choices do."""
    body = """
        const requests = new m.Requests(() => {});
        const counts = [];
        for (const rids of a) {
            const running = rids.map((rid, prompt) => (
                { rid, prompt, output: 0, age_s: 1, cached: 0, node: 0 }));
            requests.show({ running, waiting: [] }, new Map());
            const words = ({ cells }) => cells[0].textContent + cells[2].textContent;
            counts.push([...requests.body.rows].map(words));
        }
        return counts;
    """
    rids = [["a"] * 4 + ["b"], ["b", "a", "a"], ["b"], []]
    shown = [[f"{rid}{at} + 0" for at, rid in enumerate(each)] for each in rids]
    assert call(page, "tree/requests.js", body, rids) == shown


def test_rows_of_equal_keys_are_replaced(page: Page) -> None:
    body = """
        const row = (key, text) => m.el('tr', { attrs: { 'data-key': key } }, m.el('td', {}, text));
        const table = m.el('tbody');
        m.renew(table, [row('a', 1), row('a', 2), row('b', 3)]);
        m.renew(table, [row('a', 4)]);
        return table.textContent;
    """
    assert call(page, "dom.js", body) == "4"


def test_a_text_that_cannot_be_had_is_not_asked_for_at_once(page: Page) -> None:
    body = """
        const real = window.fetch;
        let asked = 0;
        window.fetch = async () => {
            asked += 1;
            return new Response('{"error": {"message": "gone"}}', { status: 404 });
        };
        const texts = new m.Texts({ watchHeaders: () => ({}) });
        const more = [await texts.getAll(0, a), await texts.getAll(0, a)];
        window.fetch = real;
        return [more, asked];
    """
    nodes = [node(1, 0, 4, 4), node(2, 0, 4, 4)]
    assert call(page, "tree/texts.js", body, nodes) == [[False, False], 2]


def test_reasoning_stands_apart_and_is_not_sent(page: Page) -> None:
    body = """
        const answer = new m.Answer(false);
        answer.take({ delta: { reasoning_content: 'hm, ' } });
        const isOpen = answer.folded.open;
        answer.take({ delta: { content: 'yes' } });
        answer.end();
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const parts = [answer.reasoning, answer.content].map((part) => part.root.textContent);
        const { withSystem } = await import('/ui/chat/requests.js');
        return [parts, isOpen, answer.folded.open, withSystem({}, [answer.message()])];
    """
    sent = [{"role": "assistant", "content": "yes"}]
    assert call(page, "chat/answer.js", body) == [["hm, ", "yes"], True, False, sent]


def test_who_is_told_everything_forgets_runs(page: Page) -> None:
    body = """
        const feed = new m.Feed({});
        feed.take({ type: 'run', run: 'r', steps: [], dropped: [], ended: null, cut: 0, t: 1 });
        const hello = { type: 'hello', launcher: 1, epoch: 1, incarnations: [0] };
        feed.take(hello);
        const before = feed.runs.size;
        feed.take({ ...hello, whole: true });
        return [before, feed.runs.size];
    """
    assert call(page, "feed.js", body) == [1, 0]


@pytest.mark.parametrize("name", ["constructor", "nothing", ""])
def test_an_address_without_a_tab_shows_the_chat(page: Page, name: str) -> None:
    page.evaluate("(name) => { location.hash = `#/${name}` }", name)
    page.reload()
    expect(page.get_by_role("tab", name="Chat")).to_have_attribute("aria-selected", "true")


def test_only_percent_signs_stand_for_characters_of_a_key(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#key=a%2Bb+c")
    assert page.evaluate("sessionStorage.getItem('srt-admin-key')") == "a+b+c"
