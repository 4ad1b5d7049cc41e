"""The beginning of an output that is not part of its text is skipped, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detokenizer_proc.core import Detokenizer
from detokenizer_proc.text_stream import Stops, TextStream
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import Finish, Output, pack_ids, unpack_ids
from srt.wire.ring_messages import ReqEnd, ReqStart, TokenBatch

PIECES = [bytes([i]) for i in range(256)] + [b"://", "é".encode(), b"ab"]
SLASHES, E_ACUTE, AB = range(256, 259)
VOCAB = Vocab("pieces", PIECES, frozenset(), (), None, False, 100, None)


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=12), st.data())
def test_the_text_begins_behind_the_skipped_bytes(ids: list[int], data: st.DataObject) -> None:
    whole = b"".join(PIECES[i] for i in ids)
    skip = data.draw(st.integers(0, len(whole)))
    stream = TextStream(PIECES, skip_bytes=skip)
    text = "".join(stream.push([i]) for i in ids) + stream.finish()
    assert text == whole[skip:].decode(errors="replace")
    assert stream.num_tokens == len(ids)


@pytest.mark.parametrize("ids", [[SLASHES, AB], [58, 47, 47, AB], [58, 47, 47, 97, 98]])
def test_stop_strings_are_looked_for_behind_them(ids: list[int]) -> None:
    for stop, expected in ((":", "//ab"), (":/", "//ab"), ("/a", "/"), ("//", "")):
        stream = TextStream(PIECES, Stops([stop]), skip_bytes=1)
        text = "".join(stream.push([i]) for i in ids) + stream.finish()
        assert text == expected
        assert (stream.stopped is None) == (expected == "//ab")


def test_a_jump_may_take_skipped_tokens_back() -> None:
    """`:` is sampled and skipped; then a jump makes it `://`, and `ab` follows."""
    detokenizer = Detokenizer(VOCAB, 0, [0])
    start = ReqStart(1, b"c", "r", AnswerMeta(3), stream=True, skip_bytes=2)
    outputs: list[Output] = []
    for ids, jumps in (
        ([ord("p"), ord(":")], []),
        ([SLASHES], [(0, 1, 1)]),
        ([AB, E_ACUTE], []),
    ):
        batch = TokenBatch(
            0,
            handles=[1],
            counts=[len(ids)],
            ids=pack_ids(ids),
            jumps=jumps,
            starts=[start] if not outputs else [],
        )
        outputs += detokenizer.step(batch).outputs[b"c"]
    outputs += detokenizer.step(TokenBatch(0, ends=[ReqEnd(1, Finish("length"))])).outputs[b"c"]
    assert [output.text for output in outputs] == ["", "//", "abé", ""]
    assert [unpack_ids(output.ids).tolist() for output in outputs[:2]] == [[112, 58], [SLASHES]]
    assert outputs[1].dropped == 1 and outputs[-1].meta.completion_tokens == 4


def test_an_output_that_ends_inside_them_has_no_text() -> None:
    stream = TextStream(PIECES, Stops(["x"]), skip_bytes=5)
    assert stream.push([SLASHES]) == "" and stream.finish() == ""
    assert stream.stopped is None and stream.num_tokens == 1
