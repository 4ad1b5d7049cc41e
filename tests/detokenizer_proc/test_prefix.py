"""Where a prompt leaves what is cached, as text."""

from detokenizer_proc.request import PREFIX_CHARS, with_prefix
from srt.wire.answer_meta import AnswerMeta, PrefixEnd, PrefixIds
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import ReqStart

PIECES = [b"ab", "é".encode(), "é".encode()[:1], "é".encode()[1:], b"x" * 30]


def end(length: int, prompt: list[int], other: list[int] | None = None) -> PrefixEnd | None:
    ids = PrefixIds(length, pack_ids(prompt), None if other is None else pack_ids(other))
    start = ReqStart(1, b"c", "r", AnswerMeta(prompt_tokens=9), prefix=ids)
    made = with_prefix(start, PIECES)
    assert made.prefix is None and made.meta.prompt_tokens == 9
    return made.meta.prefix


def test_characters_are_counted_not_bytes() -> None:
    assert end(2, [0, 1, 0]) == PrefixEnd(2, 3, "ab")
    assert end(0, [1, 0]) == PrefixEnd(0, 0, "éab")


def test_a_character_that_is_cut_comes_after_it() -> None:
    assert end(2, [0, 2, 3, 0]) == PrefixEnd(2, 2, "éab")


def test_the_text_is_short() -> None:
    assert end(1, [0, 4, 4, 4]) == PrefixEnd(1, 2, "x" * PREFIX_CHARS)


def test_what_else_is_cached_is_there_if_it_may_be() -> None:
    assert end(1, [0, 1], [4, 4]) == PrefixEnd(1, 2, "é", "x" * PREFIX_CHARS)
    assert end(1, [0, 1], []) == PrefixEnd(1, 2, "é", "")


def test_a_request_that_does_not_ask_is_as_it_was() -> None:
    start = ReqStart(1, b"c", "r", AnswerMeta())
    assert with_prefix(start, PIECES) is start
