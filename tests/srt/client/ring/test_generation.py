"""The samples of a request while a client receives their Outputs."""

import asyncio
import math
import traceback
from typing import Any

import pytest

from srt.client.generation import GenerateOutput, Request
from srt.client.ring.generation import RingGeneration, RingSamples
from srt.wire.answer_meta import NO_DRAFTS, AnswerMeta, DraftCounts
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import INTERNAL, ErrorInfo, RequestError, RingError
from srt.wire.messages import (
    Admitted,
    Finish,
    LogprobDetail,
    Output,
    pack_floats,
    pack_ids,
)
from srt.wire.sampling import SamplingParams, Scoring

LENGTH = Finish("length")
NAN = math.nan


class Reader:
    """A request's samples, and those that were closed before their end."""

    def __init__(self, n: int = 1, **request: Any) -> None:
        self.forgotten: list[str] = []
        self.asked: list[tuple[str, str, str]] = []  # source, what it waits for, text and tenant
        asked = Request(**{"text": "a", "sampling": SamplingParams(n=n), **request})
        self.samples = RingSamples("r", "7", asked, self._forget, self._captures)
        self.generations = self.samples.generations

    def _forget(self, generation: RingGeneration) -> None:
        self.forgotten.append(generation.wire_id)

    async def _captures(self, constraint: Constraint, text: str, tenant: str) -> list[Capture]:
        self.asked.append((constraint.source + constraint.after, text, tenant))
        return [Capture("x", 0, 1, text[:1])]


def output(text: str = "", ids: tuple[int, ...] = (), **fields: Any) -> Output:
    return Output("", text, pack_ids(ids), pack_floats([-i for i in ids]), **fields)


def detail(rows: list[list[tuple[int, float]]], named: list[list[float]]) -> LogprobDetail:
    return LogprobDetail(
        pack_ids([i for row in rows for i, _ in row]),
        pack_floats([value for row in rows for _, value in row]),
        pack_floats([value for row in named for value in row]),
    )


async def snapshots(generation: RingGeneration) -> list[GenerateOutput]:
    return [snapshot async for snapshot in generation]


def test_names() -> None:
    one, three = Reader(), Reader(3)
    assert [(g.rid, g.wire_id) for g in one.generations] == [("r", "7")]
    names = [("r/0", "7/0"), ("r/1", "7/1"), ("r/2", "7/2")]
    assert [(g.rid, g.wire_id) for g in three.generations] == names
    assert three.samples.wire_ids == ["7/0", "7/1", "7/2"]
    message = three.samples.message(epoch=4)
    assert (message.rid, message.epoch, message.sampling.n) == ("7", 4, 3)
    with pytest.raises(RequestError) as caught:
        RingSamples("r", "7", Request(input_ids=[2**40]), one._forget, one._captures).message(4)
    assert caught.value.info.param == "input_ids"


async def test_samples_are_read_apart() -> None:
    reader = Reader(2)
    first, second = reader.generations
    reader.samples.admit(Admitted("7", 1, AnswerMeta(5), True, closes_reasoning=True))
    assert first.meta.prompt_tokens == second.meta.prompt_tokens == 5 and second.opens_reasoning
    assert first.closes_reasoning
    facts = AnswerMeta(5, 3, healed_tokens=2, jump_forward_tokens=1, forward_passes=2)
    second.take(output("x", (1,), meta=facts))
    second.take(output("y", (2, 3), meta=facts, dropped=1, finish=LENGTH))
    (last,) = await snapshots(second)
    assert (last.text, last.delta, last.output_ids, last.finish) == ("xy", "xy", [2, 3], LENGTH)
    assert (last.healed_tokens, last.prompt_tokens) == (2, 5)
    first.take(output("a", (1,)))
    iterator = aiter(first)
    assert (await anext(iterator)).delta == "a"
    first.take(output("b", (2,), finish=LENGTH))
    assert (await anext(iterator)).delta == "b"
    assert reader.forgotten == []


async def test_an_output_may_overtake_the_admission() -> None:
    reader = Reader()
    (generation,) = reader.generations
    generation.take(output("a", (1,), meta=AnswerMeta(5, 3, routed_replica=1), finish=LENGTH))
    reader.samples.admit(Admitted("7", 1, AnswerMeta(5), True))
    last = await generation.result()
    assert (last.prompt_tokens, last.cached_tokens, last.routed_replica) == (5, 3, 1)


@pytest.mark.parametrize("streams", [False, True])
async def test_captures_come_with_the_last_snapshot(streams: bool) -> None:
    """They are requested once, and only for constraints that have names."""
    asked = SamplingParams(regex="(?P<x>a)b*", constraint_after="y", constraint_opener="x")
    reader = Reader(sampling=asked, tenant="t")
    (generation,) = reader.generations
    reader.samples.admit(Admitted("7", 1, AnswerMeta(5), lead=("z", "")))
    iterator = aiter(generation)
    generation.take(output("a", (1,)))
    if streams:
        assert (await anext(iterator)).captures is None
    generation.take(output("b", (2,), finish=LENGTH))
    last = await (anext(iterator) if streams else generation.result())
    assert last.captures == [Capture("x", 0, 1, "a")]
    assert reader.asked == [("(?P<x>a)b*z", "ab", "t")]
    plain = Reader(sampling=SamplingParams(regex="ab*"))
    plain.generations[0].take(output("ab", (1,), finish=LENGTH))
    assert (await plain.generations[0].result()).captures is None and plain.asked == []
    failed = Reader(sampling=SamplingParams(regex="(?P<x>a)b*"))
    failed.generations[0].fail(RequestError("it failed"))
    with pytest.raises(RequestError, match="it failed"):
        await failed.generations[0].result()
    assert failed.asked == []


async def test_times_and_drafts_come_with_the_last_snapshot() -> None:
    (generation,) = Reader().generations
    iterator = aiter(generation)
    generation.take(output("a", (1,)))
    first = await anext(iterator)
    facts = AnswerMeta(queued_s=0.5, ttft_s=1.5, decode_s=0.0, verified=1, drafted=3, accepted=2)
    generation.take(output("b", (2,), finish=LENGTH, meta=facts))
    last = await anext(iterator)
    assert (first.queued_s, first.ttft_s, first.decode_s) == (None, None, None)
    assert (last.queued_s, last.ttft_s, last.decode_s) == (0.5, 1.5, 0.0)
    assert (first.drafts, last.drafts) == (NO_DRAFTS, DraftCounts(1, 3, 2))


async def test_details_follow_the_ids() -> None:
    """Also when a jump replaces ids."""
    reader = Reader(scoring=Scoring(start=0, top=2, ids=[5, 6, 7]))
    (generation,) = reader.generations
    a, b, c = [(1, -0.5), (2, -1.0)], [(3, -0.25), (4, -2.0)], [(8, -0.125), (9, -4.0)]
    prompt = {
        "prompt_logprob_start": 0,
        "prompt_logprob_ids": pack_ids([11, 12]),
        "prompt_logprobs": pack_floats([NAN, -3.0]),
        "prompt_detail": detail([[(0, NAN), (0, NAN)], a], [[NAN] * 3, [-1.0, -2.0, -3.0]]),
    }
    generation.take(
        output("x", (1, 2), detail=detail([a, b], [[-1, -2, -3], [-4, -5, -6]]), **prompt)
    )
    generation.take(output("y", (3,), dropped=1, detail=detail([c], [[-7, -8, -9]])))
    generation.take(output(finish=LENGTH))
    last = await generation.result()
    pairs = [[(value, i) for i, value in row] for row in (a, c)]
    assert last.output_ids == [1, 3] and last.output_logprobs == [-1.0, -3.0]
    assert last.output_top_logprobs == pairs
    assert last.output_id_logprobs == [[-1, -2, -3], [-7, -8, -9]]
    assert last.prompt_logprobs == [(None, 11), (-3.0, 12)]
    assert last.prompt_top_logprobs == [None, pairs[0]]
    assert last.prompt_id_logprobs == [None, [-1.0, -2.0, -3.0]]


async def test_what_was_not_asked_for_is_none() -> None:
    plain, scored = Reader(), Reader(scoring=Scoring(top=1))
    for reader in (plain, scored):
        reader.generations[0].take(output(finish=LENGTH))
    last = await plain.generations[0].result()
    assert (last.output_logprobs, last.prompt_logprobs, last.output_top_logprobs) == (None,) * 3
    last = await scored.generations[0].result()
    assert (last.output_logprobs, last.output_top_logprobs) == ([], [])
    assert (last.prompt_logprobs, last.prompt_top_logprobs, last.output_id_logprobs) == (None,) * 3


PROMPT: dict[str, Any] = {
    "prompt_logprob_ids": pack_ids([1]),
    "prompt_logprobs": pack_floats([-1.0]),
}


async def test_the_prompts_log_probabilities_are_for_all_samples() -> None:
    """A sample that ends before the first sample has received them waits for them."""
    reader = Reader(3, scoring=Scoring(start=1))
    first, second, third = reader.generations
    second.take(output("x", (1,)))
    iterator = aiter(second)
    assert (await anext(iterator)).prompt_logprobs == []
    second.take(output(finish=LENGTH))
    third.take(output(finish=LENGTH))
    ends = [asyncio.ensure_future(anext(iterator)), asyncio.ensure_future(third.result())]
    await asyncio.sleep(0.01)
    assert not any(end.done() for end in ends)
    first.take(output(**PROMPT))
    assert [(await end).prompt_logprobs for end in ends] == [[(-1.0, 1)]] * 2
    assert first._snapshot().prompt_logprobs == [(-1.0, 1)]


@pytest.mark.parametrize("how", ["closed", "failed", "aborted"])
async def test_nobody_waits_for_a_first_sample_that_is_gone(how: str) -> None:
    reader = Reader(2, scoring=Scoring(start=1))
    first, second = reader.generations
    second.take(output("x", finish=LENGTH))
    end = asyncio.ensure_future(second.result())
    await asyncio.sleep(0)
    if how == "closed":
        await first.aclose()
    elif how == "failed":
        first.fail(RingError("lost"))
    else:
        first.take(output(finish=Finish("abort")))
    assert (await end).prompt_logprobs == []


async def test_samples_that_were_aborted_before_they_began() -> None:
    reader = Reader(3, scoring=Scoring(start=0))
    reader.samples.admit(Admitted("7", 1, AnswerMeta(5), aborted=[0, 2]))
    first, second, third = reader.generations
    for generation in (first, third):
        last = await generation.result()
        assert (last.text, last.finish, last.prompt_tokens) == ("", Finish("abort"), 5)
    assert not second.has_ended and reader.forgotten == []


async def test_each_fails_and_closes_alone() -> None:
    reader = Reader(3)
    first, second, third = reader.generations
    first.take(output(finish=Finish("abort", None, ErrorInfo(INTERNAL, "the step failed"))))
    with pytest.raises(RequestError, match="the step failed"):
        await first.result()
    second.take(output("x", (1,)))
    iterator = aiter(second)
    assert (await anext(iterator)).text == "x"
    await second.aclose()
    await second.aclose()
    assert reader.forgotten == ["7/1"]
    with pytest.raises(RequestError, match="closed"):
        await second.result()
    third.fail(RingError("lost"))
    with pytest.raises(RingError, match="lost"):
        await snapshots(third)


async def test_one_error_for_many_keeps_no_tracebacks_of_others() -> None:
    """If each reader raised the same object, it would collect all their frames."""
    readers, error = [Reader() for _ in range(300)], RingError("the server cannot be reached")
    results = [asyncio.ensure_future(reader.generations[0].result()) for reader in readers]
    await asyncio.sleep(0)
    for reader in readers:
        reader.generations[0].fail(error)
    raised = await asyncio.gather(*results, return_exceptions=True)
    assert len({id(exception) for exception in raised}) == len(raised)
    for exception in raised:
        assert isinstance(exception, RingError) and exception.info == error.info
        assert len(traceback.format_exception(exception)) < 20
