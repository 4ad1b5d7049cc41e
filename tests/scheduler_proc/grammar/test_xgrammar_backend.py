"""xgrammar as a second opinion: it keeps the same contract and accepts what llguidance does."""

import importlib.util
import json
import random

import numpy as np
import pytest

from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.llg.backend import compile_llguidance
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.llg.test_backend import RECORD, VOCABULARY, make_vocabulary

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xgrammar") is None, reason="the extra xgrammar is not installed"
)

CONSTRAINTS = [
    Constraint("regex", "(abcd|ab[0-9]|\u00e9)+x?"),
    Constraint("choices", '["abc", "abcd", "true"]'),
    Constraint("ebnf", 'root ::= "ab" ("cd" root | "c") | "(" root ")"'),
    Constraint("json_schema", json.dumps({**RECORD, "properties": {"age": {"type": "boolean"}},
                                          "required": []})),
]  # fmt: skip


def allowed(grammar: Grammar) -> set[int]:
    row = np.zeros(VOCABULARY.mask_width, np.uint32)
    grammar.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: c.kind)
def test_both_back_ends_allow_the_same(constraint: Constraint) -> None:
    from scheduler_proc.grammar.xgrammar_backend import XgrammarGrammar, compile_xgrammar

    rng = random.Random(1)
    facts, arrays = compile_xgrammar(constraint, VOCABULARY).to_arrays()
    theirs = XgrammarGrammar.from_arrays(facts, arrays, VOCABULARY)
    ours = compile_llguidance(constraint, VOCABULARY)
    for _ in range(4):
        a, b = ours.start(), theirs.start()
        for _ in range(15):
            tokens = allowed(a)
            assert allowed(b) == tokens
            token = rng.choice(sorted(tokens))
            a.accept([token])
            b.accept([token])
            assert a.is_terminated() == b.is_terminated()
            if token in VOCABULARY.eos_ids:
                break
            assert a.is_accepting() == b.is_accepting()


def test_the_contract() -> None:
    from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

    grammar = compile_xgrammar(Constraint("choices", '["abcd", "abc"]'), VOCABULARY).start()
    before = allowed(grammar)
    ab, c = (VOCABULARY.token_bytes.index(piece) for piece in (b"ab", b"c"))
    assert grammar.forced_bytes() == b"abc"
    for tokens in ([ab, ab], [VOCABULARY.eos_ids[0]], [ab, VOCABULARY.eos_ids[0], c], [-1]):
        with pytest.raises(GrammarError):
            grammar.accept(tokens)
        assert allowed(grammar) == before
    grammar.accept([ab, c, VOCABULARY.eos_ids[1]])
    assert grammar.is_terminated()
    grammar.rollback(1)
    fork = grammar.fork()
    assert fork.is_accepting() and fork.forced_bytes() == b""
    grammar.rollback(2)
    assert allowed(grammar) == before


def test_a_lead_in_is_free_up_to_its_end() -> None:
    from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

    for kind, source in (("choices", '["abc"]'), ("json_schema", '{"const": "abc"}')):
        constraint = Constraint(kind, source, after="</think>")  # type: ignore[arg-type]
        grammar = compile_xgrammar(constraint, VOCABULARY).start()
        text = '{"{"</think>' + ("abc" if kind == "choices" else '"abc"')
        tokens = [VOCABULARY.token_bytes.index(char.encode()) for char in text]
        grammar.accept(tokens)
        assert grammar.is_accepting()
        with pytest.raises(GrammarError):
            grammar.accept(tokens[:1])


def test_a_vocabulary_without_eos() -> None:
    from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

    vocabulary = make_vocabulary(num_eos=0)
    grammar = compile_xgrammar(Constraint("choices", '["ab"]'), vocabulary).start()
    grammar.accept([vocabulary.token_bytes.index(b"ab")])
    assert grammar.is_terminated()


def test_errors_are_grammar_errors() -> None:
    from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

    with pytest.raises(GrammarError, match="unterminated subpattern"):
        compile_xgrammar(Constraint("regex", "(a"), VOCABULARY)
    with pytest.raises(GrammarError, match="#/uniqueItems"):
        compile_xgrammar(
            Constraint("json_schema", '{"type":"array","uniqueItems":true}'), VOCABULARY
        )
