"""`sgl.g`: grammars as objects, and the constraints that they become."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lang as sgl
from lang import g
from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling
from lang.values.grammar import Grammar
from lang.values.lark import Compiled, _Lark, compiled
from scheduler_proc.grammar.llg.ebnf import lark_of
from scheduler_proc.grammar.regex import compile_regex
from srt.answers.captures import captures_of
from srt.wire.constraint import Constraint
from tests.lang.fakes import FakeBackend
from tests.scheduler_proc.grammar.automata import walk
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher


def judge_of(made: Compiled) -> Callable[[str], bool]:
    """What the compiler makes of a text."""
    if made.field == "ebnf":
        return ByteMatcher(lark_of(made.source)).accepts
    dfa = compile_regex(made.source)

    def accepts(text: str) -> bool:
        state = walk(dfa, 0, text.encode())
        return state >= 0 and bool(dfa.accepting[state])

    return accepts


def found(made: Compiled, text: str) -> list[tuple[str, str]]:
    """The captures as the server finds them."""
    captures = captures_of(Constraint(made.field, made.source), text)
    return [(each.name, each.text) for each in captures or []]


@g.rule
def expr() -> Any:
    return g.capture("number", g.regex("-?[0-9]+")) | "(" + expr + g.select(["+", "*"]) + expr + ")"


item = g.capture("item", g.regex("[a-zé]+"))
point = g.json({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
                "additionalProperties": False})  # fmt: skip

CASES = [
    (g.text("a") + "b" | "c", "regex", ["ab", "c"], ["a", "ac", ""]),
    ("x" + g.text("/#\n").optional(), "regex", ["x", "x/#\n"], ["", "x/"]),
    ("a" | g.regex("[0-9]{2}|z") + "!", "regex", ["a", "12!", "z!"], ["a!", "z"]),
    (g.regex("a|b").repeat(2), "regex", ["ab", "bbb"], ["a"]),
    (g.select(["a", "ab"]).repeat(1, 2) + "b", "regex", ["ab", "abb", "aabb", "abab"], ["b", "a"]),
    (g.text("ab").one_or_more(), "regex", ["ab", "abab"], ["", "aba"]),
    (g.text("ab").repeat(0, 0) + "c", "regex", ["c"], ["abc"]),
    (g.select([g.text("")]), "regex", [""], ["a"]),
    (expr, "ebnf", ["1", "(1+2)", "((1+-2)*33)"], ["(1)", "(1+2", ""]),
    (item + (", " + item).many() + ".", "ebnf", ["a.", "a, b, c."], ["a,b.", "."]),
    # The longest terminal is not always the right one
    (item + "b" + item, "ebnf", ["aba", "bbbb"], ["ab", "ac"]),
    ("at " + point + point.optional() + "!", "ebnf", ['at {"x":1}!', 'at {"x":1}{"x":2}!'],
     ['at {"x": 1}!', "at !"]),
    (g.json({"type": "object", "properties": {"x": {}, "o": {"type": "object"}}}), "ebnf",
     ['{"x":1,"o":{"z":1}}'], ['{"x":1,"z":1}']),
    (g.json({"x-closed": False, "type": "object", "properties": {"x": {}}}), "ebnf",
     ['{"x":1,"z":1}'], ["1"]),
    (g.json({"allOf": [{"type": "object", "properties": {"x": {}}},
      {"type": "object", "properties": {"y": {}}}]}), "ebnf", ['{"x":1,"y":1}'], ["1"]),
    (g.json({"properties": {"x": {"const": {"properties": {"q": 1}}}}, "required": ["y"],
      "type": ["object", "null"], "anyOf": [{"required": ["x"]}, {"type": "null"}],
      "patternProperties": {"^p": {}}}), "ebnf",
     ['{"x":{"properties":{"q":1}},"y":2,"p1":3}', "null"],
     ['{"x":{"properties":{"q":1}},"y":2,"z":3}']),
    (g.json({"type": "object", "required": ["z"], "anyOf": [{"properties": {"a": {}}},
      {"properties": {"b": {}}}]}), "ebnf", ['{"z":1,"a":1}'], ["{}"]),
    (g.json(list[int]), "ebnf", ["[1,2]", "[]"], ["[1,", "x"]),
    (g.json(dict[str, int]), "ebnf", ['{"a":1}'], ['{"a":"b"}']),
    (g.json(dict[int, int]) + ".", "ebnf", ['{"1":1}.', "{}."], ['{"a":1}.']),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "field", "good", "bad"), CASES)
def test_the_language_of_a_grammar(
    grammar: Grammar, field: str, good: list[str], bad: list[str]
) -> None:
    made = compiled(grammar)
    accepts = judge_of(made)
    assert made.field == field
    assert [text for text in good if not accepts(text)] == []
    assert [text for text in bad if accepts(text)] == []


texts = st.text("ab,", max_size=2)
leaves = st.one_of(
    st.builds(lambda text: (g.text(text), re.escape(text)), texts),
    st.sampled_from([(g.regex(p), f"(?:{p})") for p in ("a*", "[ab]", "b+|,", "a{2}", "a?b")]),
)
pairs = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda x, y: (x[0] + y[0], x[1] + y[1]), inner, inner),
        st.builds(lambda x, y: (x[0] | y[0], f"(?:{x[1]}|{y[1]})"), inner, inner),
        st.builds(lambda x: (x[0].many(), f"(?:{x[1]})*"), inner),
        st.builds(lambda x: (x[0].one_or_more(), f"(?:{x[1]})+"), inner),
        st.builds(lambda x: (x[0].optional(), f"(?:{x[1]})?"), inner),
        st.builds(lambda x: (x[0].repeat(1, 2), f"(?:{x[1]}){{1,2}}"), inner),
        st.builds(lambda x: (g.rule(lambda: x[0]), x[1]), inner),
        st.builds(lambda x: (g.capture("c", x[0]), x[1]), inner),
    ),
    max_leaves=6,
)


@given(pairs, st.lists(st.text("ab,", max_size=5), max_size=15))
def test_random_grammars_mean_what_they_say(pair: tuple[Grammar, str], samples: list[str]) -> None:
    """Both forms of a grammar are a regex's language."""
    grammar, pattern = pair
    forms = [compiled(grammar), Compiled("ebnf", _Lark(shared(grammar)).of(grammar), ())]
    for made in forms:
        accepts = judge_of(made)
        expected = {text: bool(re.fullmatch(pattern, text)) for text in samples}
        assert {text: accepts(text) for text in samples} == expected


def shared(grammar: Grammar) -> Any:
    from collections import Counter

    from lang.values.lark import _uses, _walk

    return Counter(map(id, _uses(list(_walk(grammar)))))


def test_captures_of_regular_grammars_are_named_groups() -> None:
    made = compiled(
        g.capture("year", g.regex("[0-9]{4}")) + "-" + g.capture("month", g.regex("[0-9]+"))
    )
    assert (made.field, sorted(made.captures)) == ("regex", ["month", "year"])
    assert found(made, "2024-03") == [("year", "2024"), ("month", "03")]


def test_captures_of_others_are_rules() -> None:
    assert found(compiled(expr), "(1+(2*3))") == [("number", c) for c in "123"]
    listed = compiled(item + (", " + item).many() + ".")
    assert found(listed, "ab, é.") == [("item", "ab"), ("item", "é")]
    inner = compiled("at " + g.capture("where", point) + "!")
    assert found(inner, 'at {"x":1}!') == [("where", '{"x":1}')]
    both = g.capture("n", g.regex("[0-9]")) + (" " + g.capture("n", g.regex("[a-z]"))).optional()
    assert found(compiled(both), "1 a") == [("n", "1"), ("n", "a")]


def test_a_pattern_that_is_too_large_for_groups_becomes_lark() -> None:
    made = compiled(g.capture("x", g.regex("[a-z]{1,3000}")) + g.regex("[0-9]{1,3000}"))
    assert made.field == "ebnf"
    assert found(made, "ab12") == [("x", "ab")]


def test_parts_that_are_used_often_are_written_once() -> None:
    grammar: Grammar = g.text("a") | "b"
    for _ in range(40):
        grammar = grammar + grammar
    made = compiled(grammar + expr)
    assert made.field == "ebnf" and len(made.source) < 40 * 2000


def test_deep_grammars_are_refused() -> None:
    grammar: Grammar = expr
    for _ in range(2000):
        grammar = ("(" + grammar).optional()
    with pytest.raises(ValueError, match="nested deeper"):
        compiled(grammar)


def test_a_rule_that_is_only_itself() -> None:
    @g.rule
    def itself() -> Any:
        return g.capture("x", itself)

    with pytest.raises(ValueError, match="the rule itself is nothing but itself"):
        compiled(itself)


def test_a_rule_is_made_once() -> None:
    calls = []

    @g.rule
    def part() -> Any:
        calls.append(1)
        return "a" + g.select(["b", part]).optional()

    assert judge_of(compiled(part))("aab") and judge_of(compiled(part))("a")
    assert calls == [1]


def answer(text: str) -> FakeBackend:
    """A back end that writes a text and, as the server does, finds its captures."""

    class Finding(FakeBackend):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            made = await super().generate(prompt, sampling)
            if sampling.ebnf is None:
                return made
            captures = captures_of(Constraint("ebnf", sampling.ebnf), made.text)
            return msgspec.structs.replace(
                made, meta={"captures": [msgspec.to_builtins(each) for each in captures or []]}
            )

    return Finding(lambda prompt, sampling: text)


def run(backend: FakeBackend, **arguments: Any) -> sgl.ProgramState:
    def body(s: Any) -> None:
        s += "q" + sgl.gen("x", **arguments)

    state: sgl.ProgramState = sgl.function(body).run(backend=backend)
    state.error()
    return state


def test_captures_are_attributes() -> None:
    state = run(answer("(1+(2*3))"), grammar=expr)
    assert state["x"] == "(1+(2*3))" and state["x"].number == "3"
    meta = state.get_meta_info("x")
    assert meta is not None and [each["text"] for each in meta["captures"]] == ["1", "2", "3"]
    date = g.capture("year", g.regex("[0-9]{4}")) + ("-" + g.capture("day", g.text("1"))).optional()
    backend = answer("2024")
    state = run(backend, grammar=date)
    assert state["x"].groups == {"year": "2024", "day": None}
    assert backend.samplings[0].ebnf is None and backend.samplings[0].regex is not None
    plain = run(answer("ab"), grammar=g.text("a") + "b")["x"]
    assert type(plain) is str and plain == "ab"


def test_captures_that_the_back_end_does_not_find() -> None:
    backend = FakeBackend(lambda prompt, sampling: "(1+2)")
    assert run(backend, grammar=expr)["x"].groups == {"number": "2"}
    backend = FakeBackend(lambda prompt, sampling: "(")  # cut
    assert run(backend, grammar=expr)["x"].groups == {"number": None}


def test_values_of_texts_from_servers() -> None:
    gen: Any = sgl.gen("x", grammar=expr)
    assert gen.value_of_text("(1+2)").number == "2"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sgl.gen("x", grammar="a"), TypeError, "grammar must be made of sgl.g"),  # type: ignore[arg-type]
        (lambda: sgl.gen("x", grammar=expr, regex="a"), ValueError, "grammar and regex exclude"),
        (lambda: sgl.gen("x", grammar=expr, ebnf="a"), ValueError, "grammar and ebnf exclude"),
        (lambda: sgl.gen("x", grammar=expr, dtype=int), ValueError, "grammar and dtype exclude"),
        (lambda: sgl.gen("x", grammar=expr, choices=["a"]), ValueError, "choices and grammar"),
        (lambda: g.regex("(a"), ValueError, "g.regex: .* position"),
        (lambda: g.regex("a(?=b)"), ValueError, "look-ahead is not supported"),
        (lambda: g.regex("(?P<x>a)"), ValueError, r"g.capture\(name, part\) names a part"),
        (lambda: g.text(7), TypeError, "text takes a text, not 7"),  # type: ignore[arg-type]
        (lambda: g.text("\ud800"), ValueError, "surrogates not allowed"),
        (lambda: g.text("a") + 7, TypeError, "must be a grammar or a text, not 7"),  # type: ignore[operator]
        (lambda: g.text("a").repeat(-1), ValueError, "low must be a number, 0 or more"),
        (lambda: g.text("a").repeat(3, 2), ValueError, "high must be at least low=3, not 2"),
        (lambda: g.select([]), ValueError, "at least one"),
        (lambda: g.select("ab"), TypeError, "takes a list"),
        (lambda: g.capture("a b", "x"), ValueError, "a name like a variable's, not 'a b'"),
        (lambda: g.rule(7), TypeError, "a function without arguments"),  # type: ignore[arg-type]
        (lambda: compiled(g.rule(lambda: 7)), TypeError, "the rule <lambda> must be a grammar"),  # type: ignore[arg-type,return-value]
        (lambda: g.json(object()), TypeError, "schema must be a dict"),
        (lambda: bool(g.text("a") and g.text("b")), TypeError, "neither true nor false"),
        (lambda: f"{g.text('a')}", TypeError, "a grammar is not text"),
    ],
)
def test_mistakes(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_grammar_that_cannot_close_its_objects_says_so() -> None:
    listed = [{"type": "object", "properties": {name: {}}} for name in "ab"]
    with pytest.raises(ValueError, match='"x-closed": true in the JSON schema of a grammar'):
        compiled(g.json({"x-closed": True, "allOf": listed}) + ".")
