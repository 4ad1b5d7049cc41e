"""The detokenizer when the scheduler is lost: what it reports, and how requests go on."""

import itertools
import random
from typing import Any

import pytest

from detokenizer_proc.core import Detokenizer
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import Finish, Output, pack_floats, pack_ids, unpack_ids
from srt.wire.ring_messages import (
    Credit,
    Progress,
    PromptLogprobs,
    Reported,
    ReqEnd,
    ReqStart,
    TextStopped,
    TokenBatch,
)
from srt.wire.sampling import Scoring
from tests.detokenizer_proc.test_core import VOCAB
from tests.running.profiles import seeds

A, EPOCH = b"a", 3
LENGTH = Finish("length")


def start(rid: str, handle: int = 1, **fields: Any) -> ReqStart:
    return ReqStart(handle, A, rid, AnswerMeta(10, handle), stream=True, **fields)


def column(
    incarnation: int, text: bytes, handle: int = 1, jump: tuple[int, int] | None = None
) -> TokenBatch:
    jumps = [] if jump is None else [(0, *jump)]
    return TokenBatch(incarnation, [handle], [len(text)], pack_ids(list(text)), jumps=jumps)


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(VOCAB, EPOCH, [1])


def test_ids_are_reported_as_jumps_have_left_them(detokenizer: Detokenizer) -> None:
    detokenizer.step(TokenBatch(1, starts=[start("1"), start("2", 2), start("3", 3)]))
    for batch in (column(1, b"abc"), column(1, b"cde", jump=(1, 1)), column(1, b"xy", 2)):
        detokenizer.step(batch)
    logprobs = PromptLogprobs(3, 4, pack_ids([1, 2]), pack_floats([0.0, 0.0]))
    detokenizer.step(TokenBatch(1, prompt_logprobs=[logprobs]))
    loss = detokenizer.scheduler_lost(2)
    assert loss.credits == []
    assert loss.progress == [
        Progress(A, "1", Reported(pack_ids(list(b"abcde")), forced=True)),
        Progress(A, "2", Reported(pack_ids(list(b"xy")))),
        Progress(A, "3", Reported(prompt_logprobs=6)),
    ]


def test_what_has_ended_is_credited_and_not_reported(detokenizer: Detokenizer) -> None:
    detokenizer.step(TokenBatch(1, starts=[start("1", stop=["b"]), start("2", 2)]))
    assert detokenizer.step(column(1, b"ab")).stopped == [TextStopped(A, "1", EPOCH)]
    loss = detokenizer.scheduler_lost(2)
    assert loss.credits == [Credit(A, "1", EPOCH, 2)]
    assert [each.rid for each in loss.progress] == ["2"] and detokenizer.in_flight == 1
    assert detokenizer.step(column(1, b"x", 2)).outputs == {}  # of the lost one
    loss = detokenizer.scheduler_lost(3)  # once more, before the request has come back
    assert loss == ([], [])  # the front knows it


def test_a_dropped_client_has_nothing_that_waits(detokenizer: Detokenizer) -> None:
    detokenizer.step(TokenBatch(1, starts=[start("1")]))
    detokenizer.scheduler_lost(2)
    detokenizer.drop_client(A)
    assert detokenizer.in_flight == 0 and detokenizer.scheduler_lost(3).progress == []


def joined(outputs: list[Output]) -> tuple[Any, ...]:
    """The text, the ids, and the totals and the finish of the last."""
    ids: list[int] = []
    for output in outputs:
        del ids[len(ids) - output.dropped :]
        ids += unpack_ids(output.ids).tolist()
    last = outputs[-1]
    meta = last.meta
    totals = (
        meta.completion_tokens, meta.jump_forward_tokens, meta.forward_passes, meta.cached_tokens
    )  # fmt: skip
    return "".join(output.text for output in outputs), ids, totals, last.finish


@pytest.mark.parametrize("seed", seeds(6))
def test_a_stream_that_is_cut_adds_up(seed: int) -> None:
    """Random columns, with characters of several bytes and a stop string across the losses; the
    same outputs as without them."""
    rng = random.Random(seed)
    text = "".join(rng.choices("abé€xyz ", k=60)) + "END" + "".join(rng.choices("ab", k=5))
    data, cuts = text.encode(), [0]
    while cuts[-1] < len(data):
        cuts.append(min(len(data), cuts[-1] + rng.randint(1, 4)))
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    fields: dict[str, Any] = {"stop": ["END"], "scoring": rng.choice([None, Scoring()])}
    results = []
    for share in (0.0, 0.3):
        detokenizer, incarnation, handle = Detokenizer(VOCAB, EPOCH, [1]), 1, 1
        outputs: list[Output] = []
        detokenizer.step(TokenBatch(1, starts=[start("1", **fields)]))
        for piece in pieces:
            if rng.random() < share:
                incarnation, handle = incarnation + 1, handle + 5
                detokenizer.scheduler_lost(incarnation)
                detokenizer.step(TokenBatch(incarnation, starts=[start("1", handle, **fields)]))
            batch = column(incarnation, piece, handle)
            outputs += detokenizer.step(batch).outputs.get(A, [])
            if outputs and outputs[-1].finish:
                break
        else:
            end = TokenBatch(incarnation, ends=[ReqEnd(handle, LENGTH)])
            outputs += detokenizer.step(end).outputs.get(A, [])
        results.append(joined(outputs))
    assert results[0] == results[1] and results[0][0] == text[: text.index("END")]
    assert results[0][2][-1] == 1  # cached tokens, of the first start
