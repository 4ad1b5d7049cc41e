"""How many tokens of a prompt are its own: those after the beginning it shares with recent prompts.

The others are in the cache, or will be when their turn comes. The front and the scheduler both
count the requests between them in this way, in the same order, so their sums agree.
"""

from collections import deque

import numpy as np

from srt.wire.packing import num_packed, unpack_ids
from srt.wire.ring_messages import TokenizedReq

MOST = 32  # prompts that are remembered, such as documents and system prompts that alternate
HEAD_BYTES = 64  # of 16 ids: sharing fewer counts as sharing nothing


class RecentPrompts:
    """The last MOST prompts of an epoch."""

    def __init__(self) -> None:
        self._last: deque[tuple[str, bytes]] = deque(maxlen=MOST)

    def own_len(self, req: TokenizedReq) -> int:
        """How many tokens of `req` are its own, at least the last one. Its prompt is remembered."""
        data, own_salt, shared = req.input_ids, req.cache_salt, 0
        most = num_packed(data) - 1 if len(data) > HEAD_BYTES else 0
        for salt, other in reversed(self._last):
            if shared == most:
                break
            if salt == own_salt and other[:HEAD_BYTES] == data[:HEAD_BYTES]:
                shared = max(shared, _shared_len(data, other, most))
        self._last.append((own_salt, data))
        return num_packed(data) - shared


def _shared_len(data: bytes, other: bytes, most: int) -> int:
    """How many ids both have in common at the beginning, at most `most`."""
    length = min(most, num_packed(other))
    differ = np.flatnonzero(unpack_ids(data)[:length] != unpack_ids(other)[:length])
    return int(differ[0]) if len(differ) else length
