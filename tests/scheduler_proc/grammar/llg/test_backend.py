"""The llguidance back end keeps the contract of `Grammar`: exact masks, clean errors, EOS."""

import json
import random

import numpy as np
import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.llg.backend import (
    LlguidanceGrammar,
    LlguidanceMatcher,
    compile_llguidance,
)
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import Constraint

TEXTS = ['{"name":"', '"age":', "</think>", "true", "\u00e9", "\U0001f600", '":"', '},{"', "abcd"]
ABSENT = 0x04  # a byte that no token has


def make_vocabulary(num_eos: int = 2) -> TokenVocabulary:
    """All bytes but one, all pieces of TEXTS, a special token, EOS tokens, one token twice."""
    pieces = {bytes([i]) for i in range(256) if i != ABSENT}
    for text in map(str.encode, TEXTS):
        pieces |= {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    tokens = [*sorted(pieces), b"abc", b"<s>", *[b"<eos>"] * num_eos]
    special = len(pieces) + 1
    return TokenVocabulary.from_tokens(tokens, [special], range(special + 1, special + 1 + num_eos))


VOCABULARY = make_vocabulary()
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    Constraint("json_schema", json.dumps(RECORD)),
    Constraint("json_schema", json.dumps(RECORD), whitespace="free"),
    Constraint("regex", "(abcd|ab\\x04|\u00e9\U0001f600)+"),
    Constraint("ebnf", 'root ::= "ab" ("cd" root | "c" | "\\x04")'),
    Constraint("choices", '["abc", "abcd", "true/\\n"]', after="</think>"),
]


def filled(grammar: LlguidanceMatcher, vocabulary: TokenVocabulary = VOCABULARY) -> set[int]:
    row = np.full(vocabulary.mask_width, 0xFFFFFFFF, np.uint32)
    grammar.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def fits(grammar: LlguidanceMatcher, token: int) -> bool:
    try:
        grammar.fork().accept([token])
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: f"{c.kind}-{c.whitespace}")
def test_masks_have_exactly_the_tokens_that_are_accepted(constraint: Constraint) -> None:
    rng = random.Random(5)
    compiled = compile_llguidance(constraint, VOCABULARY)
    for _ in range(3):
        grammar = compiled.start()
        for _ in range(20):
            allowed = filled(grammar)
            assert allowed == {i for i in range(VOCABULARY.vocab_size) if fits(grammar, i)}
            forced, token = grammar.forced_bytes(), rng.choice(sorted(allowed))
            if token in VOCABULARY.eos_ids:
                assert forced == b""
                break
            data = VOCABULARY.token_bytes[token]
            assert forced.startswith(data) or data.startswith(forced)
            grammar.accept([token])


def test_a_refused_token_changes_nothing() -> None:
    grammar = compile_llguidance(CONSTRAINTS[0], VOCABULARY).start()
    before = filled(grammar)
    brace, end = VOCABULARY.token_bytes.index(b"{"), VOCABULARY.eos_ids[0]
    special = next(iter(VOCABULARY.special_ids))
    for tokens in ([special], [end], [brace, brace], [brace, end], [end, brace], [-1], [10**6]):
        with pytest.raises(GrammarError):
            grammar.accept(tokens)
        assert filled(grammar) == before


def test_rollback_and_fork_go_to_the_same_places() -> None:
    grammar = compile_llguidance(CONSTRAINTS[0], VOCABULARY).start()
    tokens = [VOCABULARY.token_bytes.index(p) for p in (b'{"na', b'me":"', b"a", b'"', b"}")]
    masks, forks = [], []
    for token in tokens:
        masks.append(filled(grammar))
        forks.append(grammar.fork())
        grammar.accept([token])
    grammar.accept([VOCABULARY.eos_ids[1]])
    assert grammar.is_terminated() and not grammar.is_accepting()
    with pytest.raises(GrammarError):
        grammar.fill(np.zeros(VOCABULARY.mask_width, np.uint32))
    grammar.rollback(1)
    assert grammar.is_accepting() and filled(grammar) == set(VOCABULARY.eos_ids)
    grammar.rollback(2)
    assert filled(grammar) == masks[3]
    grammar.rollback(3)
    assert [filled(fork) for fork in forks] == masks


def test_nothing_that_a_token_can_spell_is_an_error() -> None:
    grammar = compile_llguidance(Constraint("regex", "\\x04+a"), VOCABULARY).start()
    with pytest.raises(GrammarError):
        grammar.fill(np.zeros(VOCABULARY.mask_width, np.uint32))


def test_a_vocabulary_without_eos_ends_where_nothing_follows() -> None:
    vocabulary = make_vocabulary(num_eos=0)
    grammar = compile_llguidance(Constraint("choices", '["ab", "abc"]'), vocabulary).start()
    grammar.accept([vocabulary.token_bytes.index(b"ab")])
    assert grammar.is_accepting() and not grammar.is_terminated()
    assert {vocabulary.token_bytes[i] for i in filled(grammar, vocabulary)} == {b"c"}
    grammar.accept([vocabulary.token_bytes.index(b"c")])
    assert grammar.is_terminated()


def test_an_artefact_gives_the_same_grammar() -> None:
    compiled = compile_llguidance(CONSTRAINTS[0], VOCABULARY)
    facts, arrays = compiled.to_arrays()
    loaded = LlguidanceGrammar.from_arrays(facts, arrays, VOCABULARY)
    assert filled(loaded.start()) == filled(compiled.start())
    assert loaded.num_bytes == compiled.num_bytes > 0
    with pytest.raises(GrammarError, match="damaged"):
        LlguidanceGrammar.from_arrays({}, {}, VOCABULARY)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint("regex", "(a"), "an automaton that is too large"),
        (Constraint("choices", '{"a": 1}'), "JSON array of strings"),
        (Constraint("json_schema", '{"pattern": "(?=a)"}'), "#/pattern"),
        (Constraint("ebnf", "start: missing_rule"), "missing_rule"),
    ],
)
def test_what_does_not_compile_says_why(constraint: Constraint, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compile_llguidance(constraint, VOCABULARY)
