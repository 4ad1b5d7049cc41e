"""Outputs that are closed at their limit are whole, and what is said of them follows from the ids
alone."""

import importlib.util
import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.closing import chain
from scheduler_proc.grammar.closing.chain import Closing
from scheduler_proc.grammar.healed import HealedGrammar
from scheduler_proc.grammar.llg.backend import LlguidanceMatcher, compile_llguidance
from scheduler_proc.grammar.wrapped import WrappedGrammar
from srt.wire.constraint import Constraint
from tests.running.profiles import seeds
from tests.scheduler_proc.grammar.automata import mask_ids, real_vocabulary
from tests.scheduler_proc.grammar.closing.outputs import (
    CONSTRAINTS,
    MORE,
    closing,
    compiled,
    finder,
    first_witness,
    random_output,
)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_random_outputs_are_whole_at_every_limit(name: str, seed: int) -> None:
    """At every second limit with each seed."""
    first = first_witness(compiled(name))
    for more in MORE[seed % 2 :: 2]:
        limit = len(first) + more
        output = random_output(compiled(name), limit, Random(seed))
        assert output.is_whole, more
        assert len(output.ids) <= limit + 1  # EOS is not counted


def test_a_limit_far_away_is_met_too() -> None:
    limit = len(first_witness(compiled("a list of itself"))) + chain.NEAR + 64
    output = random_output(compiled("a list of itself"), limit, Random(0))
    assert output.is_whole
    assert len(output.ids) > chain.NEAR
    assert all(each.answer is None for each in output.asked if each.position < 64)


def test_in_a_tag_that_has_begun_an_empty_output_is_no_end() -> None:
    """Without any tag the output may be empty, and so is the first completion."""
    assert first_witness(compiled("tags")) == []
    start, letter = finder().spelled(b"words " * 50 + b'<call>{"to":"'), finder().spelled(b"a")
    assert start is not None and letter is not None
    closes = closing(compiled("tags"), len(start) + chain.NEAR - 4)
    closes.accept(start)
    for left in range(chain.NEAR - 4, 40, -1):
        assert closes.instead_of(letter[0]) is None, left
        assert closes.fits()
        closes.accept(letter)


def test_where_there_is_room_a_part_without_a_known_end_may_be_taken() -> None:
    """Of two forms the model takes the one that only a text leads out of that is not found."""
    form = {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "qzxv"}]}
    schema = {"type": "object", "properties": {"a": form}, "required": ["a"]}
    grammar = compile_llguidance(Constraint("json_schema", json.dumps(schema)), real_vocabulary())
    text = finder().spelled(b'{"a":"hello qzxv"}')
    assert text is not None
    for limit, is_taken in ((200, True), (len(text) + 4, False)):
        closes = closing(grammar, limit)
        answers = []
        for token in text:
            answers.append(closes.instead_of(token))
            closes.accept([token])
        assert all(answer is None for answer in answers) == is_taken


def test_an_output_that_is_read_at_once_is_followed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where it is resumed, when no fuse must end it."""
    monkeypatch.setattr(chain, "MOST_AT_ONCE_S", 0.1)
    name = "a list of itself"
    output = random_output(compiled(name), chain.NEAR, Random(3))
    resumed = closing(compiled(name), chain.NEAR)
    for position, token, answer in output.asked:
        if position % 16 == 15:
            assert resumed.instead_of(token) == answer
        resumed.accept([token])


class _Counting(WrappedGrammar):
    """Knows how many tokens each call has brought."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self.parts: list[int] = []

    def accept(self, tokens: Sequence[int]) -> None:
        self.parts.append(len(tokens))
        super().accept(tokens)


def test_an_output_is_followed_late_and_a_little_at_a_time() -> None:
    grammar = compiled("a list of itself")
    first, word = first_witness(grammar), finder().spelled(b"a")
    assert word is not None
    opening, far = finder().spelled(b'{"names":["'), 400
    assert opening is not None
    counting = _Counting(grammar.start())
    closes = Closing(counting, finder(), far + chain.NEAR, first)
    text = opening + word * (far - len(opening))
    for token in text[: far * 9 // 10]:
        closes.accept([token])
    assert counting.parts == []
    for token in text[far * 9 // 10 :]:
        closes.accept([token])
    parts = counting.parts[: far // 10]
    assert sum(parts) >= far and max(parts) <= chain.CATCH_UP + 1


@pytest.mark.parametrize(
    "name",
    [
        *("a list of itself", "sums", "tags"),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("objects in a list", "formats")),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("lines", "blanks")),
    ],
)
def test_resumed_at_any_token_it_says_the_same(name: str) -> None:
    limit = len(first_witness(compiled(name))) + 24
    output = random_output(compiled(name), limit, Random(5))
    for position, token, answer in output.asked:
        resumed = closing(compiled(name), limit)
        resumed.accept(output.ids[:position])
        assert resumed.instead_of(token) == answer
        assert resumed.fits()


def test_what_was_taken_back_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "NEAR", 20)  # so that some goes back behind the first look
    rng = Random(2)
    name = "a list of itself"
    limit = len(first_witness(compiled(name))) + 40
    closes, matcher = closing(compiled(name), limit), compiled(name).start()
    row = np.zeros(real_vocabulary().mask_width, np.uint32)
    ids: list[int] = []
    lengths = []  # where it was asked
    for _ in range(80):
        if ids and rng.random() < 0.3:
            back = rng.randint(1, min(6, len(ids)))
            matcher.rollback(back)
            closes.rollback(back)
            del ids[-back:]
        for _ in range(rng.choice([1, 1, 3])):  # one token after another, or a jump
            matcher.fill(row)
            text = set(mask_ids(row)) - set(real_vocabulary().eos_ids)
            if not text or len(ids) == limit:
                break
            token = rng.choice(sorted(text))
            if rng.random() < 0.7:
                fresh = closing(compiled(name), limit)
                fresh.accept(ids)
                answer = closes.instead_of(token)
                lengths.append(len(ids))
                assert fresh.instead_of(token) == answer
                if answer is not None:
                    break
            matcher.accept([token])
            closes.accept([token])
            ids.append(token)
    behind = [a > limit - 20 >= b for a, b in pairwise(lengths)]
    assert any(behind)
    assert len(lengths) > 40


def test_a_jump_that_leaves_no_end_does_not_fit() -> None:
    first = first_witness(compiled("required"))
    closes = closing(compiled("required"), len(first))
    longer = finder().spelled(b'{"width":12345678')
    assert longer is not None
    closes.accept(longer)
    assert not closes.fits()
    closes.rollback(len(longer))
    assert closes.fits()
    closes.accept(first[:3])
    assert closes.fits()


def test_a_token_asked_about_may_be_followed_by_another() -> None:
    first = first_witness(compiled("a choice"))
    closes = closing(compiled("a choice"), len(first) + 2)
    one, other = finder().spelled(b"{"), first
    assert one is not None
    assert closes.instead_of(one[0]) is None
    closes.accept(other)
    assert closes.fits()
    assert closes.instead_of(real_vocabulary().eos_ids[0]) is None


def test_the_end_may_always_come() -> None:
    name = "tags"  # any text is complete: the witness takes no token
    closes = closing(compiled(name), 3)
    word = finder().spelled(b"word<call>{")
    assert word is not None
    assert closes.instead_of(real_vocabulary().eos_ids[0]) is None
    assert closes.instead_of(word[0]) is None
    closes.accept(word[:1])
    call = finder().spelled(b"<call>")
    assert call is not None
    answers = []
    for token in call:  # no call can be whole any more, so at some token the text ends
        answers.append(closes.instead_of(token))
        if answers[-1] is not None:
            break
        closes.accept([token])
    assert answers[-1] == []


def test_a_limit_below_any_end_changes_nothing() -> None:
    first = first_witness(compiled("required"))
    closes = closing(compiled("required"), 3)
    assert not closes.fits()
    assert closes.instead_of(first[0]) is None


def test_healed_outputs_are_closed_too() -> None:
    vocabulary = real_vocabulary()
    grammar = compiled("required")
    forced = finder().spelled(b'{"width":')
    assert forced is not None
    healed = HealedGrammar(grammar.start(), forced[:1], vocabulary)
    first = finder().find(healed)
    assert first is not None
    closes = Closing(healed.fork(), finder(), len(first), first)
    assert closes.fits()
    healed.accept(first)
    assert healed.is_accepting()
    assert closes.instead_of(first[0]) is None


class _Failing(LlguidanceMatcher):
    """A grammar whose library fails when it is asked for the fifth time."""

    calls = 0

    def accept(self, tokens: Sequence[int]) -> None:
        self.calls += 1
        if self.calls > 4:
            raise RuntimeError("a defect")
        super().accept(tokens)


def test_a_grammar_that_fails_harms_nothing() -> None:
    grammar = compiled("a list of itself")
    first = first_witness(grammar)
    start = grammar.start()
    assert isinstance(start, LlguidanceMatcher)
    failing = _Failing(start._matcher, real_vocabulary())
    closes = Closing(failing, finder(), len(first) + 8, first)
    for token in first:
        answer = closes.instead_of(token)
        assert answer is None or answer[:1] == [token]
        closes.accept([token])
    closes.rollback(2)
    assert closes.fits()  # nothing is known of it any more


def test_an_output_that_takes_too_long_to_follow_is_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammar = compiled("an open object")
    first = first_witness(grammar)
    closes = closing(grammar, 50)
    assert closes.instead_of(first[0]) is None
    closes.accept(first[:1])
    monkeypatch.setattr(chain, "MOST_S", -1.0)
    assert closes.instead_of(first[0]) == first[1:]


@pytest.mark.skipif(importlib.util.find_spec("xgrammar") is None, reason="xgrammar is optional")
@pytest.mark.parametrize("name", ["required", "enum"])
def test_outputs_of_xgrammar_are_whole(name: str) -> None:
    from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

    grammar = compile_xgrammar(CONSTRAINTS[name], real_vocabulary())
    first = first_witness(grammar)
    for more in (0, 4):
        assert random_output(grammar, len(first) + more, Random(more)).is_whole
