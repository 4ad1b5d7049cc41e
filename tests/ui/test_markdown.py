"""Answers as Markdown: in pieces and whole, long ones, and hostile ones."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server
from tests.ui.conftest import Open, address
from tests.ui.test_chat import send
from tests.ui.test_modules import call

pytestmark = pytest.mark.ui

MARKED = """\
# Fruits

Some **fruits** are *sweet*, ~~none~~ `a_b_c` is,
and a second line.

1. apples

2. pears
   - green
   - [x] yellow

> quoted **text**

| name | weight |
| :--- | -----: |
| fig  | 40     |

```python
print("<b>*hello*</b>")  # &amp;
```

See [the site](https://fruits.test/list?a=1&b=2) or [later][one], a &lt; b.

[one]: https://fruits.test/one

---
"""
HOSTILE = """\
<script>document.title = 'taken'</script>

<img src="https://fruits.test/a.png" onerror="document.title = 'taken'">
<svg onload="document.title = 'taken'"><a xlink:href="javascript:document.title='taken'">x</a></svg>
<style>* { display: none; background: url(https://fruits.test/b.png) }</style>
<iframe srcdoc="<script>parent.document.title = 'taken'</script>"></iframe>
<form action="https://fruits.test/"><button>Send</button></form>
<meta http-equiv="refresh" content="0; url=https://fruits.test/">
<a href="/flush_cache" onclick="document.title = 'taken'">link</a>

![picture](https://fruits.test/c.png "title") ![data](data:image/svg+xml,<svg/onload=alert(1)>)

[a](javascript:document.title='taken') [b](JaVaScRiPt&#58;alert(1)) [c](java\tscript:alert(1))
[d](data:text/html,<script>alert(1)</script>) [e](vbscript:x) [f](file:///etc/passwd)
[g](/flush_cache) [h](//fruits.test/x) [i](#key=evil) [j](https://user:word@fruits.test/)
<javascript:alert(1)> [k]( javascript:alert(1)) [l](<javascript:alert(1)>) [m][n] OWN

[n]: javascript:alert(1)

```"><script>document.title = 'taken'</script>
</code></pre><script>document.title = 'taken'</script>
```

| <img src=x onerror="document.title = 'taken'"> | b |
| --- | --- |
| <script>document.title = 'taken'</script> | <b style="color: red">c</b> |

\u202egnirts desrever and \u001b[31m
"""
ELEMENTS = """
    [...document.querySelectorAll('.answer, .answer *')].map((each) => [
        each.tagName.toLowerCase(), ...each.getAttributeNames().sort()])
"""
ALLOWED = {
    *("div", "p", "h4", "ul", "ol", "li", "blockquote", "hr", "br", "pre", "code", "span", "a"),
    *("strong", "em", "del", "table", "thead", "tbody", "tr", "th", "td", "button"),
}
ATTRIBUTES = {
    *("class", "dir", "role", "tabindex", "aria-label", "type", "start"),
    *("href", "rel", "target", "title"),
}


def answer_with(page: Page, *deltas: dict[str, str]) -> None:
    """Have the page's next requests answered with these deltas."""
    choices: list[dict[str, object]] = [{"delta": delta} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": "stop"})
    chunks = [json.dumps({"choices": [{"index": 0, **choice}]}) for choice in choices]
    body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )


def test_an_answer_is_shown_as_markdown(server: Server, open_page: Open, picture: Any) -> None:
    page = open_page(address(server))
    answer_with(page, *({"content": MARKED[at : at + 7]} for at in range(0, len(MARKED), 7)))
    send(page, "Show it.")
    for _ in ("as it came", "as it was kept"):
        answer = page.locator(".turn.assistant .answer")
        expect(answer.locator("hr")).to_have_count(1)  # its end
        expect(answer.get_by_role("heading")).to_have_text("Fruits")
        assert answer.locator("strong").all_inner_texts() == ["fruits", "text"]
        assert answer.locator("em, del, p > code").all_inner_texts() == ["sweet", "none", "a_b_c"]
        expect(answer.locator("p br")).to_have_count(1)
        expect(answer.locator("ol > li")).to_have_count(2)
        assert answer.locator("ul > li").all_inner_texts() == ["green", "☑ yellow"]
        expect(answer.locator("blockquote")).to_have_text("quoted text")
        assert answer.locator("th, td").all_inner_texts() == ["name", "weight", "fig", "40"]
        right = answer.locator("td").last.evaluate("(cell) => getComputedStyle(cell).textAlign")
        assert right == "right"
        code = 'print("<b>*hello*</b>")  # &amp;'
        expect(answer.get_by_label("Code, python")).to_have_text(code)
        links = [link.get_attribute("href") for link in answer.get_by_role("link").all()]
        assert links == ["https://fruits.test/list?a=1&b=2", "https://fruits.test/one"]
        answer.get_by_role("button", name="Copy").click()
        expect(answer.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == code
        end = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
        assert page.get_by_role("log").evaluate(end) < 2  # it is in sight
        picture(page, "markdown")
        page.reload()
    # Where its characters matter, it stays as it was written.
    page.get_by_label("Constraint", exact=True).select_option("regex")
    page.get_by_role("button", name="Clear").click()
    send(page, "Show it.")
    assert page.locator(".answer .text").inner_text() == MARKED


def test_a_hostile_answer_does_nothing(server: Server, open_page: Open, picture: Any) -> None:
    page = open_page(address(server))
    text = HOSTILE.replace("OWN", f"[o]({server.url}/flush_cache)")
    answer_with(page, {"content": text})
    send(page, "Attack.")
    expect(page.locator(".answer")).to_contain_text("gnirts desrever")
    for tag, *attributes in page.evaluate(ELEMENTS):
        assert tag in ALLOWED and ATTRIBUTES.issuperset(attributes), (tag, attributes)
    links = page.locator(".answer").get_by_role("link")
    assert {link.get_attribute("href") for link in links.all()} == {"https://fruits.test/c.png"}
    shown = page.locator(".answer").inner_text()
    for part in ("<script>document", "<svg onload", "[a](java", "[g](/flush_cache)", "␛[31m"):
        assert part in shown
    picture(page, "hostile")
    page.wait_for_timeout(300)  # for what might still be loaded
    assert page.title() == "srt"


@pytest.fixture
def page(server: Server, open_page: Open) -> Page:
    return open_page(f"{server.url}/")


# Without the elements that hold what may change: which blocks they hold depends on the pieces.
SHOWN = """
    const shown = (pieces) => {
        const markdown = new m.Markdown();
        const { root } = markdown;
        for (const piece of pieces) {
            markdown.append(piece);
            while (markdown.step());
        }
        markdown.end();
        while (markdown.step());
        for (const part of root.querySelectorAll('.part')) part.replaceWith(...part.childNodes);
        return root;
    };
"""
TEXTS = [
    MARKED,
    HOSTILE,
    "1. a\n\n2. b\n\n10. c\n\nd\n\n- e\n\n  f\n\n- g\n* h\n\n    code\n\ni\n===\nj\n---\n",
    "> a\nb\n\n> c\n\n```\nd\n``\n````\n~~~x\ne\n\n~~~\n| a |\n|---|\n| b |\nc\n\n<div>\n\n*d*",
    "- a\n  b\u3000\n  c\u2028\n- d\n",
    "**a\n\nb** [c]\n\n- [ ] d\n- [x] e\n\n[c]: https://fruits.test/\n",
    "```\n" + "a\u2028```\n``\n" * 3000 + "  ````\n*b*\n",
    "- *a* b\n" * 2000 + "1. c\n\n" * 2000,
    "*a* b " * 2000 + "\n\n" + "> c\n" * 3000,
    "[a]\n\n" * 1500 + "[a]: https://fruits.test/\n\n" + "[a]\n\n" * 1500,
]


def test_an_answer_is_the_same_however_it_comes(page: Page) -> None:
    chance = random.Random(5)
    body = f"{SHOWN} return shown(a).innerHTML"
    for text in TEXTS:
        ways = [list(text)] if len(text) < 5000 else []
        for most in (3, 9, 40):
            cuts = sorted(chance.sample(range(len(text)), max(1, len(text) // most)))
            ways.append([text[a:b] for a, b in pairwise([0, *cuts, len(text)])])
        whole = call(page, "chat/markdown.js", body, [text])
        for pieces in ways:
            assert call(page, "chat/markdown.js", body, pieces) == whole


def test_long_blocks_are_read_to_their_ends(page: Page) -> None:
    code = "```\n" + "x = f(y)\u2028\n" * 3000 + "```\n\n*then* `a`\n"
    items = "".join(f"{number}. **bold**\n\n" for number in range(1, 2001))
    body = f"""{SHOWN}
        const all = (root, names) => [...root.querySelectorAll(names)];
        return [
            all(shown([a]), 'pre, em, p code').map((each) => each.textContent.length),
            all(shown([b]), 'li strong').length,
            all(shown([b]), 'ol').at(-1).start,
        ]"""
    told, bold, start = call(page, "chat/markdown.js", body, code, items)
    assert told == [len("x = f(y)\u2028\n" * 3000) - 1, len("then"), len("a")]
    assert bold == 2000 and start > 1000


WORK = """
    const { Lexer } = await import('/ui/vendor/marked.esm.js');
    const real = Lexer.prototype.lex;
    let read = 0, most = 0;
    Lexer.prototype.lex = function (text) {
        read += text.length;
        if (!text.startsWith('`')) most = Math.max(most, text.length);
        return real.call(this, text);
    };
    const markdown = new m.Markdown();
    for (let at = 0; at < a.length; at += 5) {
        markdown.append(a.slice(at, at + 5));
        while (markdown.step());
    }
    markdown.end();
    while (markdown.step());
    Lexer.prototype.lex = real;
    return [read / a.length, most, markdown.root.textContent.length];
"""


LONG = [
    "A paragraph of **some** words.\n\n" * 3000,
    "A line of one long paragraph.\n" * 3000,
    "```\n" + "x = f(y)\n" * 9000,
    "- an item of one list\n" * 3000,
    "- an item of one list\n\n" * 3000,
]


def test_the_work_for_a_piece_is_bounded(page: Page) -> None:
    for text in LONG:
        # How often each character is read, and how many are read at once.
        times, most, shown = call(page, "chat/markdown.js", WORK, text)
        assert times < 50 and most < 9500
        assert shown > len(text) / 2


CHOKING = [
    *("> ", "- ", "1. ", "[", "*a ", "**a_", "_*a", "__a", "`", "<", "![a](", "|a", "&", "a@", "("),
    *("_", "~", "<!--", "a\n", "- a\n", "* a\n\n", "|a\n|-\n", "\\"),
]
TABLE = "|a" * 900 + "\n" + "|-" * 900 + "\n" + "a\n" * 2000
SIZES = f"""{SHOWN}
    const root = shown(a);
    const depth = (each) => 1 + Math.max(0, ...[...each.children].map(depth));
    return [root.querySelectorAll('*').length, depth(root), root.textContent.includes('end')];
"""


def test_what_a_reader_of_markdown_may_choke_on_is_shown(page: Page) -> None:
    """It makes no more elements than it has characters, and none that are deep."""
    for text in [*(part * (7900 // len(part)) for part in CHOKING), TABLE, "|a" * 10_000]:
        count, depth, is_whole = call(page, "chat/markdown.js", SIZES, [text, "\n\nend"])
        assert count <= len(text) + 10 and depth < 40 and is_whole, text[:9]


def test_links_have_texts_and_hold_no_links(page: Page) -> None:
    links = "[![a](https://a.test/)](https://b.test/) [](https://c.test/) [d](https://:e@f.test/)"
    body = f"""{SHOWN} return [...shown([a]).querySelectorAll('a')].map((link) => [
        link.getAttribute('href'), link.textContent, link.querySelectorAll('a').length])"""
    assert call(page, "chat/markdown.js", body, f"{links}\n\n#\n") == [
        ["https://b.test/", "Picture: a", 0],
        ["https://c.test/", "https://c.test/", 0],
    ]


def test_reasoning_stands_apart(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    deltas = ({"role": "assistant", "content": ""}, {"reasoning_content": "Well, **hm**."})
    answer_with(page, *deltas, {"content": "It is *so*."})
    send(page, "Think.")
    for _ in ("as it came", "as it was kept"):
        answer = page.locator(".turn.assistant .answer")
        reasoning = answer.locator("details.reasoning")
        expect(reasoning).not_to_have_attribute("open", "")
        expect(answer.get_by_text("It is so.")).to_be_visible()
        expect(reasoning.get_by_text("Well, hm.")).to_be_hidden()
        reasoning.locator("summary").click()
        expect(reasoning.get_by_text("Well, hm.")).to_be_visible()
        page.reload()
    with page.expect_request("**/v1/chat/completions") as asked:
        send(page, "Go on.")
    said = {"role": "assistant", "content": "It is *so*."}
    assert asked.value.post_data_json["messages"][1] == said
