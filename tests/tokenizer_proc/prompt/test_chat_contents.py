"""How templates take the parts of messages, and what they get."""

import pytest

from srt.answers.tool_format import HERMES
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec
from tests.tokenizer_proc.media.test_front_media import BOTH, LISTS
from tokenizer_proc.prompt.chat_contents import ContentForm, Contents, joined
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.continuation import render_open
from tokenizer_proc.prompt.tools_as_text import with_tools_as_text

KINDS = ["image", "video", "image"]
SEEN = Contents(KINDS, {"image": "<image>", "video": "<video>"})
TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Pictures first, whatever their place: as in LLaVA's.
SORTED = (
    "{% for m in messages %}{% for c in m.content | selectattr('type', 'ne', 'text') %}"
    "<{{ c.type }}>\n{% endfor %}{% for c in m.content | selectattr('type', 'eq', 'text') %}"
    "{{ c.text }}{% endfor %}{% endfor %}"
)


def form(source: str) -> ContentForm:
    template = ChatTemplate(source)
    assert template._default is not None
    return template._form(template._default, SEEN)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TEXT, (True, False)),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", (True, False)),
        ("{% for m in messages %}{{ 'a' + m.content }}{% endfor %}", (True, False)),
        (LISTS, (False, True)),
        (SORTED, (False, True)),
        (BOTH, (True, True)),
        ("{{ raise_exception('no') }}", (False, False)),
    ],
)
def test_the_form_of_a_template(source: str, expected: tuple[bool, bool]) -> None:
    assert form(source) == expected


def render(source: str, *messages: ChatMessage) -> str:
    return ChatTemplate(source).render(messages, contents=SEEN)


def test_what_templates_write() -> None:
    chat = [ChatMessage("user", "", parts=["a", 0, "b"]), ChatMessage("user", "c")]
    assert render(TEXT, *chat) == "a\n<image>\nbc"
    assert render(BOTH, *chat) == "u:a<image>bu:c"
    assert render(LISTS, *chat) == "u:a<image>bu:c"
    assert render(SORTED, *chat) == "<image>\nabc"


def test_a_model_that_sees_nothing_gets_texts() -> None:
    assert ChatTemplate(BOTH).render([ChatMessage("user", "c")]) == "u:c"


def test_tools_as_text_keep_pictures() -> None:
    chat = [
        ChatMessage("system", "", parts=["be", 0]),
        ChatMessage("assistant", "", [ToolCall("1", "look", "{}")], parts=["I look", 1]),
        ChatMessage("tool", "", parts=["seen", 2]),
        ChatMessage("tool", "done"),
    ]
    plain = with_tools_as_text(chat, [ToolSpec("look")], HERMES)
    assert [part for m in plain for part in m.parts if isinstance(part, int)] == [0, 1, 2]
    system, assistant, result = plain
    assert system.parts[:2] == ["be", 0] and "look" in str(system.parts[2])
    assert assistant.parts[0] == HERMES.calls_text("I look", chat[1].tool_calls)
    assert not assistant.tool_calls
    first, second = HERMES.result_text("seen"), HERMES.result_text("done")
    assert result.parts == [first, 2, f"\n{second}"]


def test_an_answer_that_goes_on_after_a_picture() -> None:
    def render(messages: object) -> str:
        assert isinstance(messages, list)
        return ChatTemplate(BOTH).render(messages, contents=SEEN)

    chat = [ChatMessage("user", "q"), ChatMessage("assistant", "", parts=[0, "It is"])]
    assert render_open(render, chat) == "u:qa:<image>It is"
    with pytest.raises(RequestError, match="end with text"):
        render_open(render, [ChatMessage("assistant", "", parts=["x", 0])])


def test_joined_contents() -> None:
    """What is between is part of a text beside it."""
    text, picture = ChatMessage("user", "a"), ChatMessage("user", "", parts=[0])
    both = ChatMessage("user", "", parts=["b", 0])
    for first, second, parts in (
        (text, both, ["a/b", 0]),
        (both, text, ["b", 0, "/a"]),
        (text, picture, ["a/", 0]),
        (picture, picture, [0, "/", 0]),
        (ChatMessage("user", ""), both, ["b", 0]),
    ):
        assert joined(first, second, "/").parts == parts
