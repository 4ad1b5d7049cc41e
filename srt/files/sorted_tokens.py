"""A vocabulary's tokens in the order of their bytes: finds those that begin with given bytes.

Used where text is cut into tokens at a place that the tokenizer did not choose: by the front at the
end of a prompt, by the scheduler at the end of forced text.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence

import numpy as np

_ABOVE_ALL = b"\xff" * 8  # no token continues with these bytes, which UTF-8 does not have


class SortedTokens:
    """The tokens that have bytes and are not `hidden`; special and EOS tokens should be hidden."""

    def __init__(self, token_bytes: Sequence[bytes], hidden: Collection[int]) -> None:
        ids = [i for i, data in enumerate(token_bytes) if data and i not in hidden]
        ids.sort(key=token_bytes.__getitem__)
        self._bytes = [token_bytes[i] for i in ids]
        self._ids = np.array(ids, np.int64)

    def starting(self, prefix: bytes) -> np.ndarray:
        """Ids (int64 [n]) of the tokens that begin with `prefix`, in the order of their bytes."""
        first = bisect_left(self._bytes, prefix)
        return self._ids[first : bisect_left(self._bytes, prefix + _ABOVE_ALL, first)]

    def longer(self, prefix: bytes) -> np.ndarray:
        """Ids (int64 [n]) of the tokens that begin with `prefix` and go on."""
        first = bisect_left(self._bytes, prefix + b"\x00")
        return self._ids[first : bisect_left(self._bytes, prefix + _ABOVE_ALL, first)]
