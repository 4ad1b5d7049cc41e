"""What following a grammar may cost: metered while it is followed, and tried out beforehand."""

import json
from typing import Any

import numpy as np
import pytest

from scheduler_proc.grammar import allowance
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.grammar.worker.trial import MAX_LOAD_S, check_affordable
from srt.wire.constraint import Constraint
from tests.scheduler_proc.fake_executor import VOCAB
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar

CHARACTERS = [bytes([i]) for i in range(256)]
VOCABULARY = TokenVocabulary.from_tokens([*CHARACTERS, b"<eos>"], [], [256])


class Clock:
    """Every call of a metered operation takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(0.0)
    monkeypatch.setattr(allowance, "thread_time", made)
    return made


def first_of(row: np.ndarray) -> int:
    return int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])


def tokens_until_refused(grammar: MeteredGrammar, most: int) -> int:
    row = np.empty((VOCAB + 31) // 32, np.uint32)
    for count in range(most):
        try:
            grammar.fill(row)
        except GrammarError as error:
            assert "too long to follow: more than 100 ms" in str(error)
            return count
        grammar.accept(
            [int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])]
        )
    return most


def test_what_is_fast_is_followed_for_ever(clock: Clock) -> None:
    clock.step = allowance.TOKEN_S / 3
    assert tokens_until_refused(MeteredGrammar(FakeGrammar(1000)), 500) == 500


def test_what_is_slow_ends_when_its_allowance_is_used_up(clock: Clock) -> None:
    """A token takes two calls of 10 ms and earns 1 ms, so it uses 19 ms of the 100 ms."""
    clock.step = 0.01
    grammar = MeteredGrammar(FakeGrammar(1000))
    assert tokens_until_refused(grammar, 500) == 6
    copy = grammar.fork()
    for refused in (grammar, copy):
        with pytest.raises(GrammarError, match="too long"):
            refused.forced_bytes()


def test_tokens_that_are_taken_back_earn_nothing(clock: Clock) -> None:
    grammar = MeteredGrammar(FakeGrammar(1000))
    row = np.empty((VOCAB + 31) // 32, np.uint32)
    grammar.fill(row)
    token = first_of(row)
    clock.step = allowance.TOKEN_S / 2
    for _ in range(120):
        grammar.accept([token])
        grammar.rollback(1)
    with pytest.raises(GrammarError, match="too long"):
        grammar.fill(row)


def test_what_was_handed_out_before_is_not_refused_after(clock: Clock) -> None:
    """A step may run by then."""
    clock.step = 0.06
    grammar, row = MeteredGrammar(FakeGrammar(1000)), np.empty((VOCAB + 31) // 32, np.uint32)
    grammar.fill(row)
    token = first_of(row)
    mask = grammar.mask_after(token)
    assert mask is not None
    grammar.accept([token])
    assert grammar.forced_bytes() == b""
    grammar.fill(row)
    assert row.tolist() == mask.tolist()
    token = first_of(row)
    assert grammar.mask_after(token) is None
    grammar.accept([token])
    with pytest.raises(GrammarError, match="too long"):
        grammar.fill(row)


def drafted(grammar: MeteredGrammar) -> int:
    """How many tokens a draft can be followed for, 50 at most."""
    drafts, row = grammar.for_drafts(), np.empty((VOCAB + 31) // 32, np.uint32)
    for count in range(50):
        try:
            drafts.fill(row)
        except GrammarError as error:
            assert "more than 20 ms" in str(error)
            return count
        drafts.accept([first_of(row)])
    return 50


def test_drafts_have_an_allowance_of_their_own(clock: Clock) -> None:
    """It never has more than 20 ms; a token of a draft takes two calls of 2 ms, and bringing the
    copy along another, and the request's own tokens earn 1 ms. Nothing of the request's is used."""
    grammar, row = MeteredGrammar(FakeGrammar(1000)), np.empty((VOCAB + 31) // 32, np.uint32)
    for taken_back in (False, True, False):
        for _ in range(40):
            clock.step = 0.0
            grammar.fill(row)
            grammar.accept([first_of(row)])
            if taken_back:
                grammar.rollback(1)
        clock.step = 0.002
        if not taken_back:
            assert drafted(grammar) == 5
        with pytest.raises(GrammarError, match="more than 20 ms"):
            grammar.for_drafts()
    # The request has its 100 ms, and what 80 tokens have earned.
    for clock.step in (0.0599, 0.0599, 0.0599, 0.0005):
        grammar.fill(row)
    with pytest.raises(GrammarError, match="more than 100 ms"):
        grammar.fill(row)


def test_a_copy_for_drafts_stands_where_the_request_does(clock: Clock) -> None:
    """Also when the request has gone far since the last draft."""
    held = FakeGrammar(1000)
    grammar, mask = MeteredGrammar(held), np.empty((2, (VOCAB + 31) // 32), np.uint32)
    for num_tokens in (0, 1, 3, 500, 0, 2):
        for _ in range(num_tokens):
            grammar.accept([min(held.allowed())])
        drafts = grammar.for_drafts()
        drafts.fill(mask[0])
        grammar.fill(mask[1])
        assert mask[0].tolist() == mask[1].tolist()
        drafts.accept([first_of(mask[0])])


def test_a_metered_grammar_is_otherwise_the_one_it_holds() -> None:
    held = FakeGrammar(3)
    metered = MeteredGrammar(held)
    row, same = np.empty((2, (VOCAB + 31) // 32), np.uint32)
    for _ in range(4):
        metered.fill(row)
        held.fill(same)
        assert row.tolist() == same.tolist()
        assert metered.is_accepting() == held.is_accepting()
        assert metered.forced_bytes() == b"" and not metered.is_free()
        metered.accept([max(held.allowed())])
    assert metered.is_terminated() and metered.fork().is_terminated()
    metered.rollback(1)
    assert not metered.is_terminated()


class FakeCompiled:
    """A compiled FakeGrammar, as if of a back end that is not ours."""

    backend, num_bytes = "llguidance", 0
    narrows, fewest_tokens = False, 0

    def __init__(self, breaks_at: int = -1) -> None:
        self._breaks_at = breaks_at

    def start(self) -> Grammar:
        return FakeGrammar(1000, self._breaks_at)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        raise NotImplementedError


def test_what_breaks_after_a_few_tokens_is_refused_before() -> None:
    vocabulary = TokenVocabulary.from_tokens([*[b"a"] * EOS, b"<eos>"], [], [EOS])
    check_affordable(FakeCompiled(), vocabulary)
    with pytest.raises(GrammarError, match="it cannot be followed: made to break"):
        check_affordable(FakeCompiled(breaks_at=5), vocabulary)


def test_what_is_slow_from_the_beginning_is_refused_before(clock: Clock) -> None:
    clock.step = 0.01
    vocabulary = TokenVocabulary.from_tokens([*[b"a"] * EOS, b"<eos>"], [], [EOS])
    with pytest.raises(GrammarError, match="it cannot be followed: it takes too long"):
        check_affordable(FakeCompiled(), vocabulary)


def test_what_takes_long_to_load_is_refused(clock: Clock) -> None:
    """What counts is the CPU time that it took where it was compiled."""
    grammar = compile_llguidance(Constraint("ebnf", 'root ::= "ab"'), VOCABULARY)
    check_affordable(grammar, VOCABULARY)
    grammar.load_s = MAX_LOAD_S + 0.1
    with pytest.raises(GrammarError, match="takes 500 ms to make its grammar, above the limit"):
        check_affordable(grammar, VOCABULARY)


@pytest.mark.parametrize(
    "schema", [{}, {"type": "string"}, {"type": "object"}, {"const": "\u0004"}]
)
def test_ordinary_schemas_are_affordable(schema: dict[str, object]) -> None:
    grammar = compile_llguidance(Constraint("json_schema", json.dumps(schema)), VOCABULARY)
    check_affordable(grammar, VOCABULARY)


@pytest.mark.parametrize("call", ["fill", "accept", "rollback", "forced_bytes"])
def test_whatever_a_library_raises_is_the_requests_error(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of range")

    monkeypatch.setattr(FakeGrammar, call, fails)
    arguments: dict[str, list[Any]] = {
        "fill": [np.empty((VOCAB + 31) // 32, np.uint32)],
        "accept": [[1]],
        "rollback": [1],
        "forced_bytes": [],
    }
    with pytest.raises(GrammarError, match="beyond what the back end can do"):
        getattr(MeteredGrammar(FakeGrammar(3)), call)(*arguments[call])


def test_a_copy_for_drafts_that_went_back_further_is_made_anew() -> None:
    """As where a jump is looked for: it puts other tokens into the place of the request's."""
    constraint = Constraint("regex", r"a(x|y)[0-9]|b(x|z)[a-z]")
    compiled = compile_llguidance(constraint, VOCABULARY)
    grammar, other = MeteredGrammar(compiled.start()), compiled.start()
    grammar.accept([ord("a")])
    copy = grammar.for_drafts()
    copy.rollback(1)
    copy.accept([ord("b")])
    grammar.accept([ord("x")])
    other.accept([*b"ax"])
    expected, found = np.zeros((2, 9), np.uint32)
    other.fill(expected)
    grammar.for_drafts().fill(found)
    assert (expected == found).all() and expected.any()
