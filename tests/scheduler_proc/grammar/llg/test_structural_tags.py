"""Structural tags: free text can hold a trigger only as the start of a tag."""

import json
import random
from typing import Any

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.llg.structural_tags import tags_grammar
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TAGS = [
    {"type": "tag", "begin": "<f=a>", "content": {"type": "const_string", "value": "v"},
     "end": "</f>"},
    {"type": "tag", "begin": "<f=ab>", "content": {"type": "json_schema", "json_schema": POINT},
     "end": "</f>"},
]  # fmt: skip
TEXTS = [
    "", "text", "<f=a>v</f>", "t<f=a>v</f>", "<f=a>v</f>t", "<f=a>v</f>t<f=a>v</f>",
    "<f=a>v</f><f=a>v</f>", "<f", "a<f=", "<<f=a>v</f>", "<f=a>v</f>;<f=a>v</f>", "<f=a>v</f>;",
    '<f=ab>{"x":1}</f>', '\u00e9<f=ab>{"x":1}</f>\n<f=a>v</f>.', "<f=ab>{}</f>", "<f=b>",
]  # fmt: skip


def matcher_of(form: dict[str, Any]) -> ByteMatcher:
    source = {"type": "structural_tag", "format": form} if "type" in form else form
    return ByteMatcher(tags_grammar(json.dumps(source), "compact"))


def triggered(**fields: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS, **fields}


def accepted(form: dict[str, Any]) -> list[str]:
    matcher = matcher_of(form)
    return [text for text in TEXTS if matcher.accepts(text)]


FIRST, OTHER = "<f=a>v</f>", '<f=ab>{"x":1}</f>'


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (triggered(), ["", "text", FIRST, "t" + FIRST, FIRST + "t", FIRST + "t" + FIRST,
                       FIRST * 2, "<" + FIRST, FIRST + ";" + FIRST, FIRST + ";", OTHER,
                       f"\u00e9{OTHER}\n{FIRST}."]),
        (triggered(stop_after_first=True), ["", "text", FIRST, "t" + FIRST, "<" + FIRST, OTHER]),
        (triggered(at_least_one=True), [FIRST, FIRST + "t", FIRST + "t" + FIRST, FIRST * 2,
                                        FIRST + ";" + FIRST, FIRST + ";", OTHER]),
        (triggered(at_least_one=True, stop_after_first=True), [FIRST, OTHER]),
        ({"type": "tags_with_separator", "separator": ";", "tags": TAGS},
         ["", FIRST, FIRST + ";" + FIRST, OTHER]),
        ({"type": "tags_with_separator", "separator": "", "tags": TAGS, "at_least_one": True},
         [FIRST, FIRST * 2, OTHER]),
        ({"type": "tags_with_separator", "separator": ";", "tags": TAGS, "stop_after_first": True},
         ["", FIRST, OTHER]),
        ({"structures": [{"begin": "<f=ab>", "schema": POINT, "end": "</f>"}], "triggers": ["<f"]},
         ["", "text", OTHER]),
    ],
)  # fmt: skip
def test_which_texts_are_accepted(form: dict[str, Any], texts: list[str]) -> None:
    assert accepted(form) == texts


def test_combinations() -> None:
    number = {"type": "regex", "pattern": "[0-9]+"}
    nested = {"type": "grammar", "grammar": 'root ::= "(" root ")" | "z"'}
    word = {"type": "const_string", "value": "ab"}
    either = matcher_of({"type": "or", "elements": [number, nested, word]})
    assert [t for t in ("12", "((z))", "ab", "", "a", "(z") if either.accepts(t)] == [
        "12", "((z))", "ab",
    ]  # fmt: skip
    elements = [
        {"type": "optional", "content": word},
        {"type": "repeat", "min": 1, "max": 2, "content": {"type": "const_string", "value": "c"}},
        {"type": "star", "content": number},
    ]
    sequence = matcher_of({"type": "sequence", "elements": elements})
    assert [t for t in ("abc", "cc12", "c", "ccc", "ab", "") if sequence.accepts(t)] == [
        "abc", "cc12", "c",
    ]  # fmt: skip


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def pattern(source: str) -> dict[str, Any]:
    return {"type": "regex", "pattern": source}


def tag(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": "<", "content": content, "end": ">"}


AB = {"type": "const_string", "value": "ab"}
WORD = {"type": "grammar", "grammar": 'root ::= [a-z]* ">"?'}
NULL = {"type": "json_schema", "json_schema": {"type": "null"}}


@pytest.mark.parametrize(
    ("form", "accepted", "rejected"),
    [
        (sequence(pattern("a*"), AB), ["ab", "aab"], ["a", "b"]),
        (sequence(pattern("[0-9]+"), pattern("[0-9]")), ["12", "123"], ["1"]),
        (sequence({"type": "star", "content": pattern("a|ab")}, AB), ["ab", "abab", "aab"], ["a"]),
        ({"type": "or", "elements": [pattern("[a-z]+"), {**AB, "value": "ab1"}]},
         ["ab1", "ab"], ["a1"]),
        (tag(pattern(".*")), ["<>", "<a>", "<a>>"], ["<", "<a>b"]),
        (tag(WORD), ["<a>", "<a>>"], ["<a>>>"]),
        # Next to content that is not regular
        (sequence(NULL, tag(pattern(".*")), NULL), ["null<>null", "null<a>>null"], ["null<a>"]),
        (sequence(NULL, {"type": "optional", "content": pattern("a+")}, AB, NULL),
         ["nullabnull", "nullaabnull"], ["nullbnull"]),
        ({"type": "or", "elements": [NULL, pattern("n+"), tag(NULL), tag(pattern(".*"))]},
         ["null", "nn", "<null>", "<a>"], ["nul", "a"]),
        ({"type": "or", "elements": [NULL, pattern("nulls?!")]}, ["null", "null!"], ["nulls"]),
        ({"type": "repeat", "min": 0, "max": 0, "content": NULL}, [""], ["null"]),
        (sequence({"type": "tag", "begin": "", "content": {**AB, "value": ""}, "end": ""}, NULL),
         ["null"], [""]),
        ({"type": "repeat", "min": 0, "max": 0, "content": AB}, [""], ["ab"]),
        (triggered(tags=[{"type": "tag", "begin": "<f", "content": pattern(".*"), "end": ">"}]),
         ["<f>", "a<fb>c", "<f>><f>"], ["<f", "a<fb"]),
    ],
)  # fmt: skip
def test_a_pattern_ends_where_what_follows_begins(
    form: dict[str, Any], accepted: list[str], rejected: list[str]
) -> None:
    matcher = matcher_of(form)
    assert [text for text in accepted if not matcher.accepts(text)] == []
    assert [text for text in rejected if matcher.accepts(text)] == []


def test_a_pattern_that_ends_itself_is_one_terminal() -> None:
    """Free text that is spelled out as rules takes longer than a request may."""
    for source, is_one in (("[^>]*", True), (".*", False)):
        form = sequence(NULL, tag(pattern(source)), NULL)
        text = tags_grammar(json.dumps({"format": form}), "compact").text()
        assert ("]*" in text) == is_one
    matcher = matcher_of(sequence(tag(pattern("[^>]*")), NULL))
    assert matcher.accepts("<abc>null") and not matcher.accepts("<a>b>null")


def test_free_text_ends_at_the_end_of_its_tag() -> None:
    think = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
    matcher = matcher_of({"type": "sequence", "elements": [think, triggered()]})
    assert matcher.accepts("<t>a <f b</t>text" + FIRST)
    assert not matcher.accepts("<t>a</t><f")
    assert not matcher.accepts("<t>a")
    inner = matcher_of({"type": "tag", "begin": "<t>", "content": triggered(), "end": "</t>"})
    assert inner.accepts(f"<t>a{FIRST}b</t>") and inner.accepts("<t></t>")
    assert not inner.accepts("<t>a</t></t>") and not inner.accepts("<t><f</t>")


def text_without(*excluded: str) -> dict[str, Any]:
    return {"type": "any_text", "excludes": list(excluded)}


def ends(text: str, stops: list[str], excluded: list[str]) -> bool:
    """Whether a text is one without `excluded`, and then the first of `stops`."""
    first = min((at + len(stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)
    befores = [text.removesuffix(stop) for stop in stops if text.endswith(stop)]
    return first == len(text) and any(
        not any(each in before for each in excluded) for before in befores
    )


EXCLUDED_AT_ENDS = [
    (["<xy>"], ["<xy>"]), (["<xy>\n"], ["<xy>"]), (["<xy>"], ["<"]), (["<xy>"], ["<x", "y"]),
    (["<xy>"], ["y>"]), (["<xy>"], ["x<"]), (["<xy>"], ["<xy>\n"]), (["<xy>", "y>"], ["<x"]),
    (["<<", "x>"], [">", "<x>"]), (["xx"], ["x"]),
]  # fmt: skip


@pytest.mark.parametrize(("stops", "excluded"), EXCLUDED_AT_ENDS)
def test_excluded_texts_may_meet_the_end(stops: list[str], excluded: list[str]) -> None:
    """The end is not part of the text that must be without them."""
    content = text_without(*excluded)
    matcher = matcher_of({"type": "tag", "begin": "", "content": content, "end": stops})
    rng = random.Random(str(stops))
    parts = [*"<xy>\n", *stops, *excluded]
    texts = {"".join(rng.choices(parts, k=rng.randrange(7))) for _ in range(400)} | {*stops}
    found = {text for text in texts if ends(text, stops, excluded)}
    assert found and {text for text in texts if matcher.accepts(text)} == found


def test_excluded_texts_may_meet_a_trigger_and_what_follows() -> None:
    before = matcher_of(sequence(text_without("<"), {**AB, "value": "<t>"}, NULL))
    assert before.accepts("a<t>null") and before.accepts("<t>null")
    assert not before.accepts("a<a<t>null")
    among = matcher_of(triggered(excludes=["<", "f"]))
    assert among.accepts(f"a{FIRST}b{OTHER}c")
    assert not among.accepts("a<b" + FIRST) and not among.accepts(FIRST + "f")


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "token", "token": 3}, "format.type"),
        ({"type": "any_text", "max_tokens": 3}, "format.max_tokens"),
        (triggered(triggers=["<g"]), "format.tags[0].begin"),
        (triggered(triggers=[]), "format.triggers"),
        (triggered(at_least_one=1), "format.at_least_one"),
        ({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": ""}, "format.end"),
        ({"type": "tag", "begin": "a", "end": "b"}, "format.content"),
        ({"type": "regex", "pattern": "(a"}, "format: "),
        ({"type": "json_schema", "json_schema": {"type": "x"}}, "#/type"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex",
          "pattern": "a"}]}, "format.elements[0]"),
        ({"type": "star", "content": {"type": "any_text"}}, "format.content"),
        ({"type": "repeat", "content": AB, "min": 3, "max": 2}, "format.max"),
        ({"type": "tag", "begin": "a", "content": AB, "end": ["b", ""]}, "format.end[1]"),
        (triggered(tags=[{"type": "or", "begin": "<f", "content": AB, "end": ""}]),
         "format.tags[0].type"),
        ({"structures": [{"schema": {}, "end": "b"}], "triggers": ["a"]}, "structures[0].begin"),
        ({"structures": [{"begin": "a", "schema": "{", "end": "b"}], "triggers": ["a"]},
         "tags[0].content"),
        ({}, "structures"),
        ({"structures": [{"begin": "a", "schema": {}, "end": "b", "x": 1}], "triggers": ["a"]},
         "structures[0].x"),
    ],
)  # fmt: skip
def test_every_field_is_read_or_refused_by_its_place(form: dict[str, Any], place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        matcher_of(form)
    assert place in str(caught.value)


@pytest.mark.parametrize("levels", [33, 400, 30_000])
def test_deep_nesting_is_refused(levels: int) -> None:
    inner = '{"type": "or", "elements": [' * levels + json.dumps(AB) + "]}" * levels
    with pytest.raises(GrammarError, match=r"nested|recursion"):
        tags_grammar(f'{{"format": {{"type": "star", "content": {inner}}}}}', "compact")
