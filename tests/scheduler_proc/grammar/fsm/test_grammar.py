"""The fsm back end: what a position allows, accepting tokens, taking them back, storage."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.mask_cache import MaskCache
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from tests.scheduler_proc.grammar.automata import (
    BYTES,
    EOS,
    ODD,
    ODD_WITHOUT_EOS,
    allowed_ids,
    any_text_dfa,
    dfas,
    live_states,
    make_dfa,
    mask_ids,
    random_dfa,
    real_vocabulary,
    walk,
    words_dfa,
)


def built(
    dfa: ByteDFA, vocabulary: TokenVocabulary = BYTES, precompute_s: float = 1.0
) -> FsmGrammar:
    return FsmGrammar.build(dfa, vocabulary, precompute_s=precompute_s)


def allowed(grammar: Grammar, vocabulary: TokenVocabulary = BYTES) -> list[int]:
    row = np.full(vocabulary.mask_width, 0xDEADBEEF, np.uint32)
    grammar.fill(row)
    return mask_ids(row)


def test_it_is_what_the_interfaces_say() -> None:
    compiled: CompiledGrammar = built(words_dfa([b"a"]))
    grammar: Grammar = compiled.start()
    assert compiled.backend == "fsm"
    assert compiled.num_bytes > 0
    assert not grammar.is_terminated()


class TestOutputs:
    def test_one_word(self) -> None:
        grammar = built(words_dfa([b"abc"])).start()
        ab, abc = 256, 257
        assert allowed(grammar) == [ord("a"), ab, abc]
        grammar.accept([ab])
        assert allowed(grammar) == [ord("c")]
        assert not grammar.is_accepting()
        grammar.accept([ord("c")])
        assert grammar.is_accepting()
        assert not grammar.is_terminated()
        assert allowed(grammar) == [EOS]
        grammar.accept([EOS])
        assert grammar.is_terminated()
        assert not grammar.is_accepting()

    def test_an_end_with_something_after_it(self) -> None:
        grammar = built(words_dfa([b"a", b"abc"])).start()
        grammar.accept([ord("a")])
        assert allowed(grammar) == [ord("b"), EOS]
        assert grammar.forced_bytes() == b""

    def test_nothing_follows_eos(self) -> None:
        grammar = built(any_text_dfa()).start()
        grammar.accept([EOS])
        for tokens in ([EOS], [ord("a")]):
            with pytest.raises(GrammarError, match="cannot follow"):
                grammar.accept(tokens)
        with pytest.raises(GrammarError, match="has ended"):
            allowed(grammar)
        assert grammar.forced_bytes() == b""
        grammar.rollback(1)
        assert len(allowed(grammar)) == 261

    def test_every_eos_id_ends(self) -> None:
        tokens = [b"a", b"</s>", b"<end>"]
        vocabulary = TokenVocabulary.from_tokens(tokens, special_ids=[1], eos_ids=[1, 2])
        grammar = built(words_dfa([b"a"]), vocabulary).start()
        grammar.accept([0])
        assert allowed(grammar, vocabulary) == [1, 2]
        for eos in (1, 2):
            fork = grammar.fork()
            fork.accept([eos])
            assert fork.is_terminated()

    def test_without_eos_an_output_ends_when_nothing_can_follow(self) -> None:
        vocabulary = TokenVocabulary.from_tokens([b"a", b"b"], special_ids=[], eos_ids=[])
        grammar = built(words_dfa([b"a", b"ab"]), vocabulary).start()
        grammar.accept([0])
        assert grammar.is_accepting() and not grammar.is_terminated()
        assert allowed(grammar, vocabulary) == [1]
        grammar.accept([1])
        assert grammar.is_accepting() and grammar.is_terminated()
        with pytest.raises(GrammarError, match="complete"):
            allowed(grammar, vocabulary)

    def test_a_row_of_another_width_is_refused(self) -> None:
        with pytest.raises(ValueError, match="shape"):
            built(any_text_dfa()).start().fill(np.zeros(BYTES.mask_width + 1, np.uint32))


class TestRefusals:
    @pytest.mark.parametrize("token", [ord("b"), EOS, 261, 262, -1, ord("b") - 262, 10**9])
    def test_a_token_that_does_not_fit_changes_nothing(self, token: int) -> None:
        grammar = built(words_dfa([b"aab"])).start()
        with pytest.raises(GrammarError, match=f"token {token}.* cannot follow"):
            grammar.accept([ord("a"), ord("a"), token, ord("b")][token == ord("b") :])
        assert allowed(grammar) == [ord("a")]
        assert grammar.forced_bytes() == b"aab"

    def test_a_token_after_which_none_could_follow(self) -> None:
        """Only "abc" can be written, not "ax", and only if it begins with the token "ab"."""
        vocabulary = TokenVocabulary.from_tokens([b"a", b"ab", b"c"], [], [])
        grammar = built(words_dfa([b"abc", b"ax"]), vocabulary).start()
        assert allowed(grammar, vocabulary) == [1]
        with pytest.raises(GrammarError, match="cannot follow"):
            grammar.accept([0])
        grammar.accept([1, 2])

    def test_more_than_was_accepted_cannot_be_taken_back(self) -> None:
        grammar = built(any_text_dfa()).start()
        grammar.accept([1, 2])
        for count in (3, -1):
            with pytest.raises(ValueError, match="cannot take back"):
                grammar.rollback(count)
        grammar.rollback(2)

    def test_what_the_vocabulary_cannot_write(self) -> None:
        with pytest.raises(GrammarError, match="no text of this constraint"):
            built(words_dfa([b"x"]), ODD)


class Follower:
    """Follows one output in a grammar and in its automaton, to compare them."""

    def __init__(self, dfa: ByteDFA, vocabulary: TokenVocabulary, rng: np.random.Generator) -> None:
        self.dfa, self.vocabulary, self.rng = dfa, vocabulary, rng
        self.live = live_states(dfa, vocabulary)
        self.state = 0
        self.ended = False
        self.taken: list[int] = []

    def check(self, grammar: Grammar) -> list[int]:
        """Compare all that the grammar says; returns the ids that may follow, none at the end."""
        assert grammar.is_accepting() == (not self.ended and bool(self.dfa.accepting[self.state]))
        ids = list(allowed_ids(self.dfa, self.vocabulary, self.state, self.live))
        over = self.ended or not ids
        assert grammar.is_terminated() == over
        if over:
            with pytest.raises(GrammarError):
                allowed(grammar, self.vocabulary)
            return []
        assert allowed(grammar, self.vocabulary) == ids
        for token in set(range(self.vocabulary.vocab_size)) - set(ids):
            with pytest.raises(GrammarError):
                grammar.accept([token])
        self.check_forced(grammar.forced_bytes(), ids)
        return ids

    def check_forced(self, forced: bytes, ids: list[int]) -> None:
        """Every token that may follow agrees with the forced bytes."""
        for token in ids:
            data = self.vocabulary.token_bytes[token]
            assert forced[: len(data)] == data[: len(forced)]
        if forced:
            assert not set(ids) & set(self.vocabulary.eos_ids)

    def step(self, grammar: Grammar, ids: list[int]) -> None:
        token = int(self.rng.choice(ids))
        grammar.accept([token])
        self.taken.append(token)
        self.ended = token in self.vocabulary.eos_ids
        self.state = walk(self.dfa, self.state, self.vocabulary.token_bytes[token])


@given(dfas(max_states=8), st.integers(0, 2**32), st.sampled_from([ODD, ODD_WITHOUT_EOS, BYTES]))
def test_random_outputs(dfa: ByteDFA, seed: int, vocabulary: TokenVocabulary) -> None:
    follower = Follower(dfa, vocabulary, np.random.default_rng(seed))
    if 0 not in follower.live:
        with pytest.raises(GrammarError):
            built(dfa, vocabulary)
        return
    compiled = built(dfa, vocabulary, precompute_s=seed % 2)
    grammar = compiled.start()
    for _ in range(12):
        ids = follower.check(grammar)
        if not ids:
            break
        follower.step(grammar, ids)
    replay(compiled, grammar, follower)


def replay(compiled: FsmGrammar, grammar: Grammar, follower: Follower) -> None:
    """Taking back any number of tokens is the same as not having accepted them."""
    fork = grammar.fork()
    for left in range(len(follower.taken), -1, -1):
        again = compiled.start()
        again.accept(follower.taken[:left])
        assert facts(fork, follower.vocabulary) == facts(again, follower.vocabulary)
        if left:
            fork.rollback(1)
    grammar.rollback(len(follower.taken))
    assert facts(grammar, follower.vocabulary) == facts(compiled.start(), follower.vocabulary)


def facts(grammar: Grammar, vocabulary: TokenVocabulary) -> tuple[Any, ...]:
    over = grammar.is_terminated()
    ids = [] if over else allowed(grammar, vocabulary)
    return over, ids, grammar.is_accepting(), grammar.forced_bytes()


def test_random_outputs_in_the_real_vocabulary_can_always_be_finished() -> None:
    vocabulary = real_vocabulary()
    rng = np.random.default_rng(1)
    compiled = built(random_dfa(rng, 30, 0.5), vocabulary, precompute_s=0.01)
    for _ in range(5):
        grammar = compiled.start()
        for _ in range(20):
            ids = allowed(grammar, vocabulary)
            grammar.accept(
                [int(rng.choice([i for i in ids if i not in vocabulary.eos_ids] or ids))]
            )
            if grammar.is_terminated():
                break
        finish(grammar, vocabulary)
        assert grammar.is_terminated()


def finish(grammar: Grammar, vocabulary: TokenVocabulary) -> None:
    """Write tokens of one byte until the grammar ends, found by a breadth-first search."""
    paths: list[list[int]] = [[]]
    single = [i for i in vocabulary.trie.token_ids.tolist() if len(vocabulary.token_bytes[i]) == 1]
    for path in paths:
        if grammar.is_terminated():
            return
        grammar.accept(path)
        if grammar.is_accepting():
            grammar.accept([vocabulary.eos_ids[0]])
            return
        paths += [[*path, token] for token in sorted({*allowed(grammar, vocabulary)} & {*single})]
        grammar.rollback(len(path))
        assert len(paths) < 10_000


class TestMaskAfter:
    @given(dfas(), st.sampled_from([BYTES, ODD, ODD_WITHOUT_EOS]))
    def test_it_is_the_next_mask_where_a_token_is_sampled(
        self, dfa: ByteDFA, vocabulary: TokenVocabulary
    ) -> None:
        try:
            grammar = built(dfa, vocabulary).start()
        except GrammarError:
            return  # nothing can be written
        for _ in range(4):
            ids = [] if grammar.is_terminated() else allowed(grammar, vocabulary)
            for token in ids:
                mask = grammar.mask_after(token)
                grammar.accept([token])
                assert (mask is not None) == self._is_sampled(grammar, vocabulary)
                assert mask is None or mask_ids(mask) == allowed(grammar, vocabulary)
                grammar.rollback(1)
            if not ids:
                return
            grammar.accept(ids[:1])

    @staticmethod
    def _is_sampled(grammar: Grammar, vocabulary: TokenVocabulary) -> bool:
        if grammar.is_terminated() or grammar.is_free() or grammar.forced_bytes():
            return False
        return not {*allowed(grammar, vocabulary)} <= {*vocabulary.eos_ids}

    def test_none_after_what_cannot_follow(self) -> None:
        grammar = built(words_dfa([b"abc", b"abd"])).start()
        assert grammar.mask_after(ord("x")) is grammar.mask_after(-1) is None
        assert grammar.mask_after(EOS) is None
        assert allowed(grammar) == [ord("a"), 256, 257]

    def test_none_before_the_mask_was_needed(self) -> None:
        """It would take too long to compute it."""
        vocabulary = replace(BYTES, mask_cache=MaskCache())
        compiled = built(words_dfa([b"a1", b"a2"]), vocabulary, precompute_s=0)
        grammar = compiled.start()
        assert grammar.mask_after(ord("a")) is None
        grammar.accept(b"a")
        allowed(grammar)
        mask = compiled.start().mask_after(ord("a"))
        assert mask is not None and mask_ids(mask) == [ord("1"), ord("2")]


class TestForks:
    def test_they_are_independent(self) -> None:
        grammar = built(words_dfa([b"abc", b"abd", b"xyz"])).start()
        grammar.accept(b"ab")
        fork = grammar.fork()
        fork.accept(b"d")
        grammar.rollback(2)
        grammar.accept(b"x")
        assert grammar.forced_bytes() == b"yz"
        assert fork.is_accepting()
        fork.rollback(3)
        assert ord("x") in allowed(fork)


class TestForcedBytes:
    def test_they_do_not_depend_on_how_they_are_tokenised(self) -> None:
        compiled = built(words_dfa([b'{"ab": 1}', b'{"ab": 2}']))
        for tokens in ([], [ord("{")], [259], [259, 256], [259, ord("a"), ord("b")]):
            grammar = compiled.start()
            grammar.accept(tokens)
            taken = b"".join(BYTES.token_bytes[i] for i in tokens)
            assert taken + grammar.forced_bytes() == b'{"ab": '

    def test_a_state_that_many_bytes_lead_to_is_no_chain_before_it(self) -> None:
        dfa = make_dfa([{ord("a"): 1, ord("b"): 1}, {ord("c"): 2}, {}], [2])
        grammar = built(dfa).start()
        assert grammar.forced_bytes() == b""
        grammar.accept(b"b")
        assert grammar.forced_bytes() == b"c"


class TestMasks:
    def test_the_first_states_are_computed_ahead(self) -> None:
        _, arrays = built(words_dfa([b"left: a", b"left: b"])).to_arrays()
        assert arrays["mask_states"].tolist() == [6, 7, 8]
        assert arrays["mask_rows"].tolist() == [0, 1, 1]

    def test_none_are_without_time(self) -> None:
        _, arrays = built(any_text_dfa(), precompute_s=0).to_arrays()
        assert [arrays[n].shape for n in ("mask_states", "mask_rows")] == [(0,), (0,)]
        assert arrays["masks"].shape == (0, BYTES.mask_width)

    def test_the_others_are_kept_by_use_in_the_vocabularys_cache(self) -> None:
        vocabulary = replace(BYTES, mask_cache=MaskCache())
        compiled = built(words_dfa([b"ab"]), vocabulary, precompute_s=0)
        before = compiled.num_bytes
        first = compiled.mask(0)
        assert compiled.mask(0) is compiled.mask(0)
        assert (compiled.mask(0) == first).all()
        assert compiled.num_bytes > before
        assert len(vocabulary.mask_cache) == 1

    def test_a_grammar_that_is_gone_leaves_nothing_in_the_cache(self) -> None:
        vocabulary = replace(BYTES, mask_cache=MaskCache())
        compiled = built(words_dfa([b"ab"]), vocabulary, precompute_s=0)
        compiled.mask(0)
        del compiled
        other = built(words_dfa([b"b"]), vocabulary, precompute_s=0)
        other.mask(0)
        assert len(vocabulary.mask_cache) == 1

    def test_masks_are_right_without_room_to_keep_them(self) -> None:
        vocabulary = replace(BYTES, mask_cache=MaskCache(0))
        grammar = built(words_dfa([b"ab"]), vocabulary, precompute_s=0).start()
        assert allowed(grammar) == allowed(grammar) == [ord("a"), 256]


# ---- storage -----------------------------------------------------------------------------------


def stored(compiled: FsmGrammar) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file of it would give back: read-only arrays."""
    facts, arrays = compiled.to_arrays()
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in copies.values():
        array.flags.writeable = False
    return facts, copies


@given(dfas(max_states=8), st.booleans(), st.sampled_from([ODD, ODD_WITHOUT_EOS, BYTES]))
def test_what_comes_back_is_the_same(
    dfa: ByteDFA, ahead: bool, vocabulary: TokenVocabulary
) -> None:
    if 0 not in live_states(dfa, vocabulary):
        return
    compiled = built(dfa, vocabulary, precompute_s=float(ahead))
    again = FsmGrammar.from_arrays(*stored(compiled), vocabulary)
    once, twice = compiled.to_arrays(), again.to_arrays()
    assert once[0] == twice[0]
    assert {n: a.tolist() for n, a in once[1].items()} == {
        n: a.tolist() for n, a in twice[1].items()
    }
    one, other = compiled.start(), again.start()
    for _ in range(5):
        assert facts(one, vocabulary) == facts(other, vocabulary)
        if one.is_terminated():
            break
        token = allowed(one, vocabulary)[-1]
        one.accept([token])
        other.accept([token])


Damage = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def at(name: str, index: Any, value: Any) -> Damage:
    def damage(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return damage


def to(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    def damage(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = change(arrays[name])

    return damage


def without(name: str) -> Damage:
    return lambda facts, arrays: arrays.__delitem__(name)


class TestDamage:
    """A grammar of abc and abd: states 0 to 4, with masks for 2, 3 and 4."""

    @pytest.mark.parametrize(
        ("damage", "text"),
        [
            (at("transitions", (0, 0), 5), r"transitions has entries outside \[-1, 5\)"),
            (at("transitions", (0, 0), -2), "transitions has entries"),
            (at("byte_class", 7, 200), "byte_class has entries"),
            (at("mask_states", 0, 5), "mask_states has entries"),
            (at("mask_states", 0, -1), "mask_states has entries"),
            (at("mask_rows", 0, 2), "mask_rows has entries"),
            (at("mask_rows", 0, -1), "mask_rows has entries"),
            (at("masks", (0, 8), 1 << 5), "masks allows tokens that are not text"),
            (at("masks", (0, 8), 1 << 6), "masks allows tokens that are not text"),
            (at("masks", (0,), 0), "masks has an empty mask"),
            (to("accepting", lambda a: a.view(np.uint8) * 2), "accepting is uint8"),
            (to("accepting", lambda a: (a.view(np.uint8) * 2).view(np.bool_)), "accepting has"),
            (to("accepting", lambda a: a[:-1]), "accepting is bool"),
            (to("transitions", lambda a: a.astype(np.int64)), "transitions is int64"),
            (to("transitions", lambda a: a[:0]), "accepting is bool"),
            (to("transitions", lambda a: a.reshape(-1)), "transitions is int32"),
            (to("byte_class", lambda a: a[:255]), "byte_class is uint8"),
            (to("masks", lambda a: a[:, 1:]), "masks is uint32"),
            (to("mask_rows", lambda a: a[1:]), "mask_rows is int32"),
            (without("transitions"), "transitions is missing"),
            (without("masks"), "masks is missing"),
        ],
    )
    def test_damaged_arrays_are_refused(self, damage: Damage, text: str) -> None:
        facts, arrays = stored(built(words_dfa([b"abc", b"abd"])))
        damage(facts, arrays)
        with pytest.raises(GrammarError, match=text):
            FsmGrammar.from_arrays(facts, arrays, BYTES)

    def test_an_automaton_without_states_is_refused(self) -> None:
        facts, arrays = stored(built(words_dfa([b"abc"]), precompute_s=0))
        for name in ("transitions", "accepting"):
            arrays[name] = arrays[name][:0]
        with pytest.raises(GrammarError, match="transitions is empty"):
            FsmGrammar.from_arrays(facts, arrays, BYTES)

    def test_states_that_go_round_are_refused(self) -> None:
        facts, arrays = stored(built(words_dfa([b"abc"])))
        table = arrays["transitions"].copy()
        table[table == 3] = 0
        with pytest.raises(GrammarError, match="go round"):
            FsmGrammar.from_arrays(facts, arrays | {"transitions": table}, BYTES)

    def test_ends_of_tokens_are_checked(self) -> None:
        vocabulary = TokenVocabulary.from_tokens([b"aa"], [], [])
        facts, arrays = stored(built(words_dfa([b"aaaa"]), vocabulary))
        FsmGrammar.from_arrays(facts, arrays, vocabulary)
        with pytest.raises(GrammarError, match="token_ends is bool"):
            ends = arrays["token_ends"][1:]
            FsmGrammar.from_arrays(facts, arrays | {"token_ends": ends}, vocabulary)

    @pytest.mark.parametrize("facts", [{}, {"vocabulary": 1}, {"vocabulary": ODD.fingerprint}])
    def test_another_vocabulary_is_refused(self, facts: dict[str, Any]) -> None:
        _, arrays = stored(built(any_text_dfa()))
        with pytest.raises(GrammarError, match="another vocabulary"):
            FsmGrammar.from_arrays(facts, arrays, BYTES)
