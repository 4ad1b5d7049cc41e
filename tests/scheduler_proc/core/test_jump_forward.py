"""Jumps inside the scheduler: bookkeeping, outputs and what is sent, under random traffic.

The reference of a req is the same req alone in a large pool: whatever the batching, chunking,
retraction and caching, it must yield the same tokens. Its text must match its pattern, and contain
what the automaton forces.
"""

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.retokenise import MAX_HELD_TOKENS, Jump, Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.trace.recorded import replay
from srt.wire.constraint import Constraint
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish
from srt.wire.ring_messages import TokenizedReq
from tests.running.profiles import seeds
from tests.scheduler_proc.byte_language import (
    Longest,
    grammar_of,
    retokeniser,
    text_of,
    token_vocabulary,
    vocab,
)
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import VOCAB, detail_at, hash_of, ids_of
from tests.scheduler_proc.fake_grammar import EOS

PATTERNS = (
    r'\{"name": "[abc]{1,6}", "can": (ban|can|cab)\}',
    r'\{"a": [abc ]{0,9}, "b": \{"c": "(aa|ab|bbb)"\}\}',
    r"(abc: [abc]{1,3}, ){2,5}nnnn: é",
    r"abcabcabcabc",
    r'[abcn",: ]{1,30}',
    r"(a|ab|abc){3}:(é|è) nab",
    r'""":::[^x]{2}(\{\}){4}',
    r"([abc]{3,5}cab: n){1,3}",  # a jump replaces many tokens
)
PENALTIES = FilledParams(
    frequency_penalty=1.5, repetition_penalty=1.25, logit_bias=dict.fromkeys(b"abcn ", 15.0)
)


def make(lag: int = 0, jumps: bool = True, pool: int = 4000, **config: Any) -> Driver:
    config = {"max_running_requests": 8, "chunked_prefill_size": 24, "context_len": 512} | config
    driver = Driver(lag=lag, max_total_tokens=pool, **config)
    driver.retokeniser = retokeniser() if jumps else None
    return driver


class Asked(NamedTuple):
    """One req. The fake model's likeliest tokens repeat, so that penalties have an effect."""

    prompt: list[int]
    pattern: str
    max_new: int
    logprob_start: int | None = None
    top_logprobs: int = 0
    sampling: FilledParams = FilledParams()

    def enter(self, driver: Driver, rid: str) -> None:
        grammar = started(self.pattern)
        driver.add(
            rid,
            self.prompt,
            self.max_new,
            eos=[EOS],
            grammar=grammar,
            sampling=self.sampling,
            logprob_start=self.logprob_start,
            top_logprobs=self.top_logprobs,
        )

    def alone(self) -> list[int]:
        """The req's output in a pool of its own."""
        driver = make()
        start = None if self.logprob_start is None else len(self.prompt)
        self._replace(logprob_start=start, top_logprobs=0).enter(driver, "r")
        driver.run()
        return driver.outputs["r"]


def started(pattern: str) -> Grammar:
    return grammar_of(pattern).start()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("scored", [False, True])
def test_an_output_matches_its_pattern_with_fewer_steps(
    pattern: str, lag: int, scored: bool
) -> None:
    steps = {}
    for jumps in (False, True):
        driver = make(lag, jumps)
        start = 3 if scored else None
        driver.add("r", [1, 2, 3], 200, eos=[EOS], logprob_start=start, grammar=started(pattern))
        driver.run()
        text = text_of(driver.outputs["r"]).decode()
        assert re.fullmatch(pattern, text, re.ASCII), text
        assert driver.finishes["r"] == Finish("stop", EOS)
        steps[jumps] = driver.core.state.counters.forward_steps
        assert (driver.core.state.counters.jump_forward_tokens > 0) <= jumps
    assert steps[True] <= steps[False]


ENDS = (
    r"(ab)+",
    r"abc( nn|: abc)*",
    r"(abn|abnabn)c*",
    r"(ab(cab)?){1,9}n?",
    r'(\{"a":"b+"\}\n?)+',
)


@pytest.mark.parametrize("backend", ["fsm", "llguidance"])
@pytest.mark.parametrize("pattern", [*ENDS, *PATTERNS[:4]])
def test_a_jump_passes_no_place_where_there_is_a_choice(pattern: str, backend: str) -> None:
    """Such as between going on and ending: where the next byte is chosen by the text alone, the
    text is the same with jumps and without."""
    constraint = Constraint("regex", pattern)
    compiled = GrammarCompiler(token_vocabulary(), backend).compile(constraint)
    for seed in range(10):
        texts = [_text_by_bytes(compiled.start(), seed, jumps) for jumps in (False, True)]
        assert texts[0] == texts[1]


def _text_by_bytes(grammar: Grammar, seed: int, jumps: bool) -> bytes:
    """An output each of whose sampled tokens is a byte, or the end."""
    row, ids = np.zeros(token_vocabulary().mask_width, np.uint32), list[int]()
    while len(text := text_of(ids)) < 40:
        if jumps and (jump := retokeniser().jump(ids, True, grammar, 100)) is not None:
            ids[len(ids) - jump.drop :] = jump.tokens
            continue
        grammar.fill(row)
        choices = [i for i in ids_of(row) if i < 256 or i == EOS]
        token = max(choices, key=lambda i: zlib.crc32(b"%d %d " % (seed, i) + text))
        if token == EOS:
            break
        grammar.accept([token])
        ids.append(token)
    return text_of(ids)[:40]


def test_control_tokens_around_calls_are_left_to_the_model() -> None:
    """To a grammar, which may force them, they are text; the tokenizer would spell them out."""
    mark = len(vocab().token_bytes) - 2
    tokens = [*vocab().token_bytes[:mark], b"[TOOL_CALLS]", b"<eos>"]
    template = "{% if tools %}[TOOL_CALLS]{% endif %}"
    special = frozenset({mark, EOS})
    marked = dataclass_replace(
        vocab(), token_bytes=tokens, special_ids=special, chat_template=template
    )
    assert marked.mark_ids == {mark} and marked.hidden_ids == {EOS}
    assert marked.decode([mark, EOS]) == "[TOOL_CALLS]"
    grammars = TokenVocabulary.from_vocab(marked)
    encoder = Retokeniser(marked, Longest())
    for pattern, steps in ((r"\[TOOL_CALLS\]abc", 1), (r"abcabc\[TOOL_CALLS\]", 0)):
        grammar = FsmGrammar.build(compile_regex(pattern), grammars).start()
        row = np.zeros(grammars.mask_width, np.uint32)
        grammar.fill(row)
        assert bool(row[mark // 32] >> (mark % 32) & 1) == bool(steps)
        tail = [mark] * steps
        grammar.accept(tail)
        assert encoder.jump(tail, True, grammar, 100) is None
    plain = FsmGrammar.build(compile_regex("abcabc"), grammars).start()
    assert encoder.jump([], True, plain, 100) is not None


def test_a_text_that_is_forced_whole_needs_no_step() -> None:
    driver = make()
    driver.add("r", [1, 2, 3], 50, eos=[EOS], grammar=started("abcabcabcabc"))
    driver.run()
    assert driver.outputs["r"] == [*Longest().split("abcabcabcabc").ids, EOS]
    assert driver.core.state.counters.forward_steps == 0


@pytest.mark.parametrize("pattern", [PATTERNS[0], "abcabcabcabc"])
def test_what_is_forced_at_once_does_not_hide_the_cached_tokens(pattern: str) -> None:
    """The ReqStart is sent with the first tokens, which are known before the prompt is matched."""
    driver = make()
    driver.add("first", range(20), 1)
    driver.run()
    driver.add("r", range(20), 50, eos=[EOS], grammar=started(pattern))
    driver.run()
    assert driver.cached["r"] == driver.core.state.counters.cached_tokens
    assert driver.cached["r"] == (0 if pattern == "abcabcabcabc" else 20)


def test_a_trace_with_jumps_replays(tmp_path: Path) -> None:
    driver = make(lag=1, trace=tmp_path / "trace")
    for i in range(12):
        pattern = PATTERNS[i % len(PATTERNS)]
        grammar = started(pattern)
        driver.add(f"{i}", [i % 3] * 9, 40, eos=[EOS], grammar=grammar, grammar_key=pattern)
        driver.step()
    driver.run()
    driver.close()
    counters = driver.core.state.counters
    assert counters.jump_forward_tokens > 0

    def grammars(req: TokenizedReq) -> Grammar:
        return started(req.grammar)

    assert replay(tmp_path / "trace", grammars, retokeniser()).state.counters == counters
    with pytest.raises(AssertionError):
        replay(tmp_path / "trace", grammars)


@pytest.mark.parametrize("limit", range(1, 12))
def test_max_new_tokens_cuts_a_jump(limit: int) -> None:
    driver = make()
    driver.add("r", [1, 2, 3], limit, eos=[EOS], grammar=started(PATTERNS[0]))
    driver.run()
    assert len(driver.outputs["r"]) <= limit
    if len(driver.outputs["r"]) < limit:
        assert driver.finishes["r"].type == "stop"


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("pattern", ["[ab]{2}", "x[ab]{2}yz"])
def test_text_that_completes_a_pattern_without_eos_is_no_stop_token(
    pattern: str, jumps: bool
) -> None:
    """A stop token is left out of the text; here that would remove the end of the text."""
    tokens = [*vocab().token_bytes[:EOS], b""]
    grammar = FsmGrammar.build(compile_regex(pattern), TokenVocabulary.from_tokens(tokens, [], []))
    driver = make(jumps=jumps)
    driver.add("r", [1, 2, 3], 20, grammar=grammar.start())
    driver.run()
    assert re.fullmatch(pattern, text_of(driver.outputs["r"]).decode())
    assert driver.finishes["r"] == Finish("stop")


def test_a_stop_id_inside_a_jump_ends_the_req_there() -> None:
    colon = vocab().token_bytes.index(b":")
    driver = make()
    driver.add("r", [1, 2, 3], 50, eos=[EOS, colon], grammar=started(r"abc (a|b):: nab"))
    driver.run()
    assert driver.finishes["r"].type == "stop"
    assert len(driver.outputs["r"]) < 12


def test_a_retracted_req_whose_tokens_are_replaced_is_matched_anew() -> None:
    """Its last token arrives when it already waits again, and brings a jump."""
    driver = make(lag=1)
    driver.add("r", [1], 50, eos=[EOS], grammar=started("[abc]{3,5}cab: n:[abn]{3}"))
    (req,) = driver.core.state.waiting
    while req.tokens.num_outputs < 5:
        driver.step()
    driver.core.state.retract(req)
    cache, before = driver.core.state.memory.cache, req.tokens.known_len
    assert cache.track(req.cursor, req.tokens.known, req.wish.salt) == before - 1
    driver.step()
    assert text_of(req.tokens.known.tolist()[1:]) == b"aaaaacab: n:" and req.finish is None
    assert (
        cache.track(req.cursor, req.tokens.known, req.wish.salt)
        == cache.match_len(req.tokens.known)
        < before - 1
    )


def test_counters_only_grow() -> None:
    """Also where a jump has fewer tokens than it replaces."""
    shrunk = False
    for prompt in range(20):
        driver = make()
        driver.retokeniser = checked = CheckedRetokeniser()
        driver.add("r", [prompt], 50, eos=[EOS], grammar=started("[abc]{2,3}b(abc|x)"))
        counted = [(0, 0)]
        while driver.step():
            counters = driver.core.state.counters
            counted.append((counters.generation_tokens, counters.jump_forward_tokens))
            assert counted[-1][0] >= counted[-2][0] and counted[-1][1] >= counted[-2][1]
        shrunk |= checked.shrunk
    assert shrunk


@pytest.mark.parametrize("scored", [False, True])
def test_a_stop_id_that_only_cuts_old_text_anew_does_not_end_the_req(scored: bool) -> None:
    """Ending there would take back text that has been sent."""
    stop = vocab().token_bytes.index(b"aaaa")
    for stop_ids in ([EOS], [EOS, stop]):
        driver, start = make(), 1 if scored else None
        pattern = "[abc]{3,5}cab: n"
        driver.add("r", [1], 50, eos=stop_ids, logprob_start=start, grammar=started(pattern))
        driver.run()
        assert text_of(driver.outputs["r"]) == b"aaaaacab: n"
        assert driver.outputs["r"][0] == stop  # the model wrote "a" five times
        assert driver.finishes["r"] == Finish("stop", EOS)


@pytest.mark.parametrize("lag", [0, 1])
def test_every_token_of_a_jump_gets_its_logprob(lag: int) -> None:
    """The fake executor gives -(hash % 97) for known tokens: the same as for a prompt that holds
    the output."""
    for pattern in PATTERNS:
        driver = make(lag)
        prompt = [5, 6, 7]
        driver.add("r", prompt, 200, eos=[EOS], logprob_start=1, grammar=started(pattern))
        driver.run()
        output = driver.outputs["r"]
        scored = driver.logprobs["r"]
        assert len(scored) == len(output)
        driver.add("again", prompt + output, 1, logprob_start=1)
        driver.run()
        expected = driver.prompt_logprobs["again"][2:]
        sampled = [value == -1.0 for value in scored]  # the executor's value for sampled tokens
        assert any(sampled) or pattern == PATTERNS[3]
        pairs = zip(scored, expected, sampled, strict=True)
        assert all(value == other or is_sampled for value, other, is_sampled in pairs)


class Traffic:
    """Random constrained and free reqs over prompts that share prefixes."""

    def __init__(self, seed: int, driver: Driver) -> None:
        self.rng = random.Random(seed)
        self.driver = driver
        self.asked: dict[str, Asked] = {}
        self.aborted: set[str] = set()
        self.losses = 0.0  # of the core, for each turn

    def turn(self) -> None:
        if self.rng.random() < 0.5:
            for _ in range(self.rng.choice([1, 1, 4])):
                self.arrive()
        if self.rng.random() < self.losses:
            self.driver.lose()
        self.driver.step()
        self.check_cursors()

    def check_cursors(self) -> None:
        """The cursor of a waiting req is right for the tokens that the req has now."""
        cache = self.driver.core.state.memory.cache
        for req in self.driver.core.state.waiting:
            found = cache.track(req.cursor, req.tokens.known, req.wish.salt)
            assert found == cache.match_len(req.tokens.known, req.wish.salt)

    def arrive(self) -> None:
        rng, rid = self.rng, f"r{len(self.asked)}"
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 30))]
        asked = Asked(prompt, rng.choice(PATTERNS), rng.choice([1, 3, 10, 40, 40]))
        if rng.random() < 0.3:
            start, num_top = rng.randint(0, len(prompt)), rng.choice([0, 2])
            asked = asked._replace(logprob_start=start, top_logprobs=num_top)
        if rng.random() < 0.4:
            asked = asked._replace(sampling=PENALTIES)
        if rng.random() < 0.4:
            sampling = msgspec.structs.replace(asked.sampling, close=True)
            limit = grammar_of(asked.pattern).fewest_tokens + rng.choice([0, 0, 1, 2, 5])
            asked = asked._replace(sampling=sampling, max_new=limit)
        self.asked[rid] = asked
        asked.enter(self.driver, rid)

    def meddle(self) -> None:
        live = [rid for rid in self.asked if rid not in self.driver.finishes]
        if live and self.rng.random() < 0.03:
            rid = self.rng.choice(live)
            self.driver.abort(rid)
            self.aborted.add(rid)

    def check(self) -> None:
        assert set(self.driver.finishes) == set(self.asked)
        for rid, asked in self.asked.items():
            output, finish = self.driver.outputs.get(rid, []), self.driver.finishes[rid]
            details = self.driver.details.get(rid, [])
            if asked.top_logprobs > 0:
                known = asked.prompt + output
                hashes = [hash_of(known[:i]) for i in range(len(asked.prompt), len(known))]
                assert details == [detail_at(h, asked.top_logprobs, []) for h in hashes]
            if finish.type == "abort":
                assert rid in self.aborted or finish.error is not None
                continue
            assert output == asked.alone(), asked
            if asked.sampling.close:
                assert finish.type == "stop", asked
            if finish.type == "stop":
                assert re.fullmatch(asked.pattern, text_of(output).decode(), re.ASCII)
            else:
                assert len(output) == asked.max_new


def drive(seed: int, steps: int, lag: int, pool: int, losses: float = 0.0, **config: Any) -> Driver:
    driver = make(lag, pool=pool, context_len=128, **config)
    traffic = Traffic(seed, driver)
    traffic.losses = losses
    driver.between = traffic.meddle
    driver.fails = lambda: traffic.rng.random() < 0.004
    for _ in range(steps):
        traffic.turn()
    driver.between = lambda: None
    driver.run()
    traffic.check()
    assert (
        driver.core.state.memory.pool.free_size + driver.core.state.memory.cache.evictable_size
        == pool
    ), "slots leaked"
    return driver


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_jumps(seed: int) -> None:
    driver = drive(seed, steps=300, lag=seed % 2, pool=73)
    if seed < 2:  # others may bring about less
        assert driver.core.state.counters.jump_forward_tokens > 0
        assert driver.core.state.counters.retracted > 0


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_jumps_outlives_its_cores(seed: int) -> None:
    """The same cuts into tokens, and the same details, where a core was lost in between."""
    losses, lag = (0.3, 0.1)[seed // 2 % 2], (1, 0)[seed % 2]
    assert drive(seed, 200, lag, 73, losses).num_resumed > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_jumps_long(seed: int) -> None:
    pool, losses = random.Random(seed).choice([100, 200, 600]), (seed % 3) * 0.05
    drive(seed, 2000, seed % 2, pool, losses)


@pytest.mark.parametrize(
    "pattern",
    [
        r'\{"(a|ab|abc)": (ban|can|cab)\}',
        r"(a|ab|abc){2}: (é|è) nab",
        r'":"(,|,:|:)?"(a|b) ca',
        r"abc(,? (ab|a b)){1,2}",
    ],
)
def test_every_text_of_a_language_can_be_reached_with_jumps(pattern: str) -> None:
    """All paths of allowed tokens, with the jumps between them, reach exactly the texts of the
    (finite) language."""
    reached: set[bytes] = set()
    explore([], started(pattern), reached)
    assert reached == language(pattern)


def explore(output: list[int], grammar: Grammar, reached: set[bytes]) -> None:
    jump = retokeniser().jump(output[-16:], len(output) <= 16, grammar, limit=100)
    if jump is not None:
        output = output[: len(output) - jump.drop] + jump.tokens
    mask = np.empty((VOCAB + 31) // 32, np.uint32)
    grammar.fill(mask)
    for token in ids_of(mask):
        if token == EOS:
            reached.add(text_of(output))
            continue
        following = grammar.fork()
        following.accept([token])
        explore([*output, token], following, reached)


def language(pattern: str) -> set[bytes]:
    """All texts of a finite language, found byte by byte through the automaton."""
    texts: set[bytes] = set()
    pending: list[tuple[bytes, Grammar]] = [(b"", started(pattern))]
    while pending:
        text, grammar = pending.pop()
        if grammar.is_accepting():
            texts.add(text)
        mask = np.empty((VOCAB + 31) // 32, np.uint32)
        grammar.fill(mask)
        for byte in ids_of(mask) & set(range(256)):
            following = grammar.fork()
            following.accept([byte])
            pending.append((text + bytes([byte]), following))
    return texts


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_jumped_is_canonical_and_starves_no_longer_token(pattern: str) -> None:
    for seed in range(20):
        driver = make()
        driver.retokeniser = checked = CheckedRetokeniser()
        driver.add("r", [seed], 200, eos=[EOS], grammar=started(pattern))
        driver.run()
        assert checked.jumps > 0 or pattern == PATTERNS[4]


class CheckedRetokeniser(Retokeniser):
    """Checks each jump: its tokens are those that the tokenizer makes of the end of the text, and
    at none of them was a longer token allowed."""

    def __init__(self) -> None:
        super().__init__(vocab(), Longest())
        self.jumps = 0
        self.shrunk = False  # whether a jump had fewer tokens than it replaced

    def jump(
        self,
        tail: list[int],
        is_whole: bool,
        grammar: Grammar,
        limit: int,
        must_end: bool = False,
    ) -> Jump | None:
        jump = super().jump(tail, is_whole, grammar, limit, must_end)
        if jump is None or not is_whole:
            return jump
        self.jumps += 1
        self.shrunk |= len(jump.tokens) < jump.drop
        output = tail[: len(tail) - jump.drop] + jump.tokens
        text = text_of(output) + grammar.forced_bytes()
        canonical = Longest().split(text.decode(errors="ignore")).ids[: len(output)]
        count = min(len(jump.tokens), 3)
        assert canonical[-count:] == output[-count:] or text_of(canonical) != text_of(output)
        self._check_longer(jump.tokens, grammar.fork())
        return jump

    def _check_longer(self, tokens: list[int], grammar: Grammar) -> None:
        mask = np.empty((VOCAB + 31) // 32, np.uint32)
        for count in range(1, min(MAX_HELD_TOKENS, len(tokens)) + 1):
            grammar.rollback(1)
            grammar.fill(mask)
            ending = text_of(tokens[-count:])
            allowed = (vocab().token_bytes[i] for i in ids_of(mask) - {EOS})
            assert not any(len(t) > len(ending) and t.startswith(ending) for t in allowed)


def test_a_jump_takes_slots_set_aside_before_anyone_is_retracted() -> None:
    """Also when the jump is known only after the running step."""
    for pool in range(60, 200, 6):
        driver = make(1, pool=pool, chunked_prefill_size=64)
        driver.core.state.admissions.ratio.value = 0.0  # admits all at once
        driver.core.state.admissions.ratio.raise_after_retraction = lambda running: None  # type: ignore[method-assign]
        rooms: list[int] = []
        retract = driver.core.state.retract

        def note(
            req: Req,
            core: Scheduler = driver.core,
            retract: Callable[[Req], None] = retract,
            rooms: list[int] = rooms,
            **_: bool,
        ) -> None:
            rooms.append(core.state.memory.room)
            retract(req)

        driver.core.state.retract = note  # type: ignore[method-assign]
        driver.core._planner._decodes._retract = note
        pattern = r"[abc]{3}(:n:n:n:n:n:n:n:n:n:n:n:n:n)[abc]{5}"
        driver.add("jumps", [1, 2, 3], 100, eos=[EOS], grammar=started(pattern))
        for i in range(3):
            driver.add(f"plain {i}", [10 + i, 5, 6], 40)
        driver.run()
        assert max(rooms, default=0) < 20  # a jump has at most 26 tokens, some in slots set aside
