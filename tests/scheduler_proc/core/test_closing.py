"""Constrained outputs end within their limits, whatever happens on the way."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_proc.trace.recorded import replay
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish
from tests.running.profiles import seeds
from tests.scheduler_proc.byte_language import grammar_of, text_of, vocab
from tests.scheduler_proc.core.test_jump_forward import PATTERNS, drive, make, started
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import VOCAB
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar

CLOSE = FilledParams(close=True)
OPEN_ENDED = r'\{"a": "[abc ]*", "b": (a|n|ban[0-9]{9})\}'


def closed(driver: Driver, pattern: str, limit: int, rid: str = "r", prompt: int = 1) -> list[int]:
    """An output of `limit` tokens at most."""
    grammar = started(pattern)
    driver.add(rid, [prompt] * 3, limit, eos=[EOS], grammar=grammar, sampling=CLOSE)
    driver.run()
    return driver.outputs[rid]


MODES = ((True, "own"), (False, "off"), (True, "off"), (False, "own"))


@pytest.mark.parametrize(
    ("pattern", "jumps", "speculative"),
    [
        pytest.param(pattern, *mode, marks=[] if mode == MODES[i % 4] else pytest.mark.full)
        for i, pattern in enumerate([*PATTERNS, OPEN_ENDED])
        for mode in MODES
    ],
)
def test_every_output_is_whole(pattern: str, jumps: bool, speculative: str) -> None:
    fewest = grammar_of(pattern).fewest_tokens
    for prompt, more in enumerate((0, 1, 2, 4, 8, 16, 64)):
        driver = make(jumps=jumps, speculative=speculative)
        output = closed(driver, pattern, fewest + more, prompt=prompt)
        assert driver.finishes["r"].type == "stop"
        assert re.fullmatch(pattern, text_of(output).decode(), re.ASCII)
        assert len(output) <= fewest + more


@pytest.mark.parametrize("prompt", seeds(4))
def test_nothing_changes_before_something_is_ruled_out(prompt: int) -> None:
    driver, limit = make(jumps=False), (20, 23, 30, 60)[prompt % 4]
    output = closed(driver, OPEN_ENDED, limit, prompt=prompt)
    driver.add("free", [prompt] * 3, limit, eos=[EOS], grammar=started(OPEN_ENDED))
    driver.run()
    first, steered = num_free(output, limit), driver.finishes["r"].steered
    assert output[:first] == driver.outputs["free"][:first]
    assert (steered == 0) == (first == len(output))
    assert driver.finishes["r"].closed == (steered > 0)


def num_free(output: Sequence[int], limit: int) -> int:
    """How many tokens come before the first at which something is ruled out."""
    grammar, row = started(OPEN_ENDED), np.empty((VOCAB + 31) // 32, np.uint32)
    for number, token in enumerate(output):
        grammar.fill(row)
        if grammar.narrow(row, limit - number):
            return number
        grammar.accept([token])
    return len(output)


def test_what_may_end_at_the_limit_needs_no_end_token() -> None:
    driver = make()
    driver.add("r", [1], 3, eos=[EOS], grammar=started("[abc]{3,90}"), sampling=CLOSE)
    driver.add("cut", [1], 3, eos=[EOS], grammar=started("[abc]{3,90}"))
    driver.run()
    assert len(driver.outputs["r"]) == 3 and EOS not in driver.outputs["r"]
    assert driver.finishes == {"r": Finish("stop"), "cut": Finish("length")}


@pytest.mark.parametrize("seed", seeds(1))
def test_in_random_traffic(seed: int) -> None:
    lag, speculative = (1, 0)[seed % 2], ("own", "off")[seed // 2 % 2]
    driver = drive(62 + seed, 300, lag, 60, speculative=speculative)
    if seed == 0:  # others may bring about less
        assert driver.core.state.counters.closed > 3
        assert driver.core.state.counters.retracted > 0


class Refusing(FakeGrammar):
    """Has `rest` appended in the place of the token after `after` others."""

    def __init__(self, length: int, after: int, rest: list[int]) -> None:
        super().__init__(length)
        self.after, self.rest = after, rest

    def allowed(self) -> set[int]:
        return super().allowed() | set(self.rest)

    def is_accepting(self) -> bool:
        return self.tokens[self.after :] == self.rest

    def instead_of(self, token: int) -> list[int] | None:
        return self.rest if len(self.tokens) == self.after else None

    def fork(self) -> "Refusing":
        copy = Refusing(self.length, self.after, self.rest)
        copy.tokens = list(self.tokens)
        return copy


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("speculative", ["off", "own"])
def test_the_rest_of_a_witness_takes_a_tokens_place(
    after: int, scored: bool, speculative: str
) -> None:
    start, rest = 1 if scored else None, [5, 6, 7]
    driver = make(jumps=False, speculative=speculative)
    grammar = Refusing(40, after, rest)
    driver.add("r", [1, 2], 20, grammar=grammar, sampling=CLOSE, logprob_start=start)
    driver.run()
    output = driver.outputs["r"]
    assert output[after:] == rest
    assert driver.finishes["r"] == Finish("stop", steered=3)
    if scored:
        driver.add("again", [1, 2, *output], 1, logprob_start=1)
        driver.run()
        assert driver.logprobs["r"][after:] == driver.prompt_logprobs["again"][1 + after :]


class Unaware(Refusing):
    """The same without the witness."""

    def instead_of(self, token: int) -> list[int] | None:
        return None


def test_a_replay_ends_what_was_ended(tmp_path: Path) -> None:
    """Its grammars are made anew, and know no witness."""
    driver = make(jumps=False, trace=tmp_path / "trace")
    driver.add("r", [1, 2], 20, grammar=Refusing(40, 3, [5, 6]), sampling=CLOSE, grammar_key="g")
    driver.run()
    driver.close()
    assert driver.finishes["r"].steered == 2
    again = replay(tmp_path / "trace", lambda wire: Unaware(40, 3, [5, 6]), driver.retokeniser)
    assert again.state.counters == driver.core.state.counters


def test_the_tokens_of_a_text_that_must_end_are_not_forced_where_they_are_too_many() -> None:
    """The tokenizer cuts at words, and makes more tokens of a text than the vocabulary needs."""
    pattern = "abc,{3}( abc,{3}){3}"
    fewest = grammar_of(pattern).fewest_tokens
    output = closed(make(), pattern, fewest)
    assert len(output) == fewest and text_of(output) == b"abc,,, abc,,, abc,,, abc,,,"
    assert vocab().eos_ids == (EOS,)


def test_where_rules_keep_the_end_out_of_reach_the_limit_cuts() -> None:
    ends = [[i] for i, data in enumerate(vocab().token_bytes) if data.endswith(b"b")]
    driver = make()
    grammar = started("[ac]*b")
    driver.add("r", [1], 6, eos=[EOS], grammar=grammar, sampling=CLOSE, bad_ids=ends)
    driver.run()
    assert driver.finishes["r"] == Finish("length")
    assert set(text_of(driver.outputs["r"])) <= set(b"ac")


@pytest.mark.parametrize("rest", [[5, 6, 7], []])
def test_a_witness_breaks_no_rule_of_the_request(rest: list[int]) -> None:
    for bad_ids, min_new in (([[6]], 0), ([], 15)):
        driver = make(jumps=False)
        rules: dict[str, Any] = {"bad_ids": bad_ids, "min_new": min_new}
        driver.add("r", [1, 2], 20, grammar=Refusing(40, 3, rest), sampling=CLOSE, **rules)
        driver.run()
        output = driver.outputs["r"]
        assert len(output) >= min_new and (not bad_ids or 6 not in output)
        assert driver.finishes["r"].steered == 0


def test_what_a_stop_id_cuts_is_not_called_closed() -> None:
    quote = vocab().token_bytes.index(b'"')
    for stop_ids, is_closed in (([EOS], True), ([EOS, quote], False)):
        driver = make(jumps=False)
        pattern = '[abc]{30,60}"[abc]{2}"'
        limit = grammar_of(pattern).fewest_tokens
        driver.add("r", [1], limit, eos=stop_ids, grammar=started(pattern), sampling=CLOSE)
        driver.run()
        finish = driver.finishes["r"]
        assert (finish.type, finish.closed) == ("stop", is_closed)
