"""A request's times, in its last output: whatever ends it, and whoever had it."""

from typing import Any, NamedTuple

import pytest

from detokenizer_proc.core import Detokenizer
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import INTERNAL, ErrorInfo
from srt.wire.messages import Finish, Output, decoder, encode, pack_ids
from srt.wire.ring_messages import ReqEnd, ReqStart, TokenBatch
from tests.detokenizer_proc.test_core import VOCAB

A = b"a"
LENGTH = Finish("length")


class Times(NamedTuple):
    queued_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None


class Reader:
    """A detokenizer, and the outputs of one client."""

    def __init__(self) -> None:
        self.detokenizer = Detokenizer(VOCAB, 3, [1])
        self.incarnation = 1
        self.outputs: list[Output] = []

    def take(self, now: float, text: str = "", handle: int = 1, **fields: Any) -> None:
        ids = list(text.encode())
        if ids:
            fields = {"handles": [handle], "counts": [len(ids)], "ids": pack_ids(ids), **fields}
        batch = TokenBatch(self.incarnation, time_s=now, **fields)
        batch = decoder(TokenBatch).decode(encode(batch))
        self.outputs += self.detokenizer.step(batch).outputs.get(A, [])

    @property
    def last(self) -> Times:
        """The last output's times, which no output before may have."""
        *before, last = self.outputs
        assert all(times_of(output) == Times() and output.finish is None for output in before)
        assert last.finish is not None
        return times_of(last)


def times_of(output: Output) -> Times:
    return Times(output.meta.queued_s, output.meta.ttft_s, output.meta.decode_s)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def start(handle: int = 1, queued_s: float | None = 0.5, **fields: Any) -> ReqStart:
    meta = AnswerMeta(10, 4, queued_s=queued_s)
    return ReqStart(handle, A, "r", meta, arrival_s=100.0, **fields)


def end(finish: Finish = LENGTH, handle: int = 1) -> list[ReqEnd]:
    return [ReqEnd(handle, finish)]


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_output_has_times(reader: Reader, stream: bool) -> None:
    reader.take(101.25, "h", starts=[start(stream=stream)], firsts=[1])
    reader.take(102.0, "el")
    reader.take(104.0, "lo", ends=end())
    assert reader.last == Times(0.5, 1.25, 2.75)
    assert len(reader.outputs) == (3 if stream else 1)


def test_a_first_token_may_be_held_back(reader: Reader) -> None:
    reader.take(101.0, starts=[start()], firsts=[1])
    reader.take(108.0, "hello", ends=end())
    assert reader.last == Times(0.5, 1.0, 7.0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_it_when_it_is_found(reader: Reader, stream: bool) -> None:
    reader.take(101.0, "a", starts=[start(stop=["cd"], stream=stream)], firsts=[1])
    reader.take(102.0, "bc")
    reader.take(103.0, "d")
    assert reader.last == Times(0.5, 1.0, 2.0)
    reader.take(109.0, "ef", ends=end())  # the scheduler hears of it later
    assert reader.last == Times(0.5, 1.0, 2.0)


def test_it_may_begin_and_end_at_once(reader: Reader) -> None:
    reader.take(101.0, "a", starts=[start()], firsts=[1], ends=end())
    assert reader.last == Times(0.5, 1.0, 0.0)


@pytest.mark.parametrize("queued_s", [None, 0.5])
def test_without_a_token_there_is_no_time_of_one(reader: Reader, queued_s: float | None) -> None:
    finish = Finish("abort", error=ErrorInfo(INTERNAL, "it failed"))
    reader.take(101.0, starts=[start(queued_s=queued_s)], ends=end(finish))
    assert reader.last == Times(queued_s)


def test_the_times_of_the_first_scheduler_count(reader: Reader) -> None:
    reader.take(101.0, starts=[start()], firsts=[1])
    reader.take(102.0, "a")
    for incarnation, now in ((2, 110.0), (3, 120.0)):
        reader.detokenizer.scheduler_lost(incarnation)
        reader.incarnation = incarnation
        reader.take(now, "b", 7, starts=[start(7, 9.0)], firsts=[7])
    reader.take(130.0, ends=end(handle=7))
    assert reader.last == Times(0.5, 1.0, 29.0)


def test_a_first_token_that_comes_after_a_loss(reader: Reader) -> None:
    """The lost scheduler had begun with the prompt."""
    reader.take(101.0, starts=[start()])
    reader.detokenizer.scheduler_lost(2)
    reader.incarnation = 2
    reader.take(110.0, starts=[start(7, 9.0)])
    reader.take(111.0, "b", 7, firsts=[7], ends=end(handle=7))
    assert reader.last == Times(0.5, 11.0, 0.0)


def test_what_is_said_of_an_unknown_request_is_ignored(reader: Reader) -> None:
    reader.take(101.0, firsts=[5])
    reader.take(102.0, "a", starts=[start(stream=True)], firsts=[1])
    reader.detokenizer.drop_client(A)
    reader.take(103.0, "b", firsts=[1], ends=end())
    assert len(reader.outputs) == 1
