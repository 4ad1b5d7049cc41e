"""Byte classes: bytes that no edge tells apart are one symbol of the automaton.

Between here and the finished DFA, edges carry sets of symbols: integers with bit c for class c.
"""

from collections.abc import Iterable

import numpy as np

_ALL_BYTES = (1 << 256) - 1


class Alphabet:
    """The coarsest classes that `masks` (sets of bytes, as bits) are unions of.

    `byte_class` is uint8 [256]; classes are numbered by their first byte. Bytes in `absent` do
    not occur: they are in no symbol set.
    """

    def __init__(self, masks: Iterable[int], absent: bytes = b"") -> None:
        self._present = _ALL_BYTES & ~sum(1 << byte for byte in set(absent))
        distinct = sorted({mask & self._present for mask in masks} | {self._present})
        rows = np.frombuffer(b"".join(mask.to_bytes(32, "little") for mask in distinct), np.uint8)
        bits = np.unpackbits(rows.reshape(-1, 32), axis=1, bitorder="little")  # [masks, 256]
        classes: dict[bytes, int] = {}
        columns = np.ascontiguousarray(bits.T)
        members = [classes.setdefault(column.tobytes(), len(classes)) for column in columns]
        self.byte_class = np.array(members, np.uint8)
        self.num_classes = len(classes)
        firsts = [members.index(symbol) for symbol in range(self.num_classes)]
        packed = np.packbits(bits[:, firsts], axis=1, bitorder="little")
        self._symbols = {
            mask: int.from_bytes(row.tobytes(), "little")
            for mask, row in zip(distinct, packed, strict=True)
        }

    def symbols(self, mask: int) -> int:
        """The symbols of a set of bytes, one of those that the alphabet was made for."""
        return self._symbols[mask & self._present]

    @property
    def everything(self) -> int:
        """All symbols whose bytes occur."""
        return self._symbols[self._present]
