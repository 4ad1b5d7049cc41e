"""What the detokenizer is sent, and when: tokens that nobody watches come in bunches."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_proc.core.requests.outputs import HELD_TOKENS, OutputBuffer
from scheduler_proc.core.requests.request import Req
from srt.wire.answer_meta import AnswerMeta
from srt.wire.filled_params import FilledParams
from srt.wire.messages import (
    Finish,
    LogprobDetail,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from srt.wire.ring_messages import TokenBatch, TokenizedReq
from srt.wire.sampling import Scoring
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output

VOCAB = 1000
WATCHED: list[dict[str, Any]] = [
    {"stream": True},
    {"sampling": FilledParams(stop=["x"], max_new_tokens=500)},
    {"sampling": FilledParams(stop_regex=["x"], max_new_tokens=500)},
    {"scoring": Scoring(top=2)},
    {"scoring": Scoring(ids=[3])},
]


def req_of(handle: int = 0, **fields: Any) -> Req:
    sampling = fields.pop("sampling", FilledParams(max_new_tokens=500))
    wire = TokenizedReq(b"c", str(handle), 0, pack_ids([1]), sampling, **fields)
    req = Req.of(handle, wire, 0.0, VOCAB)
    req.meta = replace(req.meta, queued_s=0.0)  # it has been admitted
    return req


def columns(batch: TokenBatch | None) -> list[tuple[int, list[int]]]:
    """The (handle, ids) of the batch, in order."""
    if batch is None:
        return []
    ids, told = unpack_ids(batch.ids).tolist(), []
    for handle, count in zip(batch.handles, batch.counts, strict=True):
        told.append((handle, ids[:count]))
        ids = ids[count:]
    assert ids == []
    return told


@pytest.mark.parametrize("asked", [False, True])
def test_log_probabilities_that_are_not_numbers_keep_their_places(asked: bool) -> None:
    """A model's logits may not be finite: values of later tokens must not move up."""
    outputs, req = OutputBuffer(), req_of(scoring=Scoring() if asked else None, stream=True)
    outputs.token(req, 7, math.nan)
    outputs.jump(req, 0, 0, [8, 9], [math.nan] * 2)
    batch = outputs.take(0, 0.0)
    assert batch is not None and len(batch.ids) == 12
    assert len(batch.logprobs) == (12 if asked else 0)


def test_a_whole_answer_is_told_in_bunches() -> None:
    """Its start is sent at once, then only whole bunches, and the rest with its end."""
    outputs, req = OutputBuffer(), req_of(scoring=Scoring())
    count = 2 * HELD_TOKENS + 5
    batches = []
    for i in range(count):
        outputs.token(req, i, -float(i))
        if i == count - 1:
            outputs.end(req, Finish("length"))
        batches.append(outputs.take(0, 0.0))
    told = [i for i, batch in enumerate(batches) if batch is not None]
    assert told == [0, HELD_TOKENS - 1, 2 * HELD_TOKENS - 1, count - 1]
    first, *rest = [batch for batch in batches if batch is not None]
    assert [start.rid for start in first.starts] == ["0"] and first.handles == []
    assert [batch.counts for batch in rest] == [[HELD_TOKENS], [HELD_TOKENS], [5]]
    assert [i for batch in rest for i in unpack_ids(batch.ids).tolist()] == [*range(count)]
    assert [x for b in rest for x in unpack_floats(b.logprobs)] == [-i for i in range(count)]
    assert [len(batch.ends) for batch in rest] == [0, 0, 1]


@pytest.mark.parametrize("fields", WATCHED)
def test_what_is_watched_is_told_at_each_step(fields: dict[str, Any]) -> None:
    outputs, req = OutputBuffer(), req_of(**fields)
    for i in range(3):
        outputs.token(req, i, -1.0, LogprobDetail() if req.wish.wants_details else None)
        batch = outputs.take(0, 0.0)
        assert columns(batch) == [(0, [i])]
        assert batch is not None and (0 in batch.details) == req.wish.wants_details


def test_an_abort_tells_what_was_held() -> None:
    driver = Driver(max_total_tokens=200)
    driver.add("r", [1, 2, 3], max_new=50)
    for _ in range(6):
        driver.step()
    assert "r" not in driver.outputs
    driver.abort("r")
    driver.step()
    assert driver.outputs["r"] == reference_output([1, 2, 3], 6)
    assert driver.finishes["r"].type == "abort"


def facts(verified: int, drafted: int) -> AnswerMeta:
    return AnswerMeta(verified=verified, drafted=drafted, accepted=2)


@pytest.mark.parametrize("stream", [False, True])
def test_what_guessing_did_is_told_with_tokens_and_the_end(stream: bool) -> None:
    """Totals as of the end of the step: a row is counted before its tokens, what it accepted
    while they are taken over."""
    outputs, req, plain = OutputBuffer(), req_of(stream=stream), req_of(1, stream=True)
    outputs.token(plain, 3, math.nan)
    req.told.count("verified")
    req.told.count("drafted", 4)
    for token in (5, 6):
        outputs.token(req, token, math.nan)
        req.told.count("accepted")
    batch = outputs.take(0, 0.0)
    assert batch is not None and batch.facts == ({0: facts(1, 4)} if stream else {})
    req.told.count("verified")
    req.told.count("drafted", 3)
    outputs.end(req, Finish("abort"))
    batch = outputs.take(0, 0.0)
    assert batch is not None and batch.facts == {0: facts(2, 7)}
    outputs.token(plain, 3, math.nan)
    batch = outputs.take(0, 0.0)
    assert batch is not None and batch.facts == {}


def test_a_new_epoch_forgets_what_was_held() -> None:
    outputs, req = OutputBuffer(), req_of()
    outputs.token(req, 7, math.nan)
    outputs.clear()
    outputs.end(req, Finish("abort"))
    batch = outputs.take(0, 0.0)
    assert columns(batch) == [] and batch is not None and len(batch.ends) == 1


@given(st.data())
def test_bunches_add_up_to_what_happened(data: st.DataObject) -> None:
    """Tokens and jumps of several reqs, taken at any time: each ends up with the same ids."""
    reqs = [req_of(i, stream=i % 2 == 0) for i in range(4)]
    outputs, expected = OutputBuffer(), {req.handle: list[int]() for req in reqs}
    got = {req.handle: list[int]() for req in reqs}
    live = list(reqs)

    def take() -> None:
        batch = outputs.take(0, 0.0)
        drops = {column: drop for column, drop, _ in batch.jumps} if batch else {}
        for column, (handle, ids) in enumerate(columns(batch)):
            assert drops.get(column, 0) <= len(got[handle])
            del got[handle][len(got[handle]) - drops.get(column, 0) :]
            got[handle] += ids
        for end in batch.ends if batch else []:
            assert got[end.handle] == expected[end.handle]

    for _ in range(data.draw(st.integers(0, 300))):
        action = data.draw(st.sampled_from(["token"] * 20 + ["jump", "take", "take", "end"]))
        if action == "take" or not live:
            take()
            continue
        req = data.draw(st.sampled_from(live))
        known = expected[req.handle]
        if action == "token":
            outputs.token(req, len(known), math.nan)
            known.append(len(known))
        elif action == "jump":
            drop = data.draw(st.integers(0, min(3, len(known))))
            outputs.jump(req, drop, 0, [900, 901], [math.nan] * 2)
            known[len(known) - drop :] = [900, 901]
        else:
            outputs.end(req, Finish("length"))
            live.remove(req)
    for req in live:
        outputs.end(req, Finish("length"))
    take()
    assert got == expected
