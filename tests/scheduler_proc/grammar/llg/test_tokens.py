"""The tokens that agree with forced bytes, compared with a search of the whole vocabulary."""

import pytest

from scheduler_proc.grammar.llg.tokens import tokens_of
from scheduler_proc.grammar.vocabulary import TokenVocabulary

PIECES = [b" ", b" a", b" ab", b"a", b"ab", b"ab", b"abc", b"b", b"\xff", b"\xff\xff", b"\xffa"]
VOCABULARY = TokenVocabulary.from_tokens([*PIECES, b"<eos>"], [], [len(PIECES)])


@pytest.mark.parametrize(
    "forced", [b" ", b"a", b"ab", b"abc", b"b ", b"\xff", b"\xfe", b"c", b"  "]
)
def test_tokens_that_agree_with_forced_bytes(forced: bytes) -> None:
    tokens = tokens_of(VOCABULARY)
    beyond = [i for i, data in enumerate(PIECES) if data.startswith(forced) and data != forced]
    within = [i for i, data in enumerate(PIECES) if forced.startswith(data)]
    assert sorted(tokens.beyond(forced)) == beyond
    assert sorted(tokens.within(forced)) == within
    assert tokens.num_beyond(forced) == len({PIECES[i] for i in beyond})
