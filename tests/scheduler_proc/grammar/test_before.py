"""Texts that an output must begin with, on every back end, and the tokens that healing allows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.artefact import Artefact
from scheduler_proc.grammar.base import CompiledGrammar, Grammar
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.healed import HealedGrammar
from scheduler_proc.grammar.regex import compile_choices, compile_free, compile_regex
from scheduler_proc.grammar.store import GrammarStore, Shared, free_grammar, load_compiled
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import Constraint, free_key
from tests.scheduler_proc.fake_executor import ids_of

EOS = 256
MERGES = [b"://", b":", b"http", b"http://", b"ttp", b"//", b"p:", "é".encode(), b"hx"]
TOKENS = [*(bytes([i]) for i in range(256)), b"", *MERGES]
VOCABULARY = TokenVocabulary.from_tokens(TOKENS, [EOS], [EOS])
BACKENDS = ("fsm", "llguidance", "xgrammar")
NESTED = json.dumps({"type": "array", "items": {"$ref": "#"}})


def allowed(grammar: Grammar) -> set[bytes]:
    """The tokens that may follow; b"" is EOS."""
    row = np.zeros(VOCABULARY.mask_width, np.uint32)
    grammar.fill(row)
    return {TOKENS[i] for i in ids_of(row)}


def allows(compiled: CompiledGrammar, text: str) -> bool:
    grammar = compiled.start()
    for byte in text.encode():
        if bytes([byte]) not in allowed(grammar):
            return False
        grammar.accept([byte])
    return grammar.is_accepting()


def compiled(constraint: Constraint, backend: str) -> CompiledGrammar:
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    made: Any = GrammarCompiler(VOCABULARY, backend).compile(constraint)
    facts, arrays = made.to_arrays()
    return load_compiled(Artefact(made.backend, facts, arrays), VOCABULARY)


# ---- compiled with a text before -----------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", [":", 'é"\\/\n', "aab"])
@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint("regex", "a{1,2}b?"), ["a", "aab"], ["", "b", "aaa"]),
        (Constraint("choices", '["aab","c",""]'), ["aab", "c", ""], ["a", "cc"]),
        (Constraint("json_schema", '{"enum":[1,"x"]}'), ["1", '"x"'], ["x", "2"]),
        (Constraint("json_schema", NESTED), ["[]", "[[],[]]"], ["[1]", "[]]"]),
        (Constraint("ebnf", 'root ::= "a" root "b" | "c"'), ["c", "acb"], ["", "ac"]),
        (Constraint("regex", "a+", after="!"), ["!a", "a, !aa"], ["!", "aa"]),
    ],
)
def test_a_text_comes_first_and_the_rest_is_as_without_it(
    backend: str, before: str, constraint: Constraint, good: list[str], bad: list[str]
) -> None:
    kind, source, after = constraint.kind, constraint.source, constraint.after
    grammar = compiled(Constraint(kind, source, after=after, before=before), backend)
    assert all(allows(grammar, before + text) for text in good)
    assert not any(allows(grammar, before + text) for text in bad)
    assert not any(allows(grammar, text) for text in good if not text.startswith(before))
    assert grammar.start().forced_bytes().startswith(before.encode())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint("regex", "a+|<[0-9]>"), ["aa", "<1>"], ["<th", "<ta"]),
        (Constraint("choices", '["<table>","aa"]'), ["<table>", "aa"], ["<tab", "a"]),
        (Constraint("json_schema", '{"enum":[1,"x"]}'), ["1", '"x"'], ["", "\n1"]),
        (Constraint("json_schema", NESTED), ["[]", "[[],[]]"], ["[1]", "[]]"]),
        (Constraint("ebnf", 'root ::= "<t" root "b" | "c"'), ["c", "<tcb"], ["<t", "<thc"]),
    ],
)
def test_free_text_is_there_or_not(
    backend: str, constraint: Constraint, good: list[str], bad: list[str]
) -> None:
    """The output begins with the opener and is then free up to the end, or matches at once."""
    kind, source = constraint.kind, constraint.source
    grammar = compiled(Constraint(kind, source, after="</t>", opener="<th>"), backend)
    leads: tuple[str, ...] = ("", "<th></t>", "<th>\n<th> a</ t></t>")
    if backend == "llguidance" and kind == "choices":
        leads = leads[:1]  # one terminal that begins as the opener does keeps it out
    assert all(allows(grammar, lead + text) for lead in leads for text in good)
    assert not any(allows(grammar, lead + text) for lead in leads for text in bad)
    assert not any(allows(grammar, lead + text) for lead in ("<th>", "</t>") for text in good)
    assert grammar.start().forced_bytes() == b""


_TEXTS = st.text("abé", max_size=3)


@given(
    st.sampled_from(["a", "ab", "bab"]),
    st.sampled_from(["b", "ab"]),
    st.sampled_from(["a*b", "(a|é)*", "ab|b", "", "abab(a|b)*", "(?s:.)*", "[^b]*"]),
    st.lists(st.text("abé", max_size=9), max_size=9),
)
def test_the_automaton_of_both_is_the_one_or_the_other(
    opener: str, after: str, pattern: str, texts: list[str]
) -> None:
    """Also where the opener is the beginning of what matches at once."""
    lead = opener.encode()
    both = compile_regex(pattern, after=after.encode(), opener=lead)
    behind = compile_regex(pattern, after=after.encode(), before=lead)
    for text in texts:
        data = text.encode()
        assert both.matches(data) == (compile_regex(pattern).matches(data) or behind.matches(data))
    choices = [text for text in texts if text] or ["a"]
    few = compile_choices(choices, after=after.encode(), opener=lead)
    assert all(few.matches(text.encode()) for text in choices)
    assert all(few.matches((opener + after + text).encode()) for text in choices)


@given(_TEXTS, st.sampled_from(["", "b", "ab"]), st.sampled_from(["a*b", "(a|é)*", "ab|b", ""]))
def test_the_automaton_reads_the_text_and_is_then_the_one_without(
    before: str, after: str, pattern: str
) -> None:
    whole = compile_regex(pattern, before=before.encode(), after=after.encode())
    rest = compile_regex(pattern, after=after.encode())
    middle = whole.walk(before.encode())
    for text in ("", "a", "b", "ab", "aab", "é", "bab", "ba", "éb"):
        state = whole.walk(text.encode(), middle)
        assert (state >= 0 and bool(whole.accepting[state])) == rest.matches(text.encode())
        assert whole.matches(text.encode()) == (
            text.startswith(before) and rest.matches(text[len(before) :].encode())
        )


@given(_TEXTS, st.lists(_TEXTS, min_size=1, max_size=4))
def test_choices_with_a_text_before_are_longer_choices(before: str, choices: list[str]) -> None:
    one = compile_choices(choices, before=before.encode())
    other = compile_choices([before + choice for choice in choices])
    assert np.array_equal(one.transitions, other.transitions)
    assert np.array_equal(one.byte_class, other.byte_class)
    assert np.array_equal(one.accepting, other.accepting)


# ---- free after it -------------------------------------------------------------------------------


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_free_is_every_byte_behind_the_text(before: bytes, data: bytes) -> None:
    dfa = compile_free(before)
    assert dfa.matches(data) == data.startswith(before)
    assert dfa.matches(before + data) and dfa.num_states == len(before) + 1


def test_nothing_is_left_to_say_behind_the_text() -> None:
    grammar = free_grammar(b"p:", VOCABULARY).start()
    assert allowed(grammar) == {b"p", b"p:"} and not grammar.is_free()
    grammar.accept([ord("p")])
    assert not grammar.is_free() and grammar.forced_bytes() == b":"
    grammar.accept([TOKENS.index(b"://")])
    assert grammar.is_free() and grammar.is_accepting()
    grammar.accept([0xFF])
    assert grammar.is_free()
    grammar.rollback(2)
    assert not grammar.is_free()


def test_a_pattern_for_any_text_is_not_free() -> None:
    """The pattern matches no half characters and no special tokens."""
    for pattern in ("(?s:.)*", "a*", "[^x]*"):
        grammar = FsmGrammar.build(compile_regex(pattern), VOCABULARY).start()
        grammar.accept([ord("a")])
        assert not grammar.is_free()


def test_free_without_all_bytes_in_the_vocabulary() -> None:
    vocabulary = TokenVocabulary.from_tokens([b"a", b"b", b"ab", b"\xffz", b"<e>"], [4], [4])
    grammar = free_grammar(b"a", vocabulary).start()
    grammar.accept([2])
    assert grammar.is_free()


async def test_the_store_makes_them_of_their_keys(tmp_path: Path) -> None:
    store = GrammarStore(lambda: Shared(VOCABULARY), tmp_path)
    try:
        loaded = await store.load(free_key("p:"))
        assert store.get(free_key("p:")) is loaded and list(tmp_path.iterdir()) == []
        healed = store.healed(loaded.start(), [ord("p"), ord(":")])
        assert healed.forced_bytes() == b"p:"
    finally:
        store.close()


async def test_the_store_keeps_only_so_many(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("scheduler_proc.grammar.store.STORE_GRAMMARS", 3)
    store = GrammarStore(lambda: Shared(VOCABULARY), tmp_path)
    try:
        for text in ("a", "b", "c", "a", "d"):
            await store.load(free_key(text))
        assert len(store) == 3 and store.get(free_key("b")) is None
        assert store.get(free_key("a")) is not None
    finally:
        store.close()


# ---- the tokens that healing allows --------------------------------------------------------------


def healed(pattern: str | None, *given_tokens: bytes) -> HealedGrammar:
    before = b"".join(given_tokens)
    if pattern is None:
        grammar = free_grammar(before, VOCABULARY)
    else:
        grammar = FsmGrammar.build(compile_regex(pattern, before=before), VOCABULARY)
    ids = [TOKENS.index(token) for token in given_tokens]
    return HealedGrammar(grammar.start(), ids, VOCABULARY)


def test_a_token_goes_to_the_end_or_is_the_given_one() -> None:
    grammar = healed(None, b"h", b"t", b"t")
    assert allowed(grammar) == {b"h", b"http", b"http://"}
    grammar.accept([ord("h")])
    assert allowed(grammar) == {b"t", b"ttp"}
    grammar.accept([ord("t")])
    assert allowed(grammar) == {b"t", b"ttp"}
    grammar.accept([ord("t")])
    assert grammar.is_free()
    grammar.rollback(2)
    assert allowed(grammar) == {b"t", b"ttp"}
    copy = grammar.fork()
    copy.accept([TOKENS.index(b"ttp")])
    assert copy.is_free() and not grammar.is_free()


def test_what_follows_must_fit_the_constraint() -> None:
    grammar = healed("//[a-z]", b"p", b":")
    assert allowed(grammar) == {b"p", b"p:"}
    grammar.accept([ord("p")])
    assert allowed(grammar) == {b":", b"://"}
    assert allowed(healed("[0-9]", b":")) == {b":"}
    ended = healed("x?", b":")
    ended.accept([ord(":")])
    assert allowed(ended) == {b"x", b""} and not ended.is_terminated()
    ended.accept([EOS])
    assert ended.is_terminated()


def test_where_nothing_would_be_left_everything_is() -> None:
    """A jump may have split the text where no given token begins."""
    grammar = healed(None, b"http", b":")
    grammar.accept([ord("h")])
    assert allowed(grammar) == {b"t", b"ttp"}
    grammar.accept([TOKENS.index(b"ttp")])
    assert allowed(grammar) == {b":", b"://"}


@given(st.sampled_from(["http:", "ttp:", "p:", "h", "éh"]), st.data())
def test_every_text_stays_possible(before: str, data: st.DataObject) -> None:
    """Any continuation can be written: by the given tokens and then its bytes."""
    given_tokens = cut(before.encode(), data)
    grammar = healed(None, *given_tokens)
    for token in given_tokens:
        assert token in allowed(grammar)
        grammar.accept([TOKENS.index(token)])
    assert grammar.is_free() and len(allowed(grammar)) == len(set(TOKENS))


def cut(text: bytes, data: st.DataObject) -> list[bytes]:
    pieces = []
    while text:
        fitting = [t for t in sorted(set(TOKENS)) if t and text.startswith(t)]
        pieces.append(data.draw(st.sampled_from(fitting)))
        text = text[len(pieces[-1]) :]
    return pieces


@pytest.mark.parametrize("stop_after_first", [False, True])
def test_reasoning_before_tags_in_free_text(stop_after_first: bool) -> None:
    """A trigger in it is text, and a tag in it does not end the output."""
    tag = {"type": "tag", "begin": "<t>", "content": {"type": "regex", "pattern": "a+"}, "end": "."}
    form = {"type": "triggered_tags", "triggers": ["<t"], "tags": [tag]}
    source = json.dumps({"format": form | {"stop_after_first": stop_after_first}})
    constraint = Constraint("structural_tag", source, after="</o>", opener="<o>")
    grammar = compiled(constraint, "llguidance")
    for text in ("", "<o", "a <o> b", "b<t>a.", "<o><t ></o>", "<o>a<t>b.</o>c <t>aa."):
        assert allows(grammar, text), text
    for text in ("<o>a<t>a.", "<o>", "<t>b", "<o>a</o>b<t>b", "<o>a</o>b<o><t>b"):
        assert not allows(grammar, text), text
    assert allows(grammar, "<o></o>a<t>a.b") != stop_after_first
