"""Grammars of one Lark terminal: products of automata, and what is left to llguidance."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.regex import StateLimitError, Terminal, read_terminal
from scheduler_proc.grammar.regex.substring import substring_dfa
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.automata import BYTES, real_vocabulary


def terminal(expression: str) -> Terminal:
    made = read_terminal(f"start: TEXT\nTEXT: {expression}\n")
    assert made is not None
    return made


def accepted(made: Terminal, texts: list[str], **options: Any) -> list[str]:
    dfa = made.compile(**options)
    return [text for text in texts if dfa.matches(text.encode())]


TEXTS = ["", "a", "b", "ab", "ba", "aab", "é", "aé", "/", "a" * 9]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("/a*/", ["", "a", "a" * 9]),
        (r"/[\s\S]{0,2}/ & ~/[\s\S]*b[\s\S]*/", ["", "a", "é", "aé", "/"]),
        (r"(/a/ | (/b/ & /[a-z]/)) | /\//", ["a", "b", "/"]),
        (r"~~/\x61\u00e9|(?:ab){1,2}/", ["ab", "aé"]),
        ('(%regex {"substring_chars": "baa\\u00e9"}) & /[^b]*/', ["", "a", "é", "aé"]),
        ('~(%regex {"substring_chars": "ab/"}) & /[ab]+/', ["ba", "aab", "a" * 9]),
        (r"~/[^\s\S]/ & /a/", ["a"]),  # nothing matches the first
    ],
)
def test_products(expression: str, expected: list[str]) -> None:
    assert accepted(terminal(expression), TEXTS) == expected


@pytest.mark.parametrize(
    "source",
    [
        "start: TEXT\nTEXT: /\\w+/",  # Rust's class has more characters
        "start: TEXT\nTEXT: /a.b/",
        "start: TEXT\nTEXT: /(?i:a)/",
        "start: TEXT\nTEXT: /^a/",
        "start: TEXT\nTEXT: /[[a]b]/",
        "start: TEXT\nTEXT: /a/i",
        "start: TEXT\nTEXT: /a/ & /b/ | /c/",
        "start: TEXT\nTEXT: OTHER & /a/\nOTHER: /a/",
        'start: TEXT\nTEXT: "a" & /a/',
        'start: TEXT\nTEXT: %regex {"substring_words": "a"}',
        "start: TEXT\nTEXT: %regex 7",
        "start: TEXT\nTEXT: (/a/",
        "start: TEXT\nTEXT: /a/ &",
        "start: TEXT\nTEXT: /a/)",
        f"start: TEXT\nTEXT: {'(' * 200}/a/{')' * 200}",
        f"start: TEXT\nTEXT: {' & '.join(['/a/'] * 101)}",
        f"start: TEXT\nTEXT: {'~' * 200}/a/",
        "start: TEXT OTHER\nTEXT: /a/",
        'root ::= "a"',
    ],
)
def test_other_grammars_are_left_alone(source: str) -> None:
    assert read_terminal(source) is None


def test_what_stands_in_front() -> None:
    made = terminal(r"/[\s\S]{0,2}/ & ~/b/")
    assert accepted(made, ["xa", "xb", "a", "x"], before=b"x") == ["xa", "x"]
    assert accepted(made, ["any:a", "any:b", ":", "a"], after=b":") == ["any:a", ":"]
    assert accepted(made, TEXTS, absent_bytes=b"a") == ["", "é", "/"]


def test_errors() -> None:
    with pytest.raises(GrammarError, match="no text can match"):
        terminal("/a/ & /b/").compile()
    with pytest.raises(StateLimitError, match="more than 100 states"):
        terminal(r"/[\s\S]{0,99}/ & ~/a/").compile(max_states=100)
    with pytest.raises(StateLimitError, match="more than 3 characters"):
        substring_dfa("abcd", 6)
    with pytest.raises(GrammarError, match="surrogate"):
        substring_dfa("\ud800", 60)


@given(st.text("abé世", max_size=12), st.lists(st.text("abé世", max_size=4), max_size=20))
def test_parts_of_texts(text: str, samples: list[str]) -> None:
    dfa = substring_dfa(text, 1000)
    samples += [text[i:j] for i in range(len(text)) for j in range(i, len(text) + 1)]
    assert all(dfa.matches(part.encode()) == (part in text) for part in samples)
    assert not dfa.matches("é".encode()[:1])


def test_the_compiler_uses_the_product() -> None:
    source = "start: TEXT\nTEXT: /a{1,5}/ & ~/aa/"
    assert GrammarCompiler(BYTES).compile(Constraint("ebnf", source)).backend == "fsm"
    assert GrammarCompiler(BYTES, "llguidance").compile(Constraint("ebnf", source)).backend != "fsm"
    assert GrammarCompiler(BYTES).compile(Constraint("ebnf", "start: /a/")).backend != "fsm"


def test_a_sentence_of_a_bounded_length() -> None:
    """llguidance has too many expressions for this one."""
    source = (
        r"start: TEXT"
        "\n"
        r"TEXT: (/[^\.]*\./ & /[\s\S]{0,200}/) & ~(/[\s\S]*the[\s\S]*/)"
        "\n"
    )
    grammar = GrammarCompiler(real_vocabulary()).compile(Constraint("ebnf", source))
    assert grammar.backend == "fsm"
