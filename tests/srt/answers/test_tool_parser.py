"""The parser of tool calls: what is a call and what is content, however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.answers.tool_events import CallArguments, CallStart, Content
from srt.answers.tool_format import HERMES
from srt.answers.tool_parser import ToolCallParser

NAMES = frozenset({"add", "get_weather"})
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "}\\"{"}}\n</tool_call>'


class Answer:
    """What the events add up to."""

    def __init__(self, pieces: list[str], constrained: bool) -> None:
        parser = ToolCallParser(HERMES, NAMES, constrained=constrained)
        self.content = ""
        self.calls: list[list[str]] = []
        events = [event for piece in pieces for event in parser.feed(piece)]
        self.events = events + parser.feed("", final=True)
        for event in self.events:
            self._add(event)
        self.in_call = parser.in_call
        assert parser.num_calls == len(self.calls)

    def _add(self, event: Any) -> None:
        if isinstance(event, Content):
            assert event.text
            self.content += event.text
        elif isinstance(event, CallStart):
            assert event.call == len(self.calls)
            self.calls.append([event.name, ""])
        else:
            assert event.call == len(self.calls) - 1 and event.text
            self.calls[event.call][1] += event.text

    @property
    def facts(self) -> Any:
        return self.content, self.calls, self.in_call


def whole(text: str, constrained: bool = False) -> Answer:
    return Answer([text], constrained)


def by_character(text: str, constrained: bool = False) -> Answer:
    return Answer(list(text), constrained)


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("read", [whole, by_character])
@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("", "", []),
        ("  Hello <there> ", "  Hello <there> ", []),
        (ADD, "", ["add"]),
        (f"Let me see.\n\n{ADD}\n{WEATHER}\n", "Let me see.", ["add", "get_weather"]),
        (f"\n{ADD}\n\nDone.", "Done.", ["add"]),
        (f"One {ADD} two.", "One  two.", ["add"]),
        (f"<tool_<tool_call{ADD}", "<tool_<tool_call", ["add"]),
    ],
)
def test_calls_and_content(
    read: Any, constrained: bool, text: str, content: str, names: list[str]
) -> None:
    answer = read(text, constrained)
    assert answer.content == content
    assert [name for name, _ in answer.calls] == names
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in answer.calls)


def test_arguments_are_what_the_model_wrote() -> None:
    text = '<tool_call> { "name":"add" ,\n"arguments": {"a": 1.00, "b": "é\\u00e9"} }</tool_call>'
    assert whole(text).calls == [["add", '{"a": 1.00, "b": "é\\u00e9"}']]


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "add", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
        (
            '{"name": "add", "arguments": {"a": "\\\\\\"</tool_call>\\\\"}}',
            '{"a": "\\\\\\"</tool_call>\\\\"}',
        ),
    ],
)
def test_free_calls_may_be_written_in_other_ways(block: str, arguments: str) -> None:
    text = f"<tool_call>\n{block}\n</tool_call>"
    assert whole(text).facts == by_character(text).facts == ("", [["add", arguments]], False)


BROKEN = [
    '{"name": "subtract", "arguments": {}}',
    '{"name": "add", "arguments": {"a": 1}',
    '{"name": "add", "arguments": [1]}',
    '{"name": "add", "arguments": 1}',
    '{"name": "add", "arguments": "none"}',
    '{"name": "add", "arguments": {}, "extra": 1}',
    '{"name": "add", "arguments": ' + "[" * 3000 + "]" * 3000 + "}",
    '{"name": 5}',
    "add(1)",
    "",
]


@pytest.mark.parametrize("block", BROKEN)
def test_what_is_no_call_is_content(block: str) -> None:
    text = f"See: <tool_call>\n{block}\n</tool_call>\n{ADD}"
    expected = (f"See: <tool_call>\n{block}\n</tool_call>", [["add", '{"a": 1}']], False)
    assert whole(text).facts == by_character(text).facts == expected


def test_a_free_call_without_an_end() -> None:
    complete = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n'
    assert by_character(complete).facts == ("", [["add", '{"a": 1}']], False)
    cut = '<tool_call>\n{"name": "add", "arguments": {"a": '
    assert by_character(cut).facts == (cut, [], False)


ADDED = [["add", '{"a": 1}']]


@pytest.mark.parametrize(
    "lead",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": "x}}\n</tool_call>',  # an open string
        'I could write "<tool_call>" here:',
        "A <tool_call> begins with <tool_call>:",
        '<tool_call>\n{"name": "add", "arguments": {"a": "<tool_call>',
    ],
)
def test_a_call_is_found_behind_what_is_none(lead: str) -> None:
    text = f"{lead}\n{ADD}"
    assert whole(text).facts == by_character(text).facts == (lead, ADDED, False)


def test_ends_in_a_string_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding at each end would take time for all the text before it."""
    blocks = []
    monkeypatch.setattr(ToolCallParser, "_decoded", lambda _, block: blocks.append(block))
    text = '<tool_call>"' + "</tool_call>" * 1000
    assert whole(text).content == text
    assert len(blocks) == 1


def test_a_constrained_call_that_is_cut_short() -> None:
    """For example by the length. Nothing that was sent is taken back."""
    head = '<tool_call>\n{"name": "add", "argu'
    assert by_character(head, True).facts == (head, [], False)
    inside = '<tool_call>\n{"name": "add", "arguments": {"a": "x'
    assert by_character(inside, True).facts == ("", [["add", '{"a": "x']], True)
    assert by_character(ADD[:-3], True).facts == ("", [["add", '{"a": 1}']], False)


def test_constrained_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(HERMES, NAMES, constrained=True)
    assert parser.feed('Hm. <tool_call>\n{"name": "add", "arguments": ') == [
        Content("Hm."),
        CallStart(0, "add"),
    ]
    assert parser.feed(' {"a"') == [CallArguments(0, '{"a"')]
    assert parser.feed(": 1}") == [CallArguments(0, ": 1}")]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.feed("\n", final=True) == []


def test_content_is_held_no_longer_than_needed() -> None:
    parser = ToolCallParser(HERMES, NAMES, constrained=False)
    assert parser.feed("a <tool") == [Content("a")]
    assert parser.feed("box") == [Content(" <toolbox")]
    assert parser.feed(" ") == []
    assert parser.feed("<", final=True) == [Content(" <")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
calls = st.builds(
    lambda name, arguments, ascii: (
        HERMES.opening(name) + json.dumps(arguments, ensure_ascii=ascii) + HERMES.closing
    ),
    st.sampled_from(sorted(NAMES)),
    st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    st.booleans(),
)
spaced = calls.map(
    lambda text: text.replace('"arguments": ', '"arguments": \n ').replace("}\n", " }\n")
)
scraps = st.sampled_from(
    [" ", "\n", "text", "<", "<tool_call>", "</tool_call>", "{", "}", '"', "\\", '{"name": "add"']
)


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(min(place, len(text)) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(st.lists(calls | spaced | scraps, max_size=8), st.lists(st.integers(0, 200)), st.booleans())
def test_the_cuts_do_not_matter(parts: list[str], places: list[int], constrained: bool) -> None:
    text = "".join(parts)
    expected = whole(text, constrained).facts
    assert Answer(cut(text, places), constrained).facts == expected
    assert by_character(text, constrained).facts == expected


@given(st.lists(calls, min_size=1, max_size=4), st.lists(st.integers(0, 300)))
def test_valid_calls_come_out_whole(blocks: list[str], places: list[int]) -> None:
    text = HERMES.separator.join(blocks)
    for constrained in (False, True):
        answer = Answer(cut(text, places), constrained)
        assert answer.content == ""
        again = [HERMES.opening(name) + raw + HERMES.closing for name, raw in answer.calls]
        assert again == blocks


@given(st.lists(scraps | st.text(max_size=5), max_size=12))
def test_nothing_is_lost_without_calls(parts: list[str]) -> None:
    text = "".join(parts)
    answer = whole(text)
    assert answer.calls or answer.content == text
