"""Truncation in tokens."""

from collections.abc import Sequence

from srt.files.vocab import Vocab
from srt.wire.programs import Truncate


def cut_text(op: Truncate, ids: Sequence[int], vocab: Vocab) -> str:
    """The text of the tokens that `op` leaves of `ids`, which are those of a whole text, without
    characters that are cut in two."""
    most = op.tokens or 0
    kept = ids[:most] if op.keep == "start" else ids[max(0, len(ids) - most) :]
    text = b"".join(vocab.token_bytes[i] for i in kept).decode("utf-8", errors="ignore")
    has_start = op.keep == "start" or len(kept) == len(ids)
    return text.removeprefix(" ") if vocab.space_prefix and has_start else text
