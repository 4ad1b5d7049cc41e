"""Allowed ids, bad words and blocked stops: which tokens a req may sample, and what else depends on
them in the scheduler."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.core.requests.request import Req
from scheduler_proc.sampling.token_rules import BadSequences
from srt.wire.errors import BAD_REQUEST
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import TokenizedReq
from tests.scheduler_proc.byte_language import grammar_of, retokeniser, text_of
from tests.scheduler_proc.core.test_healing import grammar_for
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import bad_next, ids_of, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar

PROMPT = [5, 6, 7]
TOKENS = st.integers(0, 3)


def allowing(*ids: int) -> FilledParams:
    return FilledParams(allowed_token_ids=list(ids))


def make(lag: int = 0, **config: Any) -> Driver:
    return Driver(lag=lag, max_total_tokens=500, **config)


@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(TOKENS, max_size=6),
)
def test_bad_sequences_against_looking_at_each(bad: list[list[int]], output: list[int]) -> None:
    sequences = BadSequences(bad)
    tail = output[max(0, len(output) - sequences.reach) :]
    ids = sequences.next_ids(tail).tolist()
    assert len(set(ids)) == len(ids) and set(ids) == bad_next(bad, output)


@pytest.mark.parametrize("lag", [0, 1])
def test_only_allowed_ids_come(lag: int) -> None:
    driver = make(lag)
    driver.add("r", PROMPT, 30, sampling=allowing(3, 400, 800))
    driver.add("free", PROMPT, 30)
    driver.run()
    assert set(driver.outputs["r"]) == {3, 400, 800}
    assert driver.outputs["free"] == reference_output(PROMPT, 30)


def test_an_eos_that_is_not_allowed_never_comes() -> None:
    free = reference_output(PROMPT, 1)
    driver = make()
    driver.add("r", PROMPT, 10, eos=free, sampling=allowing(3, 500))
    driver.run()
    assert driver.finishes["r"] == Finish("length")


@pytest.mark.parametrize("lag", [0, 1])
def test_a_bad_word_never_comes_in_the_output(lag: int) -> None:
    """A sequence that begins in the prompt is no bad word."""
    output = reference_output(PROMPT, 6)
    driver = make(lag)
    bad = [output[2:5], [PROMPT[-1], output[0]]]
    driver.add("r", PROMPT, 6, bad_ids=bad)
    driver.add("single", PROMPT, 6, bad_ids=[output[:1], [1, 2]])
    driver.run()
    assert driver.outputs["r"][:4] == output[:4] and driver.outputs["r"][4] != output[4]
    assert driver.outputs["single"] == reference_output(PROMPT, 6, bad_ids=[output[:1]])


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"sampling": allowing(EOS), "min_new": 2}, 0),
        ({"sampling": allowing(4, 5), "bad_ids": [[4], [5]]}, 0),
        ({"sampling": allowing(4), "bad_ids": [[4, 4, 4]]}, 2),
        ({"sampling": allowing(4), "grammar": FakeGrammar(9)}, 0),
        ({"bad_ids": [[i] for i in range(1000)]}, 0),
        ({"bad_ids": [[i] for i in range(999)], "min_new": 2}, 0),
    ],
)
def test_a_req_that_nothing_is_left_to_ends_with_an_error(
    lag: int, fields: dict[str, Any], length: int
) -> None:
    if "grammar" in fields:
        fields = {**fields, "grammar": FakeGrammar(9)}
        assert 4 not in fields["grammar"].allowed()
    driver = make(lag)
    driver.add("free", [1, 2, 3], 12)
    driver.add("r", PROMPT, 20, eos=[EOS], **fields)
    driver.run()
    error = driver.finishes["r"].error
    assert error is not None and error.code == BAD_REQUEST and "leave" in error.message
    assert driver.outputs.get("r", []) == [4] * length
    assert driver.outputs["free"] == reference_output([1, 2, 3], 12)


def test_a_grammar_may_end_before_min_new_tokens_if_the_end_is_all_that_is_left() -> None:
    driver = make()
    grammar, allowed = FakeGrammar(3), allowing(*range(0, 1000, 2), EOS)
    driver.add("r", PROMPT, 30, min_new=20, eos=[EOS], grammar=grammar, sampling=allowed)
    driver.run()
    assert driver.finishes["r"] == Finish("stop", EOS)


@pytest.mark.parametrize(
    ("fields", "is_deferred"),
    [
        ({"sampling": FilledParams(logit_bias={3: 1.0})}, False),
        ({"sampling": allowing(3, 4)}, False),
        ({"bad_ids": [[3], [4]]}, False),
        ({"min_new": 5}, False),
        ({"bad_ids": [[3], [4, 5]]}, True),
        ({"sampling": FilledParams(frequency_penalty=0.5)}, False),
        ({"sampling": FilledParams(presence_penalty=0.5)}, False),
        ({"sampling": FilledParams(repetition_penalty=1.5)}, False),
        ({"grammar": FakeGrammar(20)}, True),
    ],
)
def test_only_what_depends_on_the_newest_token_waits_for_it(
    fields: dict[str, Any], is_deferred: bool
) -> None:
    driver = make(lag=1)
    driver.add("free", [1, 2, 3], 12)
    driver.add("r", [4, 5], 12, eos=[EOS], **fields)
    driver.step()
    plan = driver.core.prepare(1.0)
    assert plan is not None
    assert [req.wish.rid for req in plan.deferred] == ["r"] * is_deferred
    assert len(plan.rows) == 2 - is_deferred


@pytest.mark.parametrize(
    "fields", [{"sampling": allowing(*range(256), EOS)}, {"bad_ids": [[300]]}, {}]
)
def test_no_jump_where_its_tokens_may_be_ruled_out(fields: dict[str, Any]) -> None:
    """Forced text is then sampled, with the tokens that are left."""
    driver = make()
    driver.retokeniser = retokeniser()
    grammar = grammar_of(r"abc: nab, (a|b)").start()
    driver.add("r", PROMPT, 60, eos=[EOS], grammar=grammar, **fields)
    driver.run()
    output = driver.outputs["r"]
    assert text_of(output) in (b"abc: nab, a", b"abc: nab, b")
    assert (driver.core.state.counters.jump_forward_tokens == 0) == bool(fields)
    assert 300 not in output and ("sampling" not in fields or max(output[:-1]) < 256)


@pytest.mark.parametrize(
    "fields", [{"sampling": allowing(ord("x"))}, {"bad_ids": [[ord("a")], [ord("b"), ord("c")]]}]
)
def test_what_the_prompt_had_may_be_written_again_by_token_healing(fields: dict[str, Any]) -> None:
    before = list(b"abc")
    driver = make()
    driver.retokeniser = retokeniser()
    driver.add("r", PROMPT, 8, grammar=grammar_for(b"abc"), healed=before, **fields)
    driver.run()
    output = driver.outputs["r"]
    assert text_of(output).startswith(b"abc") and len(output) == 8
    behind = output[3:] if output[:3] == before else output[1:]
    if "sampling" in fields:
        assert behind == [ord("x")] * 5
    assert ord("a") not in behind


def test_a_req_keeps_a_mask_of_the_allowed_ids_and_not_their_list() -> None:
    ids = list(range(1000))
    wire = TokenizedReq(b"c", "r", 0, pack_ids(PROMPT), FilledParams(allowed_token_ids=ids))
    references = sys.getrefcount(ids)
    req = Req.of(0, wire, arrival_s=0.0, vocab_size=1000)
    assert sys.getrefcount(ids) == references
    mask = req.limits().mask
    assert mask is not None and ids_of(mask) == set(ids)


def test_masks_have_the_vocabulary_s_width() -> None:
    wire = TokenizedReq(b"c", "r", 0, pack_ids(PROMPT), allowing(0, 31, 32, 130))
    mask = Req.of(0, wire, arrival_s=0.0, vocab_size=131).limits().mask
    assert mask is not None and mask.dtype == np.uint32 and mask.shape == (5,)
    assert ids_of(mask) == {0, 31, 32, 130}
