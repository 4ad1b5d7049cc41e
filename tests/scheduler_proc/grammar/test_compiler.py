"""Which back end a constraint gets, and what its finished grammar allows."""

import json
from typing import Any

import numpy as np
import pytest

from scheduler_proc.grammar import compiler as module
from scheduler_proc.grammar.artefact import Artefact
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.regex import StateLimitError
from scheduler_proc.grammar.store import load_compiled
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import Constraint
from srt.wire.errors import ConfigError

EOS = 256
BYTES = TokenVocabulary.from_tokens([bytes([i]) for i in range(256)] + [b""], [EOS], [EOS])
FLAT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NESTED = {"type": "array", "items": {"$ref": "#"}}


def allows(compiled: CompiledGrammar, text: str) -> bool:
    """Whether an output may be `text`, by masks and steps."""
    grammar: Grammar = compiled.start()
    row = np.zeros(BYTES.mask_width, np.uint32)
    for byte in [*text.encode(), EOS]:
        grammar.fill(row)
        if not row[byte // 32] >> (byte % 32) & 1:
            return False
        grammar.accept([byte])
    return True


def compiled(constraint: Constraint, backend: str = "fsm") -> CompiledGrammar:
    """Compiled, stored and loaded again, as on its way to the scheduler."""
    made: Any = GrammarCompiler(BYTES, backend).compile(constraint)
    facts, arrays = made.to_arrays()
    return load_compiled(Artefact(made.backend, facts, arrays), BYTES)


CASES: list[tuple[Constraint, str, str, str]] = [
    (Constraint("regex", r"\d{2}-(a|bc)"), "fsm", "12-bc", "12-b"),
    (Constraint("choices", '["yes","no","é"]'), "fsm", "é", "ye"),
    (Constraint("json_schema", json.dumps(FLAT)), "fsm", '{"a":-12}', '{"a": 1}'),
    (Constraint("json_schema", json.dumps(FLAT), "free"), "fsm", '{ "a": 1 }', '{"a":"x"}'),
    (Constraint("json_schema", json.dumps(NESTED)), "llguidance", "[[],[[]]]", "[1]"),
    (Constraint("ebnf", 'root ::= "a" root "b" | "c"'), "llguidance", "aacbb", "aacb"),
]


@pytest.mark.parametrize(("constraint", "backend", "good", "bad"), CASES)
def test_the_back_end_fits_the_constraint(
    constraint: Constraint, backend: str, good: str, bad: str
) -> None:
    grammar = compiled(constraint)
    assert grammar.backend == backend
    assert allows(grammar, good) and not allows(grammar, bad)


@pytest.mark.parametrize(("constraint", "backend", "good", "bad"), CASES)
def test_llguidance_can_take_them_all(
    constraint: Constraint, backend: str, good: str, bad: str
) -> None:
    grammar = compiled(constraint, "llguidance")
    assert grammar.backend == "llguidance"
    assert allows(grammar, good) and not allows(grammar, bad)


@pytest.mark.parametrize("kind", ["regex", "choices"])
@pytest.mark.parametrize("backend", ["fsm", "llguidance"])
def test_free_text_may_come_first(kind: Any, backend: str) -> None:
    source = '["12"]' if kind == "choices" else r"[0-9]+"
    grammar = compiled(Constraint(kind, source, after="</t>"), backend)
    assert allows(grammar, "thinking 3 < 4 </t>12") and allows(grammar, "</t>12")
    assert not allows(grammar, "12") and not allows(grammar, "</t>x")


def too_large(*_: Any, **__: Any) -> Any:
    raise StateLimitError("the automaton has more than 3 states, the limit")


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [(c, good, bad) for c, backend, good, bad in CASES if backend == "fsm"],
)
def test_what_is_too_large_falls_back(
    monkeypatch: pytest.MonkeyPatch, constraint: Constraint, good: str, bad: str
) -> None:
    monkeypatch.setattr(module, "compile_regex", too_large)
    monkeypatch.setattr(module, "compile_choices", too_large)
    grammar = compiled(constraint)
    assert grammar.backend == "llguidance"
    assert allows(grammar, good) and not allows(grammar, bad)


def test_too_large_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise GrammarError("too much fuel")

    monkeypatch.setattr(module, "compile_regex", too_large)
    monkeypatch.setattr(module, "compile_llguidance", refuses)
    with pytest.raises(GrammarError, match="more than 3 states, the limit; llguidance: too much"):
        compiled(Constraint("regex", "a"))


@pytest.mark.parametrize("backend", ["fsm", "llguidance"])
@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint("regex", "ab(c"), r"position \d"),
        (Constraint("regex", "(?=a)b"), r"position \d"),
        (Constraint("regex", "(?P<a>a{5000})"), "named groups takes at most"),
        (Constraint("json_schema", '{"type": "text"}'), "type"),
        (Constraint("json_schema", "{"), "JSON"),
        (Constraint("ebnf", "root ::= ("), r"\d"),
        (Constraint("structural_tag", "[]"), "."),
    ],
)
def test_errors_say_what_and_where(constraint: Constraint, reason: str, backend: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiled(constraint, backend)


def test_warming_up_leaves_nothing_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(module, "tokens_of", made.append)
    for backend in ("fsm", "llguidance"):
        GrammarCompiler(BYTES, backend).warm_up()
    assert made == [BYTES, BYTES]


def test_a_back_end_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="xgrammar is not installed"):
        GrammarCompiler(BYTES, "xgrammar")


@pytest.mark.parametrize("backend", ["fsm", "llguidance"])
def test_a_pattern_that_nothing_matches_is_refused(backend: str) -> None:
    with pytest.raises(GrammarError, match=r"no text can match|a set without characters"):
        GrammarCompiler(BYTES, backend).compile(Constraint("regex", r"a[^\W\w]"))
