"""Captures are parts of a parse of the answer's text, with places in characters."""

import random
import time
from contextlib import suppress
from typing import Any

import pytest

from scheduler_proc.grammar.llg.ebnf import lark_of
from srt.answers import captures
from srt.answers.captures import captures_of
from srt.answers.captures.lark import MAX_CAPTURES, capture_grammar
from srt.wire.constraint import Capture, Constraint, GrammarError, may_capture
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher

LIST = 'start: (item ",")* "."\nitem[capture]: /[0-9]+/'


def of_lark(source: str, text: str, **fields: Any) -> list[tuple[str, int, int]] | None:
    found = captures_of(Constraint("ebnf", source, **fields), text)
    if found is None:
        return None
    assert all(text[c.start : c.end] == c.text for c in found)
    return [(c.name, c.start, c.end) for c in found]


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ('start: "a" x "c"\nx[capture]: /[0-9]+/', "a123c", [("x", 1, 4)]),
        ('start: x\nx[capture="the name"]: "a"', "a", [("the name", 0, 1)]),
        # The same text twice in a row, which llguidance itself reports once
        (LIST, "12,12,3,.", [("item", 0, 2), ("item", 3, 5), ("item", 6, 7)]),
        # The beginnings of a repetition are not matches of it
        ('start: y "."\ny[capture]: ("z" | x)*\nx[capture]: /[0-9]+/', "z12zz.",
         [("y", 0, 5), ("x", 1, 3)]),
        # Where a text may match either, one parse of the whole is given
        ('start: (a | b)*\na[capture]: "x"\nb[capture]: "x" "y"?', "xxyx", None),
        ('start: x\nx[capture]: "(" x ")" | "z"', "((z))", [("x", 0, 5), ("x", 1, 4), ("x", 2, 3)]),
        ('start: "a"* x\nx[capture]: "a"+', "aaa", [("x", 2, 3)]),
        # An empty match, and the whole text
        ('start[capture]: "b" x\nx[capture]: "" | "a"', "b", [("start", 0, 1), ("x", 1, 1)]),
        ('start: x* "y"\nx[capture]: "a"*', "aay", [("x", 0, 2)]),
        # Other attributes beside `capture`
        ('start: x "y"\nx[capture, suffix="b"]: /.*/', "aaby", [("x", 0, 2)]),
        ('start: x "y"\nx[stop="b", capture]: /.*/', "aaby", [("x", 0, 2)]),
        ('start: x "y"\nx[lazy, capture="l"]: /.*b/', "aaby", [("l", 0, 3)]),
        ('start: x "y"\nx[capture]: %json {"type": "object"}', '{"a":1}y', [("x", 0, 7)]),
        # Characters, not bytes
        ('start: "é" x "é"\nx[capture]: /[世-界é]+/\n', "é世é😀"[:3] + "é", [("x", 1, 3)]),
        # Of a text that is cut short, what has ended
        (LIST, "12,3", [("item", 0, 2)]),
        ('start: "a" x "c"\nx[capture]: /[0-9]+/', "a12", []),
        # A rule that begins with itself
        ('start: x "."\nx[capture]: x "a" | "a"', "aaa", [("x", 0, 2), ("x", 0, 1)]),
    ],
)  # fmt: skip
def test_captures_of_lark(
    source: str, text: str, expected: list[tuple[str, int, int]] | None
) -> None:
    found = of_lark(source, text)
    if expected is None:
        assert found is not None
        assert sorted(found, key=lambda c: c[1]) == found
        assert "".join(text[start:end] for _, start, end in found) == text
    else:
        assert found == expected


def test_random_lists_are_found_again() -> None:
    """The texts' parts are known; their rules differ only by what follows."""
    rng = random.Random(1)
    source = (
        'start: (pair | word)*\npair: key "=" value ";"\nkey[capture]: /[a-zé]+/\n'
        'value[capture]: word_ | "[" value ("," value)* "]"\nword_: /[a-zé]+/\n'
        "word[capture]: /[a-zé]+;/"
    )

    def word() -> str:
        return "".join(rng.choices("abé", k=rng.randrange(1, 5)))

    def value(depth: int, at: int) -> tuple[str, list[tuple[str, int, int]]]:
        if not depth or rng.random() < 0.5:
            text = word()
            return text, [("value", at, at + len(text))]
        text = "["
        inner: list[tuple[str, int, int]] = []
        for i in range(rng.randrange(1, 4)):
            text += "," if i else ""
            part, found = value(depth - 1, at + len(text))
            text, inner = text + part, inner + found
        return text + "]", [("value", at, at + len(text) + 1), *inner]

    for _ in range(30):
        text, expected = "", []
        for _ in range(rng.randrange(6)):
            name, at = word(), len(text)
            if rng.random() < 0.5:
                text += name + ";"
                expected.append(("word", at, len(text)))
                continue
            part, found = value(2, at + len(name) + 1)
            text += f"{name}={part};"
            expected += [("key", at, at + len(name)), *found]
        assert of_lark(source, text) == expected, text


def test_too_many_ways_are_given_up() -> None:
    """Each x may match either rule, and no choice fits the end."""
    source = 'start: (a | b)* c\na[capture]: "x"\nb[capture]: "x"\nc: "y" | "x" "z"'
    assert of_lark(source, "x" * 200 + "!") is None


@pytest.mark.full
def test_many_rules_in_one_place_are_found() -> None:
    """Only the rules that may begin or end are tried."""
    names = [f"r{i}" for i in range(MAX_CAPTURES)]
    rules = "\n".join(f'{name}[capture]: "{name};"' for name in names)
    found = of_lark(f"start: ({' | '.join(names)})*\n{rules}", ";".join(names * 20) + ";")
    assert found is not None
    assert [name for name, _, _ in found] == names * 20


def test_captures_within_captures_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MAX_CHARS", 250)
    nested = 'start: x\nx[capture]: "(" x ")" | "z"'
    assert of_lark(nested, "((z))") is not None
    assert of_lark(nested, "(((((z)))))") is None


def test_names_count_too() -> None:
    """A long name is repeated for each match of its group."""
    name = "n" * 100_000
    assert len(captures_of(Constraint("regex", f"(?:(?P<{name}>x))*"), "x" * 5) or []) == 5
    assert captures_of(Constraint("regex", f"(?:(?P<{name}>x))*"), "x" * 20) is None


def test_after() -> None:
    assert of_lark(LIST, "1,</think>2,.", after="</think>") == [("item", 10, 11)]
    assert of_lark(LIST, "1,</thi", after="</think>") is None
    found = captures_of(Constraint("regex", "(?P<a>é+)b", after="!"), "éb!ééb")
    assert found == [Capture("a", 3, 5, "éé")]


def test_who_has_none() -> None:
    assert not may_capture(Constraint("regex", "(a)"))
    assert not may_capture(Constraint("json_schema", '{"title": "capture (?P<"}'))
    assert captures_of(Constraint("regex", r"[(?P<]"), "<") is None
    assert captures_of(Constraint("ebnf", 'start: "capture"'), "capture") is None
    assert captures_of(Constraint("ebnf", 'root ::= "capture"'), "capture") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%ignore / /", "%ignore cannot be combined with captures at line 3, column 1"),
        ("y[capture, max_tokens=3]: /a+/", "max_tokens counts tokens.* line 3, column 3"),
        ("y[capture=3]: /a+/", "must be strings in double quotes at line 3, column 3"),
        ("y[capture=/a/]: /a+/", "must be strings in double quotes at line 3, column 3"),
        ("y[capture, stop=/b/]: /a+/", "must be strings in double quotes at line 3, column 3"),
        (r'y[capture="\ud800"]: /a+/', "not a string in double quotes at line 3, column 3"),
        (r'y[capture, stop="\ud800"]: /a+/', "not a string in double quotes at line 3, column 3"),
        ('y[capture, stop_capture="s", stop="b"]: /a+/', "stop_capture is not .* line 3, column 3"),
    ],
)
def test_what_captures_cannot_have(line: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        lark_of(f'start: x\nx[capture]: "a"\n{line}')


def test_there_are_not_too_many() -> None:
    rules = "\n".join(f'r{i}[capture]: "{i}."' for i in range(MAX_CAPTURES + 1))
    with pytest.raises(GrammarError, match=f"more captures than the limit, {MAX_CAPTURES}"):
        capture_grammar("start: r0\n" + rules)


@pytest.mark.parametrize(
    "line",
    [
        "y[" + "/x/aa" * 30,
        "\n".join(f"r{i}[capture]: /a/" for i in range(30_000)),
        "// x_captured" + "_" * 100_000,
    ],
    ids=["flags", "rules", "names"],
)
def test_sources_are_read_in_linear_time(line: str) -> None:
    begun = time.process_time()
    with suppress(GrammarError):
        capture_grammar(f'start: x\nx[capture]: "a"\n{line}')
    assert time.process_time() - begun < 1.0


def test_the_language_and_the_places_of_errors_stay() -> None:
    source = 'start: x "c"\nx[capture="n", lazy]: /a*b/\n  y[capture] : "a"'
    plain = capture_grammar(source).plain
    assert "capture" not in plain
    assert [len(line) for line in plain.split("\n")] == [len(line) for line in source.split("\n")]
    matcher = ByteMatcher(lark_of(source))
    assert matcher.accepts("aabc") and not matcher.accepts("aabb")


def test_free_text_that_is_there_or_not() -> None:
    pattern, after = "(?P<a>x+)(?:y|</t>)+", "</t>"
    optional = Constraint("regex", pattern, after=after, opener="<t>")
    for text, start in (("xxy", 0), ("<t>xy</t>xy", 9), ("xx</t>y", 0), ("<t>xy", None)):
        found = captures_of(optional, text)
        assert (found and found[0].start) == start
    ends_so = Constraint("regex", pattern, after=after, opener="<</t>")
    for constraint, text, start in (
        (ends_so, "<</t> </t>xy", 10),
        (Constraint("regex", pattern, after=after), "xy</t>xy", 6),
        (Constraint("regex", pattern, after=after), "xy", None),
    ):
        found = captures_of(constraint, text)
        assert (found and found[0].start) == start
