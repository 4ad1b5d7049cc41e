"""Token masks, native and numpy, compared with walking every token of the vocabulary."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from scheduler_proc.grammar.fsm import token_masks
from scheduler_proc.grammar.fsm.closing import NativeSearch
from scheduler_proc.grammar.fsm.token_masks import MaskWalk, NativeWalk, NumpyWalk, TokenMasks
from scheduler_proc.grammar.fsm.trim import TrimmedDFA, trim
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import NativeUnavailable
from tests.running.profiles import examples, seeds
from tests.scheduler_proc.grammar.automata import (
    BYTES,
    ODD,
    allowed_ids,
    any_text_dfa,
    dfas,
    live_states,
    make_dfa,
    mask_ids,
    random_dfa,
    real_vocabulary,
    words_dfa,
)

MakeWalk = Callable[[TrimmedDFA, TokenVocabulary], MaskWalk]


def native_walk(trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> NativeWalk:
    try:
        return NativeWalk(library.load(), trimmed, vocabulary)
    except NativeUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=[native_walk, NumpyWalk])
def make_walk(request: pytest.FixtureRequest) -> MakeWalk:
    made: MakeWalk = request.param
    return made


class TestAgainstEveryToken:
    # Scripts with two, three and four bytes per character; some characters need several tokens.
    TEXTS = (
        "naïve café",
        "Привет, мир",
        "日本語のテキスト",
        "안녕하세요",
        "नमस्ते",
        "👩‍👩‍👧 🏳️‍🌈 🎉",
        '{"name": "\\u00e9"}\n\t',
    )

    def check(self, dfa: ByteDFA, states: list[int], make_walk: MakeWalk) -> None:
        vocabulary = real_vocabulary()
        trimmed = trim(dfa, vocabulary)
        assert trimmed.token_ends is None, "every byte of this vocabulary is a token"
        masks = TokenMasks(trimmed, vocabulary, make_walk(trimmed, vocabulary))
        live = set(range(trimmed.dfa.num_states))
        for state in states:
            expected = list(allowed_ids(trimmed.dfa, vocabulary, state, live))
            assert mask_ids(masks.compute(state)) == expected

    @pytest.mark.parametrize("text", TEXTS)
    def test_inside_characters_of_other_scripts(self, text: str, make_walk: MakeWalk) -> None:
        data = text.encode()
        self.check(words_dfa([data, data[: len(data) // 2]]), [0, 1, 2], make_walk)

    def test_every_token_may_follow_anything(self, make_walk: MakeWalk) -> None:
        self.check(any_text_dfa(), [0], make_walk)

    @pytest.mark.parametrize("seed", seeds(2))
    def test_random_automata(self, seed: int, make_walk: MakeWalk) -> None:
        rng = np.random.default_rng(seed)
        dfa = random_dfa(rng, 40, (0.4, 0.9, rng.uniform(0.3, 1.0))[seed % 3])
        self.check(dfa, [0, dfa.num_states // 2, dfa.num_states - 1], make_walk)


@given(dfa=dfas())
def test_both_are_right_where_tokens_may_not_end_everywhere(dfa: ByteDFA) -> None:
    live = live_states(dfa, ODD)
    ends = np.isin(np.arange(dfa.num_states), sorted(live))
    trimmed = TrimmedDFA(dfa, ends)
    for make in (native_walk, NumpyWalk):
        masks = TokenMasks(trimmed, ODD, make(trimmed, ODD))
        for state in range(dfa.num_states):
            assert mask_ids(masks.compute(state)) == list(allowed_ids(dfa, ODD, state, live))


@settings(max_examples=examples(3))
@given(dfa=dfas(alphabet=bytes(range(32, 64)), max_states=12))
def test_both_are_equal_on_the_real_vocabulary(dfa: ByteDFA) -> None:
    trimmed = TrimmedDFA(dfa, None)
    walks = [make(trimmed, real_vocabulary()) for make in (native_walk, NumpyWalk)]
    for state in range(dfa.num_states):
        native, in_numpy = (walk.mask(state) for walk in walks)
        assert (native == in_numpy).all()


def test_special_tokens_are_never_allowed_by_their_text(make_walk: MakeWalk) -> None:
    trimmed = TrimmedDFA(any_text_dfa(), None)
    masks = TokenMasks(trimmed, BYTES, make_walk(trimmed, BYTES))
    assert mask_ids(masks.compute(0)) == list(range(261))  # 260 is EOS, 261 <pad>


def test_a_vocabulary_without_text(make_walk: MakeWalk) -> None:
    vocabulary = TokenVocabulary.from_tokens([b"</s>", b""], special_ids=[0], eos_ids=[0])
    trimmed = TrimmedDFA(make_dfa([{}], [0]), None)
    masks = TokenMasks(trimmed, vocabulary, make_walk(trimmed, vocabulary))
    assert mask_ids(masks.compute(0)) == [0]


def test_read_only_tables_will_do(make_walk: MakeWalk) -> None:
    dfa = words_dfa([b"abc"])
    for array in (dfa.transitions, dfa.byte_class, dfa.accepting):
        array.flags.writeable = False
    assert make_walk(TrimmedDFA(dfa, None), BYTES).mask(0).any()


def test_without_the_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("not built")

    trimmed = TrimmedDFA(words_dfa([b"ab"]), None)
    monkeypatch.setattr(library, "load", unavailable)
    assert isinstance(token_masks.make_walk(trimmed, BYTES), NumpyWalk)


class TestKernelRefusals:
    """The kernel refuses tables that would make it read outside them."""

    def refusal(self, text: str, dfa: ByteDFA, state: int = 0, **trie: Any) -> None:
        vocabulary = replace(BYTES, trie=replace(BYTES.trie, **trie))
        trimmed = TrimmedDFA(dfa, None)
        walk = native_walk(trimmed, vocabulary)
        with pytest.raises(RuntimeError, match=text):
            walk.mask(state)
        if text != "tokens of node":  # which a search does not read
            distances = np.zeros(dfa.num_states, np.int32)
            with pytest.raises(RuntimeError, match=text):
                NativeSearch(trimmed, walk).region(distances, state, 3, 1000)

    @pytest.mark.parametrize("state", [-1, 4, 2**31 - 1])
    def test_states(self, state: int) -> None:
        self.refusal("state", words_dfa([b"abc"]), state)

    @pytest.mark.parametrize("target", [1, -2, 2**31 - 1])
    def test_transitions(self, target: int) -> None:
        table = np.full((1, 1), target, np.int32)
        dfa = ByteDFA(table, np.zeros(256, np.uint8), np.ones(1, np.bool_))
        self.refusal("transition to state", dfa)

    def test_classes(self) -> None:
        self.refusal("class", replace(any_text_dfa(), byte_class=np.full(256, 1, np.uint8)))

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("ends", 0, "subtree"),
            ("token_ids", 262, "tokens of node"),
            ("token_ids", -1, "tokens of node"),
            ("token_indptr", 2**31 - 1, "tokens of node"),
            ("token_indptr", -1, "tokens of node"),
            ("depths", 0, "depth 0"),
            ("depths", -5, "depth -5"),
        ],
    )
    def test_tries(self, name: str, value: int, text: str) -> None:
        array = getattr(BYTES.trie, name).copy()
        array[len(array) // 2] = value
        dfa = words_dfa([b"x"]) if name == "ends" else any_text_dfa()
        self.refusal(text, dfa, **{name: array})

    def test_an_empty_automaton(self) -> None:
        empty = np.empty((0, 1), np.int32)
        dfa = ByteDFA(empty, np.zeros(256, np.uint8), np.empty(0, np.bool_))
        self.refusal("automaton of 0 states", dfa)
