"""Healed prompts inside the scheduler: the output begins with the prompt's last bytes, and the req
is then as free as any other, whatever else happens to it."""

import random

import numpy as np
import pytest

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.healed import HealedGrammar
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.store import free_grammar
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Abort, TokenizedReq
from tests.scheduler_proc.byte_language import retokeniser, text_of, token_vocabulary
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import ids_of
from tests.scheduler_proc.fake_grammar import EOS

ENDINGS = (b":", b"ab", b"an", b'"', b" a", b"nab:")


def make(lag: int = 0, pool: int = 4000) -> Driver:
    driver = Driver(
        lag=lag,
        max_total_tokens=pool,
        max_running_requests=8,
        chunked_prefill_size=24,
        context_len=128,
    )
    driver.retokeniser = retokeniser()
    return driver


def grammar_for(before: bytes, pattern: str | None = None) -> Grammar:
    vocabulary = token_vocabulary()
    if pattern is None:
        inner = free_grammar(before, vocabulary).start()
    else:
        dfa = compile_regex(pattern, before=before)
        inner = FsmGrammar.build(dfa, vocabulary, precompute_s=0).start()
    return HealedGrammar(inner, list(before), vocabulary)


def test_a_mask_is_handed_out_before_only_beyond_the_bytes() -> None:
    """Until then it is narrowed down."""
    grammar, row = grammar_for(b"ab", "[abn]{3,9}"), np.empty(token_vocabulary().mask_width, "<u4")
    inner = grammar.fork()
    for token in b"abn":
        inner.accept([token])
        inner.fill(row)
    assert grammar.mask_after(ord("a")) is None
    grammar.accept(b"ab")
    mask = grammar.mask_after(ord("n"))
    assert mask is not None and mask.tolist() == row.tolist()


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("before", ENDINGS)
def test_the_output_begins_with_the_bytes_and_is_then_free(lag: int, before: bytes) -> None:
    driver = make(lag)
    driver.add("r", [1, 2, 3], 30, grammar=grammar_for(before))
    deferred = []
    while driver.step():
        for req in driver.core.state.running.values():
            written = text_of(req.tokens.known[req.tokens.prompt_len :].tolist())
            assert before.startswith(written) or written.startswith(before)
            assert (req.grammar is None) == (len(written) >= len(before))
            deferred.append(req.grammar is not None)
    assert text_of(driver.outputs["r"]).startswith(before)
    assert len(driver.outputs["r"]) == 30 and deferred[-1] is False
    # What follows is generated without a grammar, special and broken tokens included.
    count = next(n for n in range(30) if len(text_of(driver.outputs["r"][:n])) >= len(before))
    known = [1, 2, 3, *driver.outputs["r"][:count]]
    assert driver.generate(known, 30 - count) == driver.outputs["r"][count:]


@pytest.mark.parametrize("before", ENDINGS)
def test_the_eos_may_follow_at_once_but_not_before(before: bytes) -> None:
    grammar = grammar_for(before)
    row = token_vocabulary().pack([])
    grammar.fill(row)
    assert EOS not in ids_of(row)
    grammar.accept(list(before))
    grammar.fill(row)
    assert EOS in ids_of(row)


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_a_constraint_follows_the_bytes(jumps: bool, scored: bool) -> None:
    driver = make(lag=1)
    driver.retokeniser = retokeniser() if jumps else None
    start = 2 if scored else None
    grammar = grammar_for(b"ab:", r"::\{[abc]\}")
    driver.add("r", [1, 2, 3], 60, eos=[EOS], logprob_start=start, grammar=grammar)
    driver.run()
    text = text_of(driver.outputs["r"]).decode()
    assert text.startswith("ab:::{") and text.endswith("}") and len(text) == 8
    assert driver.finishes["r"].type == "stop"
    assert (driver.core.state.counters.jump_forward_tokens > 0) == jumps


def test_what_no_longer_token_goes_on_from_is_jumped_and_the_grammar_dropped() -> None:
    driver = make()
    driver.add("r", [1, 2, 3], 10, grammar=grammar_for(b"xyz"))
    assert driver.core.state.counters.jump_forward_tokens == 3
    assert [req.grammar for req in driver.core.state.waiting.ordered()] == [None]
    driver.run()
    assert text_of(driver.outputs["r"]).startswith(b"xyz") and len(driver.outputs["r"]) == 10


def test_the_detokenizer_is_told_of_the_prompt_as_it_was_given() -> None:
    core = Scheduler(SchedulerConfig(max_total_tokens=100, context_len=50, vocab_size=1000))
    sampling = FilledParams(max_new_tokens=4)
    wire = TokenizedReq(
        client=b"c",
        rid="r",
        incarnation=0,
        input_ids=pack_ids([5, 6]),
        sampling=sampling,
        healed_ids=pack_ids([7, 8, 9]),
        healed_bytes=11,
    )
    core.add(wire, 0.0, grammar_for(b"ab"))
    core.abort(Abort(b"c", "r", 0))
    batch = core.take_output(0.0)
    assert batch is not None
    assert (batch.starts[0].meta.prompt_tokens, batch.starts[0].skip_bytes) == (5, 11)


@pytest.mark.parametrize("lag", [0, 1])
def test_random_traffic(lag: int) -> None:
    """Outputs are those of each req alone, in a pool that forces retractions."""
    rng = random.Random(lag)
    driver = make(lag, pool=75)
    asked = {}
    for i in range(60):
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 30))]
        before, max_new = rng.choice([*ENDINGS, b"xyz"]), rng.choice([1, 3, 40])
        scored = rng.random() < 0.3
        asked[f"r{i}"] = (prompt, before, max_new, scored)
        add(driver, f"r{i}", prompt, before, max_new, scored)
        for _ in range(rng.randint(0, 6)):
            driver.step()
    driver.run()
    assert driver.core.state.counters.retracted > 0
    for rid, what in asked.items():
        single = make()
        add(single, "r", *what)
        single.run()
        assert driver.outputs[rid] == single.outputs["r"], what
        assert len(driver.outputs[rid]) == what[2]


def add(
    driver: Driver, rid: str, prompt: list[int], before: bytes, max_new: int, scored: bool
) -> None:
    start = len(prompt) if scored else None
    driver.add(rid, prompt, max_new, logprob_start=start, grammar=grammar_for(before))
