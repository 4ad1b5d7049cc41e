"""gpt-oss's format: what is reasoning, answer and call, however the text is cut."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.answers.channels import ChannelReader
from srt.answers.tool_events import CallStart, Content, Reasoning

NAMES = {"add": "", "get_weather": ""}
THOUGHT = "<|channel|>analysis<|message|>Hm. 1 < 2<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
TO_ADD = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
Facts = tuple[str, str, list[tuple[str, str]]]


def facts(pieces: list[str], constrained: bool = False) -> Facts:
    """Reasoning, content and calls."""
    parser = ChannelReader(NAMES, constrained=constrained)
    reasoning = content = ""
    calls = list[list[str]]()
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in events + parser.feed("", final=True):
        if isinstance(event, Reasoning):
            reasoning += event.text
        elif isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append([event.name, ""])
        else:
            calls[event.call][1] += event.text
    return reasoning, content, [(name, arguments) for name, arguments in calls]


PREAMBLE = "<|channel|>commentary<|message|>I add.<|end|>"
TO_PYTHON = "<|channel|>analysis to=python code<|message|>"
CALL = f"<|start|>assistant{TO_ADD}"
A1 = ("add", '{"a": 1}')
ANSWERS = [
    (f"{THOUGHT}{FINAL}Yes.", "Hm. 1 < 2", "Yes.", []),
    (f"{THOUGHT}{FINAL}Yes.<|return|>", "Hm. 1 < 2", "Yes.", []),
    ("<|channel|>final<|message|> Yes.\n", "", " Yes.\n", []),
    ("Plain <b>text</b>, to=you", "", "Plain <b>text</b>, to=you", []),
    ('{"a": 1}', "", '{"a": 1}', []),
    (f'{THOUGHT}<|start|>assistant{TO_ADD}{{"a": 1}}<|call|>', "Hm. 1 < 2", "", [A1]),
    (f'{THOUGHT}<|start|>assistant{TO_ADD}{{"a": 1}}', "Hm. 1 < 2", "", [A1]),
    ('<|channel|>commentary to=functions.add<|message|>{"a": 1}', "", "", [A1]),
    (' to=functions.add<|channel|>commentary json<|message|> {"a": 1}', "", "", [A1]),
    ('<|channel|>analysis to=functions.add code<|message|>{"a": 1}', "", "", [A1]),
    (
        f'{PREAMBLE}{CALL}{A1[1]}<|call|>{CALL}{{"a": "<|end|>"}}<|call|>',
        "",
        "I add.",
        [A1, ("add", '{"a": "<|end|>"}')],
    ),
    (f"{THOUGHT}<|start|>assistant{THOUGHT}{FINAL}Yes.", "Hm. 1 < 2\nHm. 1 < 2", "Yes.", []),
    (f"<|channel|>commentary<|message|>Wait.<|end|>{FINAL}Yes.", "", "Wait.\nYes.", []),
    ("<|channel|>analysis<|message|>No end", "No end", "", []),
    (f"{TO_ADD}add 1<|call|>", "", f"{TO_ADD}add 1", []),
    (f'{TO_ADD}{{"a": 1', "", f'{TO_ADD}{{"a": 1', []),
    (f"{TO_ADD}{{a}}<|call|>", "", f"{TO_ADD}{{a}}", []),
    (
        "<|channel|>analysis to=python code<|message|>1",
        "",
        "<|channel|>analysis to=python code<|message|>1",
        [],
    ),
    (TO_ADD.replace("add", "sub") + "{}", "", TO_ADD.replace("add", "sub") + "{}", []),
    ("<|channel|>final", "", "<|channel|>final", []),
    ("<|chan", "", "<|chan", []),
    ("", "", "", []),
]


@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), ANSWERS)
def test_messages_by_their_channels(
    text: str, reasoning: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert facts([text]) == facts(list(text)) == (reasoning, content, calls)


def test_a_constrained_call_that_is_cut_short() -> None:
    parser = ChannelReader(NAMES, constrained=True)
    assert parser.feed(TO_ADD + '{"a": ') and parser.in_call
    assert parser.num_calls == 1
    assert not parser.feed("", final=True) and parser.in_call


PARTS = [
    THOUGHT,
    FINAL,
    TO_ADD,
    '{"a": "<|end|>"}',
    "{}",
    "<|call|>",
    "<|end|>",
    " ",
    "x",
    "<|",
    "to=",
]


@given(
    st.lists(st.sampled_from(PARTS), max_size=9), st.booleans(), st.randoms(use_true_random=False)
)
def test_the_cuts_do_not_matter(parts: list[str], constrained: bool, rng: random.Random) -> None:
    text = "".join(parts)
    places = sorted(rng.choices(range(len(text) + 1), k=4))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = facts([text], constrained)
    assert facts(list(text), constrained) == whole
    assert facts(pieces, constrained) == whole
