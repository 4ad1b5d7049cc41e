"""Jumps at the detokenizer: whatever was sent before, tokens are replaced and text only grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detokenizer_proc.core import Detokenizer
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import (
    Finish,
    LogprobDetail,
    Output,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from srt.wire.ring_messages import ReqEnd, ReqStart, TokenBatch
from srt.wire.sampling import Scoring

PIECES = [bytes([i]) for i in range(256)] + [b'",', b'":', b"ab", b"abc", "é".encode()]
COMMA, COLON, AB, ABC, E_ACUTE = range(256, 261)
VOCAB = Vocab("pieces", PIECES, frozenset(), (), None, False, 100, None)


class Reader:
    """One streaming request and what its client makes of the Outputs."""

    def __init__(self, stop: list[str] | None = None, logprobs: bool = False) -> None:
        self.detokenizer = Detokenizer(VOCAB, 0, [0])
        self.text, self.ids = "", list[int]()
        self.logprobs = list[float]()
        self.tops, self.named = list[list[int]](), list[list[float]]()
        self.scored = logprobs
        self.last: Output | None = None
        scoring = Scoring(top=2, ids=[7, 8, 9]) if logprobs else None
        start = ReqStart(1, b"c", "r", AnswerMeta(3), stop or [], stream=True, scoring=scoring)
        self._send(TokenBatch(0, starts=[start]))

    def give(self, ids: list[int], jump: tuple[int, int] | None = None) -> None:
        self._send(self._batch([(ids, jump)]))

    def give_together(self, *columns: tuple[list[int], tuple[int, int] | None]) -> None:
        self._send(self._batch(columns))

    def end(self) -> None:
        self._send(TokenBatch(0, ends=[ReqEnd(1, Finish("length"))]))

    def _batch(self, columns: "tuple | list") -> TokenBatch:
        ids = [i for column, _ in columns for i in column]
        jumps = [(n, *jump) for n, (_, jump) in enumerate(columns) if jump is not None]
        return TokenBatch(
            0,
            handles=[1] * len(columns),
            counts=[len(column) for column, _ in columns],
            ids=pack_ids(ids),
            logprobs=pack_floats([-float(i) for i in ids]) if self.scored else b"",
            jumps=jumps,
            details={n: detail(column) for n, (column, _) in enumerate(columns)}
            if self.scored
            else {},
        )

    def _send(self, batch: TokenBatch) -> None:
        for output in self.detokenizer.step(batch).outputs.get(b"c", []):
            self.text += output.text
            del self.ids[len(self.ids) - output.dropped :]
            self.ids += unpack_ids(output.ids).tolist()
            del self.logprobs[len(self.logprobs) - output.dropped :]
            self.logprobs += unpack_floats(output.logprobs).tolist()
            del self.tops[len(self.tops) - output.dropped :]
            del self.named[len(self.named) - output.dropped :]
            if output.detail is not None:
                self.tops += unpack_ids(output.detail.top_ids).reshape(-1, 2).tolist()
                self.named += unpack_floats(output.detail.id_values).reshape(-1, 3).tolist()
                assert output.detail.top_ids == detail(unpack_ids(output.ids).tolist()).top_ids
            assert (output.detail is not None) == (self.scored and len(output.ids) > 0)
            self.last = output

    def assert_scored(self) -> None:
        """Check that the values belong to the ids that are left."""
        assert self.logprobs == [-float(i) for i in self.ids]
        assert self.tops == [[i, i + 1] for i in self.ids]
        assert self.named == [[-i - 0.25, -i - 0.5, -i - 0.75] for i in self.ids]


def detail(ids: list[int]) -> LogprobDetail:
    """Values that show which id they belong to."""
    return LogprobDetail(
        pack_ids([i + j for i in ids for j in range(2)]),
        pack_floats([-i - j for i in ids for j in range(2)]),
        pack_floats([-i - part for i in ids for part in (0.25, 0.5, 0.75)]),
    )


def test_a_sent_token_is_replaced_and_its_text_stays() -> None:
    reader = Reader()
    reader.give([ord("a"), ord('"')])
    assert reader.text == 'a"'
    reader.give([COMMA, ord(" "), ord('"')], jump=(1, 1))
    reader.end()
    assert reader.text == 'a", "' and reader.ids == [ord("a"), COMMA, ord(" "), ord('"')]
    assert reader.last is not None and reader.last.meta.completion_tokens == 4
    assert (reader.last.meta.jump_forward_tokens, reader.last.meta.forward_passes) == (2, 2)


def test_a_token_is_replaced_before_it_was_sent() -> None:
    reader = Reader(logprobs=True)
    reader.give_together(([ord("a")], None), ([ABC, COLON], (1, 1)))
    assert reader.text == 'abc":' and reader.ids == [ABC, COLON]
    reader.assert_scored()


def test_a_stop_string_cuts_the_log_probabilities_too() -> None:
    reader = Reader(stop=['b"'], logprobs=True)
    reader.give([ord("a"), AB, COLON, ABC])
    assert reader.text == "aa" and reader.ids == [ord("a"), AB, COLON]
    reader.assert_scored()


def test_a_stop_string_may_begin_before_a_jump_and_end_in_it() -> None:
    reader = Reader(stop=['",'])
    reader.give([ord("a"), ord('"')])
    assert reader.text == "a"
    reader.give([COMMA, ord("x"), ord("y")], jump=(1, 1))
    assert reader.text == "a" and reader.last is not None
    assert reader.last.finish == Finish("stop", '",')
    assert reader.ids == [ord("a"), COMMA] and reader.last.meta.completion_tokens == 2


def test_more_passes_than_tokens_are_no_negative_count() -> None:
    """Two sampled tokens and the forced bytes after them may become a single token."""
    reader = Reader()
    reader.give([ord("a")])
    reader.give([ord("b")])
    reader.give([ABC], jump=(2, 2))
    assert reader.last is not None and reader.last.meta.completion_tokens == 1
    assert (reader.last.meta.jump_forward_tokens, reader.last.meta.forward_passes) == (0, 2)
    reader.give([AB, ABC])
    reader.give([ord("x"), ord("y")], jump=(0, 0))
    assert (reader.last.meta.jump_forward_tokens, reader.last.meta.forward_passes) == (1, 4)


@pytest.mark.parametrize("together", [False, True])
def test_a_jump_behind_a_stop_string_changes_nothing(together: bool) -> None:
    """With `together`, the scheduler reports a token and the jump after it in one batch."""
    reader = Reader(stop=['b"'], logprobs=True)
    reader.give([ord("a"), ord("b")])
    columns = ([ord('"')], None), ([COMMA, ord("x")], (1, 1))
    if together:
        reader.give_together(*columns)
    else:
        reader.give_together(columns[0])
        reader.give_together(columns[1])
    reader.end()
    assert reader.text == "a" and reader.ids == [ord("a"), ord("b"), ord('"')]
    reader.assert_scored()
    assert reader.last is not None and reader.last.finish == Finish("stop", 'b"')
    assert reader.last.meta.completion_tokens == reader.last.meta.forward_passes == 3


def test_a_character_may_be_cut_by_a_jump() -> None:
    reader = Reader()
    reader.give([0xC3])
    assert reader.text == ""
    reader.give([E_ACUTE, AB], jump=(1, 1))
    assert reader.text == "éab"


@pytest.mark.parametrize("logprobs", [False, True])
@given(data=st.data())
def test_text_and_ids_are_those_of_the_last_cut(logprobs: bool, data: st.DataObject) -> None:
    """Random texts cut into tokens at random, again and again, with bytes added each time."""
    reader = Reader(logprobs=logprobs)
    ids: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        drop = data.draw(st.integers(0, min(3, len(ids))))
        kept, dropped = ids[: len(ids) - drop], ids[len(ids) - drop :]
        skipped = b"".join(PIECES[i] for i in dropped)
        new = skipped + data.draw(st.sampled_from([b"ab", b'abc",', b'":ab', "é".encode(), b"x"]))
        cut = _cut(new, data)
        if drop == 0 and data.draw(st.booleans()):
            reader.give(cut)
        else:
            reader.give(cut, jump=(drop, len(skipped)))
        ids = kept + cut
    reader.end()
    assert reader.ids == ids
    assert reader.text == b"".join(PIECES[i] for i in ids).decode(errors="replace")
    if logprobs:
        reader.assert_scored()


def _cut(data: bytes, draw: st.DataObject) -> list[int]:
    ids = []
    while data:
        fitting = [i for i, piece in enumerate(PIECES) if data.startswith(piece)]
        ids.append(draw.draw(st.sampled_from(fitting)))
        data = data[len(PIECES[ids[-1]]) :]
    return ids
