"""Where each output token is from, for requests that ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detokenizer_proc.core import Detokenizer
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import ReqEnd, ReqStart, TokenBatch

PIECES = [bytes([i]) for i in range(256)] + [b"ab", b"abc", b"xyz"]
AB, ABC, XYZ = 256, 257, 258
A, B, C = b"abc"
VOCAB = Vocab("pieces", PIECES, frozenset(), (), None, False, 100, None)


class Reader:
    """One request and the letters that its client has."""

    def __init__(self, asks: bool = True, stream: bool = True, stop: list[str] | None = None):
        self.detokenizer = Detokenizer(VOCAB, 0, [0])
        self.origins = ""
        start = ReqStart(1, b"c", "r", AnswerMeta(3), stop or [], stream=stream, has_origins=asks)
        self.send(TokenBatch(0, starts=[start]))

    def give(self, *columns: tuple[list[int], str], jump: tuple[int, int] = (0, 0)) -> None:
        """Columns of ids from the same origin, in one batch."""
        origins = [origin for _, origin in columns]
        self.send(
            TokenBatch(
                0,
                handles=[1] * len(columns),
                counts=[len(ids) for ids, _ in columns],
                ids=pack_ids([i for ids, _ in columns for i in ids]),
                jumps=[(n, *jump) for n, origin in enumerate(origins) if origin in "jc"],
                guessed=[n for n, origin in enumerate(origins) if origin == "d"],
                closing=[n for n, origin in enumerate(origins) if origin == "c"],
            )
        )

    def send(self, batch: TokenBatch) -> None:
        for output in self.detokenizer.step(batch).outputs.get(b"c", []):
            self.origins = self.origins[: len(self.origins) - output.dropped] + output.origins
            assert len(output.origins) in (0, len(output.ids) // 4)

    def end(self) -> None:
        self.send(TokenBatch(0, ends=[ReqEnd(1, Finish("length"))]))


@pytest.mark.parametrize("stream", [True, False])
def test_each_token_has_the_letter_of_its_column(stream: bool) -> None:
    reader = Reader(stream=stream)
    reader.give(([A], "s"), ([B], "d"))
    reader.give(([C, C], "j"))
    reader.give(([A, A], "c"))
    reader.end()
    assert reader.origins == "sdjjcc"


def test_who_does_not_ask_gets_none() -> None:
    reader = Reader(asks=False)
    reader.give(([A], "s"), ([B], "d"))
    reader.end()
    assert reader.origins == ""


def test_a_jump_that_divides_text_anew() -> None:
    reader = Reader()
    reader.give(([A], "d"))
    # "a" is written again, alone: it is from where it was.
    reader.give(([A, B], "j"), jump=(1, 1))
    assert reader.origins == "dj"
    # "ab" becomes a part of a token that was forced.
    reader.give(([ABC], "j"), jump=(2, 2))
    assert reader.origins == "j"


@pytest.mark.parametrize(
    ("before", "jump", "after", "expected"),
    [
        ([([AB], "s")], (1, 2), [A, B, C], "ssj"),  # one token becomes two
        ([([A], "s"), ([B], "d")], (2, 2), [AB, C], "sj"),  # two become one
        # What was forced stays so, wherever it stands among the new tokens.
        ([([A], "s"), ([B], "d"), ([C], "j")], (3, 3), [AB, C, XYZ], "sjj"),
        ([([A], "d"), ([B, C], "j")], (3, 3), [ABC, XYZ], "jj"),
        ([([B], "d"), ([AB], "s")], (1, 2), [A, B, XYZ], "dssj"),
    ],
)
def test_letters_follow_bytes(
    before: list[tuple[list[int], str]], jump: tuple[int, int], after: list[int], expected: str
) -> None:
    reader = Reader()
    reader.give(*before)
    reader.give((after, "j"), jump=jump)
    assert reader.origins == expected


def test_what_follows_a_stop_string_has_none() -> None:
    reader = Reader(stop=["b"])
    reader.give(([A], "s"), ([B], "d"), ([C], "d"))
    assert reader.origins == "sd"


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("sdjc")), max_size=12))
def test_streams_and_wholes_agree(columns: list[tuple[int, str]]) -> None:
    expected, found = "", []
    for stream in (True, False):
        reader = Reader(stream=stream)
        expected = ""
        for count, origin in columns:
            count = count if origin in "jc" else 1
            reader.give(([A] * count, origin))
            expected += origin * count
        reader.end()
        found.append(reader.origins)
    assert found == [expected, expected]
