"""What guessing did for a request comes with its outputs, however it ends."""

from srt.wire.answer_meta import NO_DRAFTS, AnswerMeta, DraftCounts
from srt.wire.messages import Finish
from srt.wire.ring_messages import ReqEnd
from tests.detokenizer_proc.test_times import Reader, start

ONE, TWO = AnswerMeta(verified=1, drafted=4), AnswerMeta(verified=2, drafted=7, accepted=2)


def drafts_of(reader: Reader) -> list[DraftCounts]:
    return [output.meta.drafts for output in reader.outputs]


def test_a_stream_has_the_totals_so_far() -> None:
    reader = Reader()
    reader.take(1.0, "a", starts=[start(stream=True)])
    reader.take(2.0, "bcd", facts={1: ONE})
    reader.take(3.0, "e")
    reader.take(4.0, facts={1: TWO}, ends=[ReqEnd(1, Finish("length"))])
    assert drafts_of(reader) == [NO_DRAFTS, ONE.drafts, ONE.drafts, TWO.drafts]


def test_a_text_that_stops_has_them_before_its_scheduler_ends_it() -> None:
    reader = Reader()
    reader.take(1.0, "a", starts=[start(stop=["cd"])])
    reader.take(2.0, "bcde", facts={1: ONE, 5: TWO})
    assert drafts_of(reader) == [ONE.drafts] and reader.outputs[-1].finish == Finish("stop", "cd")


def test_the_last_scheduler_that_guessed_counts() -> None:
    reader = Reader()
    reader.take(1.0, "a", starts=[start()], facts={1: TWO})
    for incarnation, facts in ((2, {7: ONE}), (3, {})):
        reader.detokenizer.scheduler_lost(incarnation)
        reader.incarnation = incarnation
        reader.take(2.0, "b", 7, starts=[start(7)], facts=facts)
    reader.take(3.0, ends=[ReqEnd(7, Finish("length"))])
    assert drafts_of(reader) == [ONE.drafts]
