"""Truncation in tokens."""

from typing import Literal

import pytest

from srt.files.vocab import Vocab
from srt.programs.actor import cut_text
from srt.wire.programs import Truncate

TOKENS = [b" Hello", b" w", b"\xc3", b"\xbc", b"!"]


@pytest.mark.parametrize(
    ("keep", "count", "text"),
    [
        ("start", 0, ""),
        ("start", 1, "Hello"),
        ("start", 3, "Hello w"),  # not half of an ü
        ("start", 9, "Hello wü!"),
        ("end", 0, ""),
        ("end", 2, "!"),
        ("end", 4, " wü!"),
        ("end", 5, "Hello wü!"),
    ],
)
@pytest.mark.parametrize("space_prefix", [True, False])
def test_the_space_that_the_tokenizer_has_put_in_front_is_not_kept(
    keep: Literal["start", "end"], count: int, text: str, space_prefix: bool
) -> None:
    tokens = TOKENS if space_prefix else [b"Hello", *TOKENS[1:]]
    vocab = Vocab("m", tokens, frozenset(), (0,), None, False, 100, None, space_prefix=space_prefix)
    op = Truncate("x", tokens=count, keep=keep)
    assert cut_text(op, range(len(tokens)), vocab) == text
