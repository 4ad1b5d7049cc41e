"""Trimming compared with a search over whole tokens; some bytes are no tokens of their own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.fsm import trim as trim_module
from scheduler_proc.grammar.fsm.trim import trim
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from tests.scheduler_proc.grammar.automata import (
    ALPHABET,
    BYTES,
    ODD,
    any_text_dfa,
    dfas,
    live_states,
    walk,
    words_dfa,
)

token_sets = st.sets(st.text("abc", min_size=1, max_size=4).map(str.encode), max_size=6)


def of(*tokens: bytes) -> TokenVocabulary:
    return TokenVocabulary.from_tokens(list(tokens), special_ids=[], eos_ids=[])


@given(dfas(alphabet=b"abc"), token_sets)
def test_tokens_lead_where_they_did_if_that_can_be_finished(
    dfa: ByteDFA, tokens: set[bytes]
) -> None:
    vocabulary = of(*sorted(tokens))
    live = live_states(dfa, vocabulary)
    if 0 not in live:
        with pytest.raises(GrammarError, match="no text of this constraint"):
            trim(dfa, vocabulary)
        return
    trimmed, ends = trim(dfa, vocabulary)
    pairs = {(0, 0)}
    stack = [(0, 0)]
    while stack:
        old, new = stack.pop()
        assert dfa.accepting[old] == trimmed.accepting[new]
        for token in tokens:
            there, here = walk(dfa, old, token), walk(trimmed, new, token)
            can_end = here >= 0 and (ends is None or bool(ends[here]))
            assert can_end == (there in live)
            if can_end and (there, here) not in pairs:
                pairs.add((there, here))
                stack.append((there, here))
    assert len({old for old, _ in pairs}) == len(pairs), "a state for each"
    assert used_states(trimmed, vocabulary) == set(range(trimmed.num_states))


def used_states(dfa: ByteDFA, vocabulary: TokenVocabulary) -> set[int]:
    """The states from which tokens reach acceptance, and those that tokens pass on the way."""
    used = live = live_states(dfa, vocabulary)
    for state in live:
        for token in vocabulary.token_bytes:
            if walk(dfa, state, token) in live:
                used = used | {walk(dfa, state, token[:n]) for n in range(len(token))}
    return used


def test_nothing_changes_where_every_byte_is_a_token() -> None:
    dfa = words_dfa([b"abc", b"ab\xff"])
    trimmed = trim(dfa, BYTES)
    assert trimmed.dfa is dfa
    assert trimmed.token_ends is None


def test_bytes_without_a_token_are_dead_ends() -> None:
    trimmed, ends = trim(words_dfa([b"ab", b"xyz", b"bx"]), of(b"a", b"b"))
    assert ends is None
    assert trimmed.num_states == 3
    assert [walk(trimmed, 0, data) >= 0 for data in (b"ab", b"x", b"b")] == [True, False, False]


def test_a_class_that_loses_some_of_its_bytes() -> None:
    trimmed, _ = trim(any_text_dfa(), of(b"a", b"b"))
    assert [b for b in range(256) if walk(trimmed, 0, bytes([b])) == 0] == list(b"ab")


def test_a_state_that_tokens_only_pass() -> None:
    """Neither "b" nor "bc" is a token: nothing could follow the token "a"."""
    trimmed, ends = trim(words_dfa([b"abc", b"ad"]), of(b"a", b"ab", b"c", b"d"))
    assert ends is None
    trimmed, ends = trim(words_dfa([b"abc", b"ax"]), of(b"a", b"ab", b"c"))
    assert ends is not None
    assert ends.tolist() == [True, False, True, True]
    assert [walk(trimmed, 0, data) >= 0 for data in (b"abc", b"ax")] == [True, False]


def test_a_token_that_cannot_be_gone_on_from_keeps_nothing() -> None:
    trimmed, ends = trim(words_dfa([b"ad", b"abx"]), of(b"a", b"ab", b"d", b"xx"))
    assert ends is None
    assert [walk(trimmed, 0, data) >= 0 for data in (b"ad", b"ab")] == [True, False]
    assert trimmed.num_states == 3


def test_many_states_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    dfa = words_dfa([b"c" * 30])
    vocabulary = of(b"a", b"cc")
    whole = trim(dfa, vocabulary)
    monkeypatch.setattr(trim_module, "_MAX_PAIRS", 4)
    for trimmed, ends in (whole, trim(dfa, vocabulary)):
        assert (trimmed.transitions == dfa.transitions).all()
        assert ends is not None
        assert ends.tolist() == [state % 2 == 0 for state in range(31)]


def test_a_vocabulary_with_nothing_fitting() -> None:
    with pytest.raises(GrammarError, match="no text of this constraint can be written"):
        trim(words_dfa([b"x"]), ODD)
    with pytest.raises(GrammarError, match="no text of this constraint can be written"):
        trim(words_dfa([b"a\xa9"]), ODD)


def test_the_odd_vocabulary_is_odd() -> None:
    """These tests need bytes that occur only in longer tokens."""
    lacking = [b for b in ALPHABET if not ODD.single_bytes[b]]
    assert lacking == list(b"c\xa9")
    assert not np.isin(lacking, list(ODD.absent_bytes)).any()
