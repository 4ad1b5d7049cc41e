"""Long messages in parts: none is above the limit, and they add up to the whole."""

import math
from typing import Any

import pytest
import zmq
from msgspec.structs import replace

from srt.client.generation import Request
from srt.client.ring.generation import RingGeneration, RingSamples
from srt.ring.places import MAX_MESSAGE_BYTES, open_socket, send_now
from srt.ring.socket import RingContext
from srt.wire import parcels
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import RequestError
from srt.wire.messages import (
    Finish,
    LogprobDetail,
    Output,
    TokenizeReq,
    encode,
    pack_floats,
    pack_ids,
)
from srt.wire.parcels import output_batches, token_batches
from srt.wire.ring_messages import PromptLogprobs, ReqStart, TokenBatch
from srt.wire.sampling import Scoring


def detail_of(first: int, count: int, top: int, named: int) -> LogprobDetail:
    ids = [first + i + j for i in range(count) for j in range(top)]
    values = [first + i for i in range(count) for _ in range(named)]
    return LogprobDetail(pack_ids(ids), pack_floats(ids), pack_floats(values))


def output_of(prompt: int, count: int, top: int = 3, named: int = 2, **fields: Any) -> Output:
    return Output(
        "7",
        "wörld" * count,
        pack_ids(range(count)),
        pack_floats(range(count)),
        prompt_logprob_start=0 if prompt else -1,
        prompt_logprob_ids=pack_ids(range(prompt)),
        prompt_logprobs=pack_floats([math.nan, *range(1, prompt)][:prompt]),
        detail=detail_of(0, count, top, named) if count else None,
        prompt_detail=detail_of(5, prompt, top, named) if prompt else None,
        finish=Finish("length"),
        **fields,
    )


def generation() -> RingGeneration:
    asked = Request(
        text="a",
        scoring=Scoring(start=0, top=3, ids=[1, 2]),
    )

    async def no_captures(*_: Any) -> None:
        return None

    return RingSamples("r", "7", asked, lambda _: None, no_captures).generations[0]


@pytest.mark.parametrize(("prompt", "count"), [(300, 0), (0, 300), (200, 150), (1, 1)])
async def test_an_output_in_parts_is_the_same_to_its_reader(
    prompt: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = generation(), generation()
    output = output_of(
        prompt, count, meta=AnswerMeta(prompt, completion_tokens=count, decode_s=2.0)
    )
    whole.take(output)
    monkeypatch.setattr(parcels, "PARCEL_BYTES", 2000)
    batches = list(output_batches(3, [output, replace(output, rid="8")]))
    parts = [part for batch in batches for part in batch.outputs]
    assert all(len(encode(batch)) < 3000 for batch in batches)
    assert {batch.epoch for batch in batches} == {3}
    assert [part.rid for part in parts] == sorted(part.rid for part in parts)
    mine = [part for part in parts if part.rid == "7"]
    for part in mine:
        assert not cut.has_ended and not cut.changed.is_set()
        cut.take(part)
    assert [part.more for part in mine] == [True] * (len(mine) - 1) + [False]
    assert all(part.meta == output.meta for part in mine)
    assert repr(await cut.result()) == repr(await whole.result())


async def test_ids_that_were_dropped_are_dropped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "PARCEL_BYTES", 600)
    cut = generation()
    cut.take(replace(output_of(0, 5), finish=None))
    for batch in output_batches(1, [output_of(0, 60, dropped=2)]):
        for part in batch.outputs:
            cut.take(part)
    assert (await cut.result()).output_ids == [0, 1, 2, *range(60)]


def test_what_fits_stays_one_message() -> None:
    outputs = [output_of(5, 5), output_of(0, 3)]
    assert [batch.outputs for batch in output_batches(1, outputs)] == [outputs]
    chunk = PromptLogprobs(1, 0, pack_ids([1]), pack_floats([0.5]))
    batch = TokenBatch(1, [1], [1], pack_ids([4]), prompt_logprobs=[chunk])
    assert list(token_batches(batch)) == [batch]


def test_every_detail_of_43000_positions_can_be_sent() -> None:
    """64 likeliest and 256 requested tokens at each position: 66 MB."""
    count = 43_000
    table = bytes(count * 64 * 4)
    detail = LogprobDetail(table, table, bytes(count * 256 * 4))
    ids = bytes(4 * count)
    start = ReqStart(1, b"c", "7", AnswerMeta(count), scoring=Scoring(top=64, ids=[1] * 256))
    chunk = PromptLogprobs(1, 0, ids, ids, detail)
    told = list(token_batches(TokenBatch(1, starts=[start], prompt_logprobs=[chunk])))
    assert max(len(encode(batch)) for batch in told) < MAX_MESSAGE_BYTES / 2
    assert [len(batch.starts) for batch in told] == [1] + [0] * (len(told) - 1)
    output = Output("7", prompt_logprob_ids=ids, prompt_logprobs=ids, prompt_detail=detail)
    sent = list(output_batches(1, [output]))
    assert max(len(encode(batch)) for batch in sent) < MAX_MESSAGE_BYTES / 2
    size = sum(len(p.prompt_logprob_ids) for batch in sent for p in batch.outputs)
    assert size == len(ids) and len(sent) > 2


def test_a_message_above_the_limit_is_not_sent() -> None:
    """Its receiver would drop the connection, and with it all that the sender still has to send."""
    context = RingContext()
    socket = open_socket(context, zmq.DEALER)
    with pytest.raises(RequestError, match="TokenizeReq"):
        send_now(socket, TokenizeReq("r", 1, text="x" * (MAX_MESSAGE_BYTES + 1)))
    context.destroy()
