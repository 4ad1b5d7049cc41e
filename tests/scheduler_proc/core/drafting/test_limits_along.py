"""What a req may sample along a draft is what it may sample once the draft's tokens were accepted,
one after the other, by the core itself; and the draft ends where that does more than append."""

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_proc.core.drafting.limits import limits_along
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.grammar import allowance
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.llg.backend import LlguidanceGrammar, compile_llguidance
from scheduler_proc.sampling.token_rules import NO_LIMITS, Limits, NoTokenLeft
from srt.wire.constraint import Constraint
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import Scoring
from tests.scheduler_proc.byte_language import grammar_of, retokeniser, token_vocabulary
from tests.scheduler_proc.core.test_healing import grammar_for
from tests.scheduler_proc.core.test_jump_forward import PATTERNS
from tests.scheduler_proc.fake_executor import VOCAB, ids_of
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar

MAX_NEW = 40


@pytest.fixture(autouse=True, scope="module")
def stopped_clock() -> Iterator[None]:
    """Nothing takes time, so that a slow machine makes no difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allowance, "thread_time", lambda: 0.0)
        yield


def llg_of(kind: str, source: object) -> LlguidanceGrammar:
    constraint = Constraint(kind, json.dumps(source))  # type: ignore[arg-type]
    return compile_llguidance(constraint, token_vocabulary())


SCHEMA = {
    "type": "object",
    "properties": {
        "abc": {"type": "array", "items": {"enum": ["a", "ab", "nab"]}, "maxItems": 3},
        "n": {"type": "integer"},
    },
    "required": ["abc", "n"],
    "additionalProperties": False,
}
TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": [":{"],
        "tags": [
            {
                "type": "tag",
                "begin": ":{a",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "}:",
            }
        ],
    },
}
COMPILED: list[CompiledGrammar] = [
    *map(grammar_of, PATTERNS),
    llg_of("json_schema", SCHEMA),
    llg_of("json_schema", {"type": "array", "items": {"type": "array"}}),
    llg_of("structural_tag", TAGS),
]
GRAMMARS: list[Callable[[], Grammar | None]] = [
    lambda: None,
    lambda: FakeGrammar(12),
    lambda: FakeGrammar(30, breaks_at=6),
    lambda: grammar_for(b"ab:"),
    lambda: grammar_for(b'nab"', r"[abn]{1,4}:: (aa|bb)"),
    *(compiled.start for compiled in COMPILED),
]
LETTERS: list[int] = [*b'abcn",: {}0[]', *range(256, 290), EOS, 41]


class Asked(NamedTuple):
    """A req; each grammar also as the scheduler has it."""

    grammar: int
    is_metered: bool
    jumps: bool
    bad_ids: list[list[int]]
    allowed: list[int] | None
    min_new: int
    stop_ids: list[int]
    has_eos: bool
    healed: bytes
    scored: bool

    def enter(self, outputs: list[int]) -> tuple[Scheduler, Req]:
        """A core where it has sampled `outputs`."""
        core = self.added()
        (req,) = core.state.waiting.ordered()
        for token in outputs:
            accept(core, req, token)
        return core, req

    def added(self) -> Scheduler:
        """A core with it; it may have ended there, if all is forced."""
        core = Scheduler(SchedulerConfig(max_total_tokens=500, context_len=200, vocab_size=VOCAB))
        sampling = FilledParams(
            max_new_tokens=MAX_NEW,
            min_new_tokens=self.min_new,
            allowed_token_ids=self.allowed,
            stop_token_ids=self.stop_ids,
        )
        wire = TokenizedReq(
            client=b"c",
            rid="r",
            incarnation=0,
            input_ids=pack_ids([1, 2, 3]),
            sampling=sampling,
            eos_ids=[EOS] if self.has_eos else [],
            bad_ids=self.bad_ids,
            healed_ids=pack_ids(list(self.healed)),
            scoring=Scoring(-1) if self.scored else None,
        )
        grammar = GRAMMARS[self.grammar]()
        if grammar is not None and self.is_metered:
            grammar = MeteredGrammar(grammar)
        core.add(wire, 0.0, grammar, retokeniser() if self.jumps else None)
        return core


ASKED = st.builds(
    Asked,
    st.integers(0, len(GRAMMARS) - 1),
    st.booleans(),
    st.booleans(),
    st.just([]) | st.lists(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3), max_size=4),
    st.none() | st.none() | st.just([*range(0, VOCAB, 2), *b"abc"]),
    st.sampled_from([0, 0, 0, 5, 15]),
    st.just([]) | st.lists(st.sampled_from(LETTERS), max_size=2),
    st.booleans(),
    st.sampled_from([b"", b"", b"ab:", b'nab"']),
    st.booleans(),
).filter(lambda asked: asked.added().has_work)


def accept(core: Scheduler, req: Req, token: int) -> bool:
    """As if the token had been sampled; whether all that was done is to append it."""
    known_len, had_grammar = req.tokens.known_len, req.grammar is not None
    req.tokens.seq_len += 1
    core._commits.accept(req, token, 0.0)
    is_appended = req.tokens.known_len == known_len + 1 and req.tokens.known[-1] == token
    return is_appended and req.finish is None and had_grammar == (req.grammar is not None)


def allows(limits: Limits, token: int) -> bool:
    if limits.mask is not None:
        return token in ids_of(limits.mask)
    return limits.suppressed is None or token not in limits.suppressed.tolist()


def as_ids(limits: Limits) -> tuple[object, object]:
    mask, suppressed, _ = limits
    return (
        None if mask is None else ids_of(mask),
        None if suppressed is None else set(suppressed.tolist()),
    )


def one_by_one(asked: Asked, outputs: list[int], draft: list[int]) -> list[Limits]:
    """What may be sampled along the draft."""
    core, req = asked.enter(outputs)
    found = [req.limits()]
    for token in draft:
        if not allows(found[-1], token) or not accept(core, req, token):
            break
        try:
            found.append(req.limits())
        except (GrammarError, NoTokenLeft):
            break
    return found


def some_token(rng: random.Random, limits: Limits) -> int:
    """One that may come, rather one that tests something."""
    likely = [token for token in LETTERS if allows(limits, token)]
    if likely and rng.random() < 0.9:
        return rng.choice(likely)
    possible = [token for token in range(VOCAB) if allows(limits, token)]
    return rng.choice(possible)


def walked(asked: Asked, outputs: list[int], rng: random.Random, most: int) -> list[int]:
    """Tokens that may be sampled after `outputs`, through jumps and up to the end."""
    core, req = asked.enter(outputs)
    tokens: list[int] = []
    while len(tokens) < most and req.finish is None:
        try:
            tokens.append(some_token(rng, req.limits()))
        except (GrammarError, NoTokenLeft):
            break
        accept(core, req, tokens[-1])
    return tokens


def drafted(asked: Asked, outputs: list[int], rng: random.Random) -> list[int]:
    """One that is right, at random, or right up to a place."""
    right = walked(asked, outputs, rng, rng.randrange(1, 10))
    wrong = [rng.choice(LETTERS) for _ in range(rng.randrange(1, 9))]
    kind = rng.randrange(4)
    if kind == 0:
        return wrong
    return right if kind < 3 else [*right[: rng.randrange(9)], *wrong]


@given(ASKED, st.integers(0, 2**32), st.integers(1, 6))
@example(Asked(9, True, True, [], None, 0, [], True, b"", False), 1, 6)
@example(Asked(6, False, True, [], None, 0, [97], False, b"", True), 0, 2)
def test_along_a_draft_is_one_token_at_a_time(asked: Asked, seed: int, num_drafts: int) -> None:
    """One draft after the other, with some tokens accepted, or also taken back, in between."""
    rng = random.Random(seed)
    outputs: list[int] = []
    core, req = asked.enter(outputs)
    for _ in range(num_drafts):
        if req.finish is not None or req.remaining == 0:  # or a scored jump is to end it
            return
        try:
            before = as_ids(req.limits())
        except (GrammarError, NoTokenLeft) as error:
            with pytest.raises(type(error)):
                limits_along(req, [1, 2])
            return
        draft = drafted(asked, outputs, rng)
        kept, limits = limits_along(req, draft)
        expected = one_by_one(asked, outputs, draft)
        assert kept == draft[: len(expected) - 1]
        if req.is_limited:
            assert list(map(as_ids, limits)) == list(map(as_ids, expected))
        else:
            assert limits == () and set(expected) == {NO_LIMITS}
        assert as_ids(req.limits()) == before
        num_right = rng.randrange(len(draft) + 1)
        chosen = kept[:num_right] + walked(asked, outputs + kept[:num_right], rng, 1)
        for token in chosen:
            accept(core, req, token)
        outputs += chosen


@pytest.mark.parametrize("number", range(2, len(GRAMMARS)))
def test_drafts_leave_a_grammar_where_it_was(number: int) -> None:
    """All accepted tokens can still be taken back."""
    asked = Asked(number, True, False, [], None, 0, [], True, b"", False)
    rng = random.Random(number)
    core, req = asked.enter([])
    assert req.grammar is not None
    grammar, masks = req.grammar, [as_ids(req.limits())]
    for token in walked(asked, [], rng, 5):
        accept(core, req, token)
        if req.finish is not None or req.grammar is None:
            grammar.rollback(1)
            break
        masks.append(as_ids(req.limits()))
        limits_along(req, drafted(asked, req.tokens.outputs.tolist(), rng))
    row, copied = np.empty((2, (VOCAB + 31) // 32), np.uint32)
    while masks:
        grammar.fill(row)
        grammar.for_drafts().fill(copied)
        assert row.tolist() == copied.tolist() and ids_of(row) == masks.pop()[0]
        grammar.rollback(bool(masks))


@pytest.mark.parametrize("bad_ids", [[], [[9], [1, 9]]])
def test_a_draft_ends_before_a_stop_and_the_last_token(bad_ids: list[list[int]]) -> None:
    asked = Asked(0, True, True, bad_ids, None, 0, [ord("n")], True, b"", False)
    core, req = asked.enter([])
    for draft, length in ([*b"abc"], 3), ([*b"abnc"], 2), ([7] * 99, MAX_NEW - 1):
        kept, limits = limits_along(req, draft)
        assert kept == draft[:length] and len(limits) == (length + 1) * bool(bad_ids)
    for _ in range(MAX_NEW - 1):
        accept(core, req, 7)
    assert limits_along(req, [7, 7])[0] == []


class Breaking(FakeGrammar):
    """A back end whose copies break, as llguidance's do above its bounds: for ever."""

    def __init__(self) -> None:
        super().__init__(30)
        self.is_broken, self.breaks_next = False, False

    def fill(self, row: np.ndarray) -> None:
        self.is_broken |= self.breaks_next
        if self.is_broken:
            raise GrammarError("broken")
        super().fill(row)

    def accept(self, tokens: object) -> None:
        if self.is_broken:
            raise GrammarError("broken")
        super().accept(tokens)  # type: ignore[arg-type]

    def rollback(self, num_tokens: int) -> None:
        if self.is_broken:
            raise ValueError("broken")
        super().rollback(num_tokens)

    def fork(self) -> "Breaking":
        copy = Breaking()
        copy.tokens, copy.breaks_next = list(self.tokens), True
        return copy


def test_a_draft_that_breaks_its_copy_leaves_the_request_and_later_drafts_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Breaking()
    req = Req.of(0, wire_of(), 0.0, VOCAB, MeteredGrammar(held))
    for _ in range(3):
        token = min(held.allowed() - {EOS})
        kept, limits = limits_along(req, [token, 5])
        assert kept == [] and as_ids(limits[0])[0] == held.allowed()
    with monkeypatch.context() as patch:
        patch.setattr(Breaking, "fork", FakeGrammar.fork)
        assert limits_along(req, [token])[0] == [token]
    assert not held.is_broken


def wire_of() -> TokenizedReq:
    sampling = FilledParams(max_new_tokens=MAX_NEW)
    return TokenizedReq(b"c", "r", 0, pack_ids([1]), sampling, eos_ids=[EOS])
