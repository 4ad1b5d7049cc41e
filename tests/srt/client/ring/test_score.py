"""The parts of a score, which a client receives in any order, failed or aborted."""

import asyncio

import pytest

from srt.client.generation import ChoiceScore, ScoreOutput, ScoreRequest
from srt.client.ring.score import RingScore
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import CONFLICT, INTERNAL, ErrorInfo, RequestError, RingError
from srt.wire.messages import (
    Admitted,
    Continuation,
    Finish,
    Output,
    ScoreReq,
    pack_floats,
    pack_ids,
)

ADMITTED = Admitted("7", 1, AnswerMeta(5), score_start=4)
NAN = float("nan")


def make_score(count: int) -> RingScore:
    return RingScore("r", "7", count)


def output(ids: list[int], logprobs: list[float], cached: int = 3, total: int = 6) -> Output:
    return Output(
        rid="",
        meta=AnswerMeta(total, cached),
        prompt_logprob_ids=pack_ids(ids),
        prompt_logprobs=pack_floats(logprobs),
        finish=Finish("length"),
    )


def aborted(error: ErrorInfo | None = None) -> Output:
    return Output(rid="", finish=Finish("abort", error=error))


async def test_parts_in_any_order() -> None:
    score = make_score(3)
    score.parts[2].take(output([9], [-0.25]))
    score.parts[0].take(output([8, 7], [NAN, -0.5], cached=0))
    result = asyncio.ensure_future(score.result(ADMITTED))
    await asyncio.sleep(0)
    assert not result.done()
    score.parts[1].take(output([], [], total=4))
    choices = [
        ChoiceScore([8, 7], [None, -0.5]),
        ChoiceScore([], []),
        ChoiceScore([9], [-0.25]),
    ]
    assert await result == ScoreOutput("r", choices, 4, 5, cached_tokens=0, computed_tokens=10)


def test_the_message() -> None:
    score = make_score(2)
    request = ScoreRequest(
        input_ids=[1, 2], continuations=["a", (3,)], cache_salt="s", rid="r", tenant="t"
    )
    parts = [Continuation("a"), Continuation(None, pack_ids([3]))]
    message = ScoreReq("7", 1, None, pack_ids([1, 2]), "s", "t", continuations=parts)
    assert score.message(request, epoch=1) == message
    assert score.wire_ids == ["7/0", "7/1"]
    with pytest.raises(RequestError) as error:
        score.message(ScoreRequest(text="a", continuations=["b", [2**31]]), epoch=1)
    assert error.value.info.param == "continuations[1]"


async def test_the_first_failure_is_the_scores() -> None:
    score = make_score(3)
    score.parts[0].take(output([1], [-1.0]))
    score.parts[1].take(aborted(ErrorInfo(INTERNAL, "the step failed")))
    score.parts[2].fail(RingError("lost"))
    with pytest.raises(RequestError, match="the step failed") as error:
        await score.result(ADMITTED)
    assert error.value.info.code == INTERNAL


async def test_an_abort_is_a_conflict() -> None:
    score = make_score(2)
    score.parts[1].take(aborted())
    with pytest.raises(RequestError, match="aborted") as error:
        await score.result(ADMITTED)
    assert error.value.info.code == CONFLICT


async def test_a_lost_server_ends_the_wait() -> None:
    score = make_score(2)
    result = asyncio.ensure_future(score.result(ADMITTED))
    await asyncio.sleep(0)
    for part in score.parts:
        part.fail(RingError("a part of the server died"))
    with pytest.raises(RingError, match="died"):
        await result
