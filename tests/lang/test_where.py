"""`where=`: predicates, and the constraints that they become, judged by the project's compilers."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

import lang as sgl
from lang.values.predicates import Not, Predicate, constraint_of, missed, searched
from lang.values.where import Written, predicate_of
from scheduler_proc.grammar.llg.ebnf import lark_of
from scheduler_proc.grammar.regex import ByteDFA, compile_regex, read_terminal
from srt.wire.constraint import GrammarError
from tests.lang.fakes import FakeBackend
from tests.scheduler_proc.grammar.automata import walk
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher

ALPHABET = "ab.\né"
X = Written()


def automaton_of(source: str) -> ByteDFA:
    terminal = read_terminal(source)
    assert terminal is not None
    return terminal.compile()


def judge_of(predicate: Predicate) -> Callable[[str], bool]:
    """What the compiler of its constraint makes of a text."""
    field, source = constraint_of(predicate)
    try:
        dfa = compile_regex(source) if field == "regex" else automaton_of(source)
    except GrammarError:
        return lambda text: False  # nothing satisfies it

    def accepts(text: str) -> bool:
        state = walk(dfa, 0, text.encode())
        return state >= 0 and bool(dfa.accepting[state])

    return accepts


texts = st.text(ALPHABET, max_size=6)
words = st.text(ALPHABET, min_size=1, max_size=2)
patterns = st.sampled_from([r"a*", r"[^a]+", r".{2}", r"(a|b)*\.", r"^é?$", r"\s|\w", r"a.*?b", ""])
sizes = st.integers(0, 4)
atoms = st.one_of(
    st.builds(lambda n: X.length <= n, sizes),
    st.builds(lambda n: X.length > n, sizes),
    st.builds(lambda n: X.length == n, sizes),
    st.builds(lambda n: X.length != n, sizes),
    st.builds(lambda n, more: X.length.between(n, n + more), sizes, sizes),
    st.builds(X.stops_at, words),
    st.builds(X.starts_with, words),
    st.builds(X.ends_with, words),
    st.builds(X.contains, words),
    st.builds(X.inside, st.text(ALPHABET, min_size=1, max_size=8)),
    st.builds(X.matches, patterns.filter(bool)),
    st.builds(X.in_, st.lists(texts, min_size=1, max_size=3)),
)
predicates = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda p, q: p & q, inner, inner),
        st.builds(lambda p, q: p | q, inner, inner),
        st.builds(lambda p: ~p, inner),
    ),
    max_leaves=5,
)


@given(predicates, st.lists(texts, min_size=1, max_size=20))
def test_the_constraint_means_what_the_predicate_means(
    predicate: Predicate, samples: list[str]
) -> None:
    accepts = judge_of(predicate)
    assert [text for text in samples if accepts(text) != predicate.holds(text)] == []
    field, source = constraint_of(predicate)
    if field == "ebnf":  # which llguidance takes as well
        matcher = ByteMatcher(lark_of(source))
        assert [t for t in samples if matcher.accepts(t) != predicate.holds(t)] == []
    for text in samples:
        assert (missed(predicate, text) is None) == predicate.holds(text)


def test_only_characters_are_the_complement_of_something() -> None:
    matcher = ByteMatcher(lark_of(constraint_of(~X.contains("a"))[1]))._matcher.deep_copy()
    assert not matcher.try_consume_tokens([0xFF]) and matcher.try_consume_tokens([0xC3, 0xA9])


@pytest.mark.parametrize(
    ("where", "field", "good", "bad"),
    [
        (lambda x: x.length <= 3, "regex", ["", "abc", "ééé"], ["abcd"]),
        (lambda x: x.stops_at("."), "regex", ["a.", "."], ["a", "a..", ""]),
        (lambda x: x.stops_at("aa"), "ebnf", ["aa", "baa"], ["aaa", "a", "aab"]),
        (lambda x: x.stops_at(" END\n"), "ebnf", ["so END\n"], [" END\n END\n"]),
        (lambda x: x.contains("/") | x.in_(["", "#"]), "regex", ["/", "", "#", "a/b"], ["a"]),
        (lambda x: ~(x.length >= 2), "ebnf", ["", "é"], ["ab"]),
        (lambda x: x.inside('say "é"\n</s> // #'), "ebnf", ['"é"\n', "", "</s> // #"], ["se"]),
        (lambda x: ~x.inside("abc") & x.matches("[a-c]+"), "ebnf", ["ac", "abcc"], ["ab", "d"]),
        (
            lambda x: (x.length <= 9) & x.stops_at(".") & ~x.contains("the") & x.inside("a the b."),
            "ebnf",
            [" b.", "he b.", "."],
            ["the b.", "a", "a."],
        ),
    ],
)
def test_examples(where: Callable[[Any], Any], field: str, good: list[str], bad: list[str]) -> None:
    predicate = predicate_of(where)
    accepts = judge_of(predicate)
    assert constraint_of(predicate)[0] == field
    assert [text for text in good if not (accepts(text) and predicate.holds(text))] == []
    assert [text for text in bad if accepts(text) or predicate.holds(text)] == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("b", ["b", "abc", "\nb\n"], ["", "a"]),
        ("^b", ["b", "ba"], ["ab"]),
        ("b$", ["b", "ab"], ["ba"]),
        (r"\Aa|b\Z", ["ac", "cb"], ["ca", "bc"]),
        ("^(a|b)$", ["a", "b"], ["ab"]),
        (r"\bcat\b|^$", ["cat", "a cat."], ["cats", "tomcat", "a"]),
    ],
)
def test_patterns_of_types_are_searched(pattern: str, good: list[str], bad: list[str]) -> None:
    predicate = searched(pattern)
    assert all(map(predicate.holds, good)) and not any(map(predicate.holds, bad))
    assert all(map(judge_of(predicate), good)) and not any(map(judge_of(predicate), bad))


def run(backend: FakeBackend, **arguments: Any) -> sgl.ProgramState:
    def body(s: Any) -> None:
        s += "q" + sgl.gen("x", **arguments)

    state: sgl.ProgramState = sgl.function(body).run(backend=backend)
    state.error()
    return state


def writing(text: str) -> FakeBackend:
    return FakeBackend(lambda prompt, sampling: text)


def test_the_text_is_constrained_and_checked() -> None:
    backend = writing("ab.")
    assert run(backend, where=lambda x: x.stops_at(".") & (x.length <= 3))["x"] == "ab."
    assert str(backend.samplings[0].ebnf).startswith("start: TEXT\nTEXT: ")
    error = run(writing("abc."), where=lambda x: x.stops_at(".") & (x.length <= 3)).error()
    assert isinstance(error, sgl.AnswerError) and error.text == "abc."
    assert "it does not hold that x.length <= 3: 'abc.'" in str(error)
    cut = writing("ab")
    cut.finish = "length"
    error = run(cut, where=lambda x: x.stops_at("."), max_tokens=2).error()
    assert "cut at max_tokens=2" in str(error)


def test_where_and_a_regex_are_both_met() -> None:
    backend = writing("ab")
    state = run(backend, regex="(?P<first>[a-c])b*", where=lambda x: x.length <= 3)
    assert (state["x"], state["x"].first) == ("ab", "a")
    sampling = backend.samplings[0]
    assert sampling.regex is None
    accepts = ByteMatcher(lark_of(str(sampling.ebnf))).accepts
    assert accepts("abb") and not accepts("abbb") and not accepts("d")
    assert "not hold" in str(run(writing("d"), regex="a", where=lambda x: x.length <= 3).error())


def test_where_and_texts_with_limits() -> None:
    kind = Annotated[str, Meta(min_length=2, pattern="^a")]
    backend = writing("a.")
    assert run(backend, type=kind, where=lambda x: x.stops_at("."))["x"] == "a."
    accepts = ByteMatcher(lark_of(str(backend.samplings[0].ebnf))).accepts
    assert accepts("ab.") and not accepts(".") and not accepts("b.") and not accepts("ab")
    assert run(writing("a."), type=str, where=lambda x: x.stops_at("."))["x"] == "a."


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        (
            lambda x: x.length <= 3 and x.contains("a"),
            TypeError,
            "<= 3` is known only .*&",
        ),
        (lambda x: x.contains("a") or x.contains("b"), TypeError, r"contains\('a'\)` is known"),
        (lambda x: not x.contains("a"), TypeError, "is known only when the text is there"),
        (lambda x: 1 <= x.length <= 3, TypeError, "a chain of comparisons"),
        (lambda x: x.contains("a") if x.contains("b") else 1, TypeError, "not with and, or"),
        (lambda x: x.contains("a") & True, TypeError, "combined with predicates only, not True"),
        (lambda x: True, TypeError, "must return a predicate, .* not True"),
        (7, TypeError, "where must be a function of the text, not 7"),
        (lambda x: x.words <= 3, sgl.UnsupportedError, "where: x.words is no predicate"),
        (lambda x: x == "a", sgl.UnsupportedError, r"x == is no predicate; x.in_\(\[text\]\) is"),
        (lambda x: "a" in x, sgl.UnsupportedError, r"`in x` is no predicate; x.contains"),
        (lambda x: len(x) < 3, sgl.UnsupportedError, r"len\(x\) is no predicate; x.length is"),
        (lambda x: x[0] == "a", sgl.UnsupportedError, r"x\[...\] is no predicate"),
        (lambda x: x or 1, sgl.UnsupportedError, r"bool\(x\) is no predicate"),
        (lambda x: x != "a", sgl.UnsupportedError, "x != is no predicate"),
        (lambda x: x.length < "a", TypeError, "x.length < takes an int, not 'a'"),
        (lambda x: x.contains(7), TypeError, "contains takes a text, not 7"),
        (lambda x: x.stops_at(""), ValueError, "stops_at takes a text that is not empty"),
        (lambda x: x.contains("\ud800"), ValueError, "surrogates not allowed"),
        (lambda x: x.matches("a(?=b)"), ValueError, r"matches\(.*look-ahead is not supported"),
        (lambda x: x.matches(r"(a)\1"), ValueError, "back-references"),
        (lambda x: x.matches("(a"), ValueError, "matches"),
        (lambda x: x.matches(r"a$b"), ValueError, "inside a pattern is not supported"),
        (lambda x: x.length.between(3, 2), ValueError, "no length is between 3 and 2"),
        (lambda x: x.matches("[a-z]{70000}"), ValueError, "more than 65,536 states"),
        (lambda x: x.in_("ab"), TypeError, "in_ takes a list of texts"),
        (lambda x: x.in_([]), TypeError, "at least one"),
    ],
)
def test_what_is_no_predicate_is_refused(where: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sgl.gen("x", where=where)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"json_schema": "{}"}, "where and json_schema exclude"),
        ({"ebnf": "a"}, "where and ebnf exclude"),
        ({"schema": int}, "where and schema exclude"),
        ({"dtype": int}, "where and dtype exclude"),
        ({"choices": ["a"]}, "choices and where exclude"),
        ({"grammar": sgl.g.text("a")}, "grammar and where exclude"),
        ({"type": int}, "where and type exclude each other, except for str"),
        ({"type": bool}, "where and type exclude each other, except for str"),
    ],
)
def test_what_where_excludes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgl.gen("x", where=lambda x: x.length <= 3, **arguments)


def test_predicates_can_be_read() -> None:
    shown = str((X.length >= 2) & ~X.contains("a") | X.in_(["b"]))
    assert shown == "((x.length >= 2) & (~(x.contains('a')))) | (x.in_(['b']))"
    assert str(X.length.between(1, 2)) == "x.length.between(1, 2)"
    assert str(X.inside("a" * 99)) == f"x.inside('{'a' * 37}...')"
    assert Not(X.contains("a")) == ~X.contains("a")
