"""Reasoning is separated from the answer, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.answers.reasoning import MISTRAL, ReasoningSplitter, has_reasoning, reasoning_tags


def split(pieces: list[str], opened: bool) -> tuple[str, str]:
    """(reasoning, answer)"""
    splitter = ReasoningSplitter(opened=opened)
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    parts += splitter.feed("", final=True)
    assert all(part.text for part in parts)
    order = [part.is_reasoning for part in parts]
    assert order == sorted(order, reverse=True)
    reasoning = "".join(part.text for part in parts if part.is_reasoning)
    return reasoning, "".join(part.text for part in parts if not part.is_reasoning)


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nWell.\n</think>\n\nYes.\n", False, ("Well.", "Yes.\n")),
        ("  <think>a</thi b</think>c</think>", False, ("a</thi b", "c</think>")),
        ("Well. \n</think> Yes.", True, ("Well.", "Yes.")),
        ("<think>Well.</think>Yes.", True, ("Well.", "Yes.")),
        ("<think></think>", False, ("", "")),
        ("<think>No end \n", False, ("No end", "")),
        ("No end</thin", True, ("No end</thin", "")),
        (" Plain <think>x</think>", False, ("", " Plain <think>x</think>")),
        ("<thi", False, ("", "<thi")),
        ("  ", False, ("", "  ")),
        ("", True, ("", "")),
    ],
)
def test_split(text: str, opened: bool, expected: tuple[str, str]) -> None:
    assert split([text], opened) == expected
    assert split(list(text), opened) == expected


def test_the_template_says_which_tags_there_are() -> None:
    template = "[THINK]{{ messages }}[/THINK]"
    assert reasoning_tags(template) == MISTRAL and has_reasoning("auto", template)
    assert not has_reasoning("auto", "{{ messages }}") and not has_reasoning("auto", None)
    for pieces in (["[THINK]a </think>[/THINK]b"], list("[THINK]a </think>[/THINK]b")):
        splitter = ReasoningSplitter(opened=False, tags=reasoning_tags(template))
        parts = [part for piece in pieces for part in splitter.feed(piece)]
        texts = {kind: "".join(p.text for p in parts if p.is_reasoning == kind) for kind in (0, 1)}
        assert texts == {0: "b", 1: "a </think>"}


def test_blanks_are_not_read_again() -> None:
    """The time for blanks grows with their number, not with the square of it."""
    for opened, head in ((False, ""), (True, "a"), (True, "")):
        splitter = ReasoningSplitter(opened=opened)
        parts = splitter.feed(head)
        for _ in range(100):
            parts += splitter.feed(" ")
            assert splitter._rest == ""
        parts += splitter.feed("b", final=True)
        kept = "" if opened and not head else " " * 100
        assert "".join(part.text for part in parts) == f"{head}{kept}b"


def test_parts_come_at_once() -> None:
    splitter = ReasoningSplitter(opened=True)
    assert [p.text for p in splitter.feed("a b <")] == ["a b"]
    assert [p.text for p in splitter.feed(" c")] == [" < c"]
    assert [tuple(p) for p in splitter.feed("</think>d")] == [("d", False)]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", " ", "\n", "a", "<", "</thi"]), max_size=10),
    st.lists(st.integers(1, 9)),
    st.booleans(),
)
def test_the_cuts_do_not_matter(parts: list[str], sizes: list[int], opened: bool) -> None:
    text = "".join(parts)
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    assert split([*pieces, text[at:]], opened) == split([text], opened)
