"""The chat and the playground, as a person uses them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server
from tests.ui.conftest import Open, address

pytestmark = pytest.mark.ui
ROOT = Path(__file__).parents[2]


def settings(page: Page, **values: str) -> None:
    """Fill fields by their labels, with blanks for underscores."""
    for name, value in values.items():
        page.get_by_label(name.replace("_", " "), exact=True).fill(value)


def begin(page: Page, text: str, **values: str) -> None:
    """Send a message with these settings, and wait for the beginning of its answer."""
    settings(page, **values)
    page.get_by_role("textbox", name="Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer").first).not_to_be_empty()


def send(page: Page, text: str, ends: int = 1) -> None:
    """Send a message, and wait until so many answers have ended."""
    page.get_by_role("textbox", name="Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("ended by")).to_have_count(ends)


def constrain(page: Page, kind: str, text: str) -> None:
    page.get_by_label("Constraint", exact=True).select_option(kind)
    page.get_by_label("Text of the constraint").fill(text)


def test_a_chat_streams(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    assert "key" not in page.url
    settings(page, System_text="You are brief.")
    begin(page, "Tell me a long story.", Most_tokens="600", Temperature="1")
    answer = page.locator(".answer").first
    expect(page.get_by_text("ended by")).to_have_count(0)  # some of it, before its end
    first = answer.inner_text()
    expect(page.get_by_text("ended by")).to_have_count(1)
    assert len(answer.inner_text()) > len(first)
    send(page, "And then?", ends=2)
    # A regex: of a text, Playwright drops the blank at the start, and then 100 has it too.
    cached = page.get_by_text("prompt tokens from the cache").last
    expect(cached).to_contain_text(re.compile(r"\b[1-9][0-9]* of "))


def test_an_answer_can_be_stopped(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    begin(page, "Count to a million.", Most_tokens="3000", Temperature="1.5")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    server.wait_idle()


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "a(b", "missing )"),
        ("json_schema", '{"type": "objec"}', "not a JSON type"),
        ("json_schema", '{"type": ', "no JSON"),
        ("ebnf", "root ::= nothing", "nothing"),
    ],
)
def test_an_error_of_a_constraint_stands_at_its_field(
    server: Server, open_page: Open, kind: str, text: str, message: str
) -> None:
    page = open_page(address(server), expects=("status of 400",))
    constrain(page, kind, text)
    page.get_by_role("textbox", name="Message", exact=True).fill("Answer.")
    page.get_by_role("button", name="Send").click()
    field = page.get_by_label("Text of the constraint")
    expect(field).to_have_attribute("aria-invalid", "true")
    error = page.locator(f"#{field.get_attribute('aria-describedby')}")
    expect(error).to_contain_text(message)
    below = error.bounding_box()
    box = field.bounding_box()
    assert below and box and 0 <= below["y"] - box["y"] - box["height"] < 20
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value("Answer.")
    constrain(page, "regex", "yes")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer").first).to_have_text("yes")


def test_several_samples_stand_side_by_side(server: Server, open_page: Open) -> None:
    page = open_page(address(server), viewport={"width": 1400, "height": 900})
    settings(page, Samples="3", Most_tokens="12", Temperature="1.2")
    send(page, "Name a colour.")
    columns = page.locator(".column")
    expect(columns).to_have_count(3)
    places = [columns.nth(i).bounding_box() for i in range(3)]
    assert len({box["y"] for box in places if box}) == 1
    assert len({box["x"] for box in places if box}) == 3


def test_tokens_tell_their_chances_and_origins(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_label("Show tokens").check()
    settings(page, Temperature="0", Most_tokens="40")
    constrain(page, "regex", "[a-z]{3}: this was forced, [0-9]")
    send(page, "Answer in some way.")
    tokens = page.locator(".answer .token")
    expect(tokens.first).to_be_visible()
    assert tokens.locator("xpath=self::*[@data-origin='j']").count() > 2
    assert tokens.first.get_attribute("data-origin") == "s"
    tokens.first.hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("sampled")
    expect(tip).to_contain_text("without the constraint, which may forbid some")
    assert tip.get_by_role("row").count() == 5
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("forced by the constraint; ")
    # It is painted neither likely nor unlikely, and nothing else was allowed there.
    forced = tokens.locator("xpath=self::*[@data-origin='j']")
    assert {each.get_attribute("class") for each in forced.all()} == {"token from-j"}
    expect(tip.get_by_role("row", name="not allowed").first).to_be_visible()
    expect(page.get_by_text("Colours are probabilities without")).to_be_visible()
    # The second time, the prompt is in the cache.
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text("tokens from the cache").last).not_to_contain_text(" 0 of")
    prompt = page.locator("details.prompt")
    expect(prompt).to_have_count(1)
    prompt.locator("summary").click()
    shaded = prompt.locator(".from-cache").count()
    assert 10 < shaded < prompt.locator(".token").count()
    expect(prompt.locator("summary")).to_contain_text(f"{shaded} of ")


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_a_request_can_be_copied(
    server: Server, open_page: Open, tmp_path: Path, mode: str
) -> None:
    page = open_page(address(server))
    page.get_by_label("Mode").select_option(mode)
    settings(page, Temperature="0", Most_tokens="30", Seed="5")
    constrain(page, "regex", r"it's [a-z\"]{2,4}\n")
    label = "Message" if mode == "chat" else "Text to complete"
    words = 'Don\'t say "no"\\ $HOME `x` or \u202e\nmore'
    page.get_by_role("textbox", name=label, exact=True).fill(words)
    answers = []
    for name, suffix in (("curl", ".sh"), ("Python", ".py"), ("lang", "_lang.py")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_text(f"Copied as {name}.")).to_be_visible()
        path = tmp_path / f"program{suffix}"
        path.write_text(page.evaluate("navigator.clipboard.readText()"))
        command = ["sh", str(path)] if name == "curl" else [sys.executable, str(path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, check=True
        )
        answers.append(done.stdout)
    assert "it's " in answers[0] and answers[1].startswith("it's ")
    assert answers[1] == answers[2]
    assert answers[1].strip()[:8] in answers[0].replace("\\n", "\n").replace('\\"', '"')


HOSTILE = [
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">",
    "</textarea></div><style>* { display: none }</style>",
    "\u202egnirts desrever\u202c and \u2066isolated",
    "null \u0000 bell \u0007 escape \u001b[31m delete \u007f",
    "![x](http://elsewhere.test/x.png) [y](javascript:alert(1))",
]


def test_hostile_prompts_are_shown_as_text(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_label("Show tokens").check()
    settings(page, Most_tokens="4")
    for number, text in enumerate(HOSTILE, 1):
        send(page, text.replace("\u0000", ""), ends=number)
        shown = page.locator(".turn.user .text").last.inner_text()
        assert shown.startswith(text[:4].replace("\u202e", "⟨U+202E⟩")[:4])
    assert page.title() == "srt"
    expect(page.locator(".turn.user img, .turn.user script, .turn.user style")).to_have_count(0)
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#tree tr[data-node]").first).to_be_visible()
    assert page.title() == "srt"


def test_a_long_line_does_not_stop_the_page(server: Server, open_page: Open) -> None:
    page = open_page(address(server), expects=("status of 400",))
    box = page.get_by_role("textbox", name="Message", exact=True)
    box.evaluate("(box) => { box.value = 'x'.repeat(1_000_000) }")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("tokens")  # longer than the context
    page.get_by_role("button", name="Clear").click()
    box.fill("Hello.")
    settings(page, Most_tokens="4")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("ended by")).to_have_count(1)


def test_a_reload_keeps_the_chat(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    settings(page, Most_tokens="6", System_text="Be kind.")
    send(page, "Remember this.")
    answer = page.locator(".answer").inner_text()
    page.reload()
    expect(page.get_by_text("Remember this.")).to_be_visible()
    expect(page.locator(".turn.assistant .answer")).to_have_text(answer)
    expect(page.get_by_label("System text")).to_have_value("Be kind.")
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#status")).to_have_text("live")  # the key was kept too


def test_empty_fields_are_the_models(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    field = page.get_by_label("Temperature", exact=True)
    expect(field).to_have_value("")
    expect(field).to_have_attribute("placeholder", "1")
    settings(page, Most_tokens="2", Top_p="0.5")
    with page.expect_request("**/v1/chat/completions") as asked:
        send(page, "Hello")
    body = asked.value.post_data_json
    assert body["top_p"] == 0.5 and "temperature" not in body and "min_p" not in body
    with page.expect_request("**/v1/chat/completions") as asked:
        settings(page, Temperature="1")
        send(page, "Hello", ends=2)
    assert asked.value.post_data_json["temperature"] == 1


def test_a_completion_goes_on_from_a_text(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    page.get_by_label("Mode").select_option("completion")
    page.get_by_label("Show tokens").check()
    settings(page, Temperature="0", Most_tokens="4")
    page.get_by_role("textbox", name="Text to complete").fill("The capital of France is")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer")).to_contain_text("Paris")
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]["text"]
    assert page.locator(".answer").inner_text().strip() == answer.strip()


def test_what_was_cleared_while_it_came_is_gone(server: Server, open_page: Open) -> None:
    page = open_page(address(server))
    begin(page, "Tell a long story.", Most_tokens="400", Temperature="0")
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.locator(".turn")).to_have_count(0)
    settings(page, Most_tokens="4")
    with page.expect_request("**/v1/chat/completions") as asked:
        send(page, "Hello.")
    body = asked.value.post_data_json
    assert body and [each["content"] for each in body["messages"]] == ["Hello."]
    server.wait_idle()


def test_a_refused_second_try_leaves_the_first(server: Server, open_page: Open) -> None:
    page = open_page(address(server), expects=("status of 400",))
    settings(page, Most_tokens="4")
    send(page, "Hello.")
    expect(page.locator(".answer")).not_to_be_empty()
    said = page.locator(".answer").inner_text()
    constrain(page, "regex", "a(b")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_label("Text of the constraint")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".answer")).to_have_text(said)
    saved = page.evaluate("JSON.parse(sessionStorage.getItem('srt-chat'))")
    assert [each["role"] for each in saved] == ["user", "assistant"]


def test_an_empty_page_says_what_the_server_is(
    server: Server, open_page: Open, picture: Any
) -> None:
    page = open_page(address(server))
    welcome = page.locator(".welcome")
    expect(welcome.locator("p")).to_contain_text(f"{server.url}/v1")
    picture(page, "empty")
    for number, answers in enumerate((1, 1, 1, 4)):
        expect(welcome.get_by_role("button")).to_have_count(4)
        settings(page, Most_tokens="40")
        welcome.get_by_role("button").nth(number).click()
        expect(page.get_by_text("ended by")).to_have_count(1)
        expect(page.locator(".answer")).to_have_count(answers)
        expect(welcome).to_have_count(0)
        expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
        if number == 1:  # its schema admits no other keys
            assert set(json.loads(page.locator(".answer").inner_text())) == {"name", "year"}
        expect(page.locator(".answer .tokens")).to_have_count(1 if number == 2 else 0)
        page.get_by_role("button", name="Clear").click()


@pytest.mark.parametrize(("width", "height"), [(375, 667), (375, 560), (1280, 720)])
def test_send_is_in_sight(server: Server, open_page: Open, width: int, height: int) -> None:
    page = open_page(address(server), viewport={"width": width, "height": height})
    settings_shown = page.locator(".side")
    if width < 800:
        expect(settings_shown).not_to_have_attribute("open", "")
    button = page.get_by_role("button", name="Send")

    def is_in_sight() -> bool:
        box = button.bounding_box()
        return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height

    assert is_in_sight()
    page.evaluate("""() => {
        for (let i = 0; i < 40; i += 1) {
            const line = document.createElement('p');
            line.textContent = 'x';
            document.querySelector('#chat .log').append(line);
        }
    }""")
    assert is_in_sight()
    settings_shown.evaluate("(side) => { side.open = true }")
    button.scroll_into_view_if_needed()
    assert is_in_sight()


def test_examples_are_completions_where_there_is_no_chat_template(
    server: Server, open_page: Open
) -> None:
    page = open_page(f"{server.url}/docs")
    page.route("**/tokenizer_info", lambda route: route.fulfill(json={"chat_template": None}))
    with page.expect_response("**/tokenizer_info"):
        page.goto(address(server))
    settings(page, Most_tokens="8")
    page.locator(".welcome").get_by_role("button").first.click()
    expect(page.get_by_text("ended by")).to_have_count(1)
    expect(page.get_by_label("Mode")).to_have_value("completion")
