"""What may follow near a limit: compared with distances that are found token by token."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler_proc.grammar.fsm import closing
from scheduler_proc.grammar.fsm.closing import (
    UNKNOWN,
    Closing,
    NativeSearch,
    NumpySearch,
    Search,
    make_search,
)
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.fsm.token_masks import NativeWalk, TokenMasks
from scheduler_proc.grammar.fsm.trim import TrimmedDFA, trim
from scheduler_proc.grammar.healed import HealedGrammar
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import NativeUnavailable
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.automata import (
    BYTES,
    ODD,
    ODD_WITHOUT_EOS,
    dfas,
    live_states,
    make_dfa,
    mask_ids,
    real_vocabulary,
    walk,
    words_dfa,
)

MakeSearch = Callable[[TrimmedDFA, TokenVocabulary], Search]
ENOUGH = 10**9

VOCABULARIES = st.sampled_from([ODD, ODD_WITHOUT_EOS, BYTES])
LIMITS = range(1, 12)


def native_search(trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> NativeSearch:
    try:
        return NativeSearch(trimmed, NativeWalk(library.load(), trimmed, vocabulary))
    except NativeUnavailable as reason:
        pytest.skip(str(reason))


SEARCHES: tuple[MakeSearch, ...] = (native_search, NumpySearch)


class Case:
    """An automaton over a vocabulary, and what is right for it."""

    def __init__(self, dfa: ByteDFA, vocabulary: TokenVocabulary) -> None:
        self.dfa, self.vocabulary = dfa, vocabulary
        self.live = sorted(live_states(dfa, vocabulary))
        ends = np.isin(np.arange(dfa.num_states), self.live)
        self.trimmed = TrimmedDFA(dfa, None if ends.all() else ends)
        self.after = {state: self._after(state) for state in self.live}  # by token
        self.fewest = self._fewest()

    def _after(self, state: int) -> dict[int, int]:
        pieces = enumerate(self.vocabulary.token_bytes)
        reached = {token: walk(self.dfa, state, data) for token, data in pieces if data}
        return {token: target for token, target in reached.items() if target in self.live}

    def _fewest(self) -> dict[int, int]:
        """Tokens to acceptance, by state."""
        found = {state: 0 for state in self.live if self.dfa.accepting[state]}
        while len(found) < len(self.live):
            nearer = {
                state: 1 + min(found[target] for target in after.values() if target in found)
                for state, after in self.after.items()
                if state not in found and found.keys() & set(after.values())
            }
            found |= nearer
        return found

    def closing(self, make: MakeSearch = make_search, allowance: int = ENOUGH) -> Closing:
        search = make(self.trimmed, self.vocabulary)
        return Closing(self.trimmed, self.vocabulary, search, allowance)

    def allowed(self, made: Closing, state: int, left: int) -> set[int]:
        """What `made` lets follow, EOS apart."""
        following = TokenMasks(self.trimmed, self.vocabulary).compute(state)
        mask = made.mask(state, left, following)
        return set(self.after[state]) if mask is None else set(mask_ids(mask))

    def right(self, state: int, left: int) -> set[int]:
        return {t for t, target in self.after[state].items() if self.fewest[target] < left}


# ---- within the allowance ----------------------------------------------------------------------


@given(dfa=dfas(), vocabulary=VOCABULARIES)
def test_a_token_may_follow_exactly_if_an_end_is_near_enough(
    dfa: ByteDFA, vocabulary: TokenVocabulary
) -> None:
    case = Case(dfa, vocabulary)
    for make in SEARCHES:
        made = case.closing(make)
        for state in case.live:
            for left in LIMITS:
                assert case.allowed(made, state, left) == case.right(state, left)
                assert made.ends_within(state, left) == (case.fewest[state] <= left)


def test_alternatives_that_are_too_long_are_ruled_out() -> None:
    for vocabulary in (BYTES, real_vocabulary()):
        grammar = FsmGrammar.build(compile_regex("a|b[0-9]{40}"), vocabulary)
        row = np.empty(vocabulary.mask_width, np.uint32)
        grammar.start().fill(row)
        assert len(mask_ids(row)) > 1
        assert grammar.start().narrow(row, 10)
        assert [vocabulary.token_bytes[i] for i in mask_ids(row)] == [b"a"]


def test_characters_of_several_bytes_are_finished() -> None:
    """With three tokens left, a character of four bytes may not begin."""
    vocabulary = TokenVocabulary.from_tokens([bytes([i]) for i in range(256)], [], [])
    grammar = FsmGrammar.build(compile_regex('[^"]{1,9}"'), vocabulary)
    row = np.empty(vocabulary.mask_width, np.uint32)
    grammar.start().fill(row)
    first = {0xC3: 3, 0xE2: 4, 0xF0: 5}  # what a character of such a beginning takes, and the quote
    assert first.keys() <= set(mask_ids(row))
    for left in (2, 3, 4, 5):
        grammar.start().fill(row)
        grammar.start().narrow(row, left)
        assert {i for i in first if i in mask_ids(row)} == {i for i in first if first[i] <= left}


def test_eos_stays_and_where_nothing_fits_nothing_is_narrowed() -> None:
    grammar = FsmGrammar.build(words_dfa([b"x", b"xyz", b"zzz"]), BYTES)
    position, row = grammar.start(), np.empty(BYTES.mask_width, np.uint32)
    position.fill(row)
    for left in (1, 2):  # "x" fits, "zzz" does not
        narrowed = row.copy()
        assert position.narrow(narrowed, left) and mask_ids(narrowed) == [ord("x")]
    position.accept(b"x")
    position.fill(row)
    assert position.narrow(row, 1) and mask_ids(row) == list(BYTES.eos_ids)
    position.rollback(1)
    position.accept(b"z")
    position.fill(row)
    assert not position.narrow(row, 1) and mask_ids(row) == [ord("z")]
    assert not position.ends_within(1) and position.ends_within(2)


@given(dfa=dfas(), vocabulary=VOCABULARIES)
def test_the_fewest_tokens(dfa: ByteDFA, vocabulary: TokenVocabulary) -> None:
    case = Case(dfa, vocabulary)
    assume(0 in case.live)
    for make in SEARCHES:
        assert case.closing(make).fewest_tokens(0) == case.fewest[0]
        for allowance in (0, 10, 100, 400):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(closing, "FIRST_ALLOWANCE", allowance)
                assert case.closing(make).fewest_tokens(0) <= case.fewest[0]


@pytest.mark.parametrize("make", SEARCHES)
def test_the_fewest_tokens_are_a_bound_from_below(
    make: MakeSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, bounds = Case(words_dfa([b"xxxxx"]), BYTES), set()
    for allowance in range(0, 2000, 50):
        monkeypatch.setattr(closing, "FIRST_ALLOWANCE", allowance)
        bounds.add(case.closing(make).fewest_tokens(0))
    assert bounds >= {2, 5} and max(bounds) == 5


@given(dfa=dfas())
def test_where_nothing_is_near_nothing_is_narrowed(dfa: ByteDFA) -> None:
    case = Case(dfa, BYTES)
    grammar = FsmGrammar(*_parts(dfa), vocabulary=BYTES)
    row = np.empty(BYTES.mask_width, np.uint32)
    for state in case.live:
        for left in LIMITS:
            start = grammar.start()
            start._states = [state]
            if start.near(left):
                continue
            for token in (None, *case.after[state]):
                position = start.fork()
                position.accept([] if token is None else [token])
                if not position.is_terminated():
                    grammar_row = grammar.mask(position._states[-1])
                    row[:] = grammar_row
                    assert not position.narrow(row, left - (token is not None))


def _parts(dfa: ByteDFA) -> tuple[Any, Any, Any]:
    made = FsmGrammar.build(dfa, BYTES, precompute_s=0.0)
    assert made.trimmed.dfa.num_states == dfa.num_states
    return made.trimmed, made.chains, made._stored


# ---- past the allowance ------------------------------------------------------------------------


@given(dfa=dfas(), vocabulary=VOCABULARIES, allowance=st.integers(0, 1500))
def test_what_may_follow_always_leads_to_an_end(
    dfa: ByteDFA, vocabulary: TokenVocabulary, allowance: int
) -> None:
    """By induction: after each token that may follow, the output may end or another may follow."""
    case = Case(dfa, vocabulary)
    for make in SEARCHES:
        made = case.closing(make, allowance)
        _, spelled = make(case.trimmed, vocabulary).tables()
        assume((spelled[case.live] < UNKNOWN).all())
        for state in case.live:
            for left in LIMITS:
                allowed = case.allowed(made, state, left)
                assert allowed <= case.right(state, left)
                assert allowed or dfa.accepting[state] or spelled[state] > left
                for token in allowed:
                    after = case.after[state][token]
                    assert dfa.accepting[after] or case.allowed(made, after, left - 1)
                if made.ends_within(state, left):
                    assert dfa.accepting[state] or allowed


@given(dfa=dfas(), vocabulary=VOCABULARIES, allowance=st.integers(0, 1500))
def test_a_search_within_the_allowance_is_followed_by_others(
    dfa: ByteDFA, vocabulary: TokenVocabulary, allowance: int
) -> None:
    case = Case(dfa, vocabulary)
    for make in SEARCHES:
        made, search = case.closing(make, allowance), make(case.trimmed, vocabulary)
        for state in case.live:
            for left in LIMITS[1:]:
                if search.region(made._at_least, state, left, allowance) is None:
                    continue
                for token in case.right(state, left):
                    after = case.after[state][token]
                    found = search.region(made._at_least, after, left - 1, allowance)
                    assert found is not None or case.dfa.accepting[after]


# ---- two implementations -----------------------------------------------------------------------


def check_equal(trimmed: TrimmedDFA, vocabulary: TokenVocabulary, allowance: int) -> None:
    native, slow = (make(trimmed, vocabulary) for make in SEARCHES)
    bytes_and_tokens = native.tables()
    for table, same in zip(bytes_and_tokens, slow.tables(), strict=True):
        assert table.tolist() == same.tolist()
    at_least = Closing(trimmed, vocabulary, native)._at_least
    for state in range(trimmed.dfa.num_states):
        for left in (1, 2, 3, 7):
            found = native.region(at_least, state, left, allowance)
            same_found = slow.region(at_least, state, left, allowance)
            assert (found is None) == (same_found is None)
            if found is not None and same_found is not None:
                assert found.tolist() == same_found.tolist()
                mask = native.walk.mask_within(state, found, left - 1)
                assert (mask == slow.walk.mask_within(state, found, left - 1)).all()


@given(dfa=dfas(), vocabulary=VOCABULARIES, allowance=st.integers(0, 1500))
def test_both_are_equal(dfa: ByteDFA, vocabulary: TokenVocabulary, allowance: int) -> None:
    check_equal(Case(dfa, vocabulary).trimmed, vocabulary, allowance)


@settings(max_examples=examples(2))
@given(dfa=dfas(alphabet=b"abc -1", max_states=5), allowance=st.integers(0, 20_000))
def test_both_are_equal_on_the_real_vocabulary(dfa: ByteDFA, allowance: int) -> None:
    check_equal(TrimmedDFA(dfa, None), real_vocabulary(), allowance)


def test_without_the_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("not built")

    monkeypatch.setattr(library, "load", unavailable)
    assert isinstance(make_search(TrimmedDFA(words_dfa([b"ab"]), None), BYTES), NumpySearch)


# ---- the real vocabulary -----------------------------------------------------------------------

PATTERNS = [
    r"a|b[0-9]{40}",
    r"\d{4}-\d\d-\d\d(T\d\d:\d\d)?",
    r'\{"name": "[^"\\]{0,60}", "age": [1-9][0-9]{0,2}, "tags": \["[a-z]+"(, "[a-z]+"){0,3}\]\}',
    r"(yes|no, because [a-z ]{5,80}\.)",
    r"(.|\n)*?<<<END>>>",
    r"[\u4e00-\u9fff]{3,30}。",
    r"(x[^y]*y){5}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_outputs_end_within_their_limits(pattern: str) -> None:
    vocabulary = real_vocabulary()
    grammar = FsmGrammar.build(compile_regex(pattern), vocabulary, precompute_s=0.0)
    shortest = int(make_search(grammar.trimmed, vocabulary).tables()[1][0])
    assert 0 < grammar.fewest_tokens <= shortest
    rng, row = random.Random(pattern), np.empty(vocabulary.mask_width, np.uint32)
    narrowed = 0
    for more in (0, 1, 2, 4, 8, 16):
        for _ in range(3):
            position = grammar.start()
            for left in range(shortest + more, 0, -1):
                position.fill(row)
                narrowed += position.narrow(row, left)
                token = rng.choice(mask_ids(row))
                position.accept([token])
                if token in vocabulary.eos_ids:
                    break
            assert position.is_accepting() or position.is_terminated()
    assert narrowed > 0


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_an_output_that_writes_the_end_of_its_prompt_again_ends_in_time(limit: int) -> None:
    """Healing keeps to the tokens of the prompt, which may be more than an end leaves room for."""
    given_ids, row = list(b"abab"), np.empty(BYTES.mask_width, np.uint32)
    grammar = FsmGrammar.build(compile_regex("abab[a-z]{0,9}"), BYTES)
    for seed in range(10):
        rng = random.Random(seed)
        position = HealedGrammar(grammar.start(), given_ids, BYTES)
        for left in range(limit, 0, -1):
            position.fill(row)
            position.narrow(row, left)
            token = rng.choice(mask_ids(row))
            position.accept([token])
            if token in BYTES.eos_ids:
                break
        assert position.is_accepting() or position.is_terminated()


# ---- damaged tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1, -2, 2**31 - 1])
def test_transitions_that_lead_nowhere(target: int) -> None:
    table = np.full((1, 1), target, np.int32)
    dfa = ByteDFA(table, np.zeros(256, np.uint8), np.ones(1, np.bool_))
    with pytest.raises(RuntimeError, match="transition to state"):
        native_search(TrimmedDFA(dfa, None), BYTES).tables()


def test_a_class_without_bytes() -> None:
    """Which no text can take, though acceptance seems to be one byte away."""
    table = np.array([[-1, 1], [-1, -1]], np.int32)
    dfa = ByteDFA(table, np.zeros(256, np.uint8), np.array([False, True]))
    _, tokens = native_search(TrimmedDFA(dfa, None), BYTES).tables()
    assert tokens.tolist() == [UNKNOWN, 0]


def test_a_vocabulary_without_text() -> None:
    vocabulary = TokenVocabulary.from_tokens([b"</s>", b""], special_ids=[0], eos_ids=[0])
    trimmed = trim(make_dfa([{}], [0]), vocabulary)
    for make in SEARCHES:
        made = Closing(trimmed, vocabulary, make(trimmed, vocabulary))
        assert made.reach == 0 and made.fewest_tokens(0) == 0 and made.ends_within(0, 0)
