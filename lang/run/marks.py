"""Expressions inside text: the marks that stand for them in an f-string, and how they are found.

`str(expression)` is a mark with a random number of this process, so that no text from elsewhere has
one. A text cannot own its expressions, since joining texts makes plain ones: the last `MAX_KEPT`
expressions that were written into texts are kept, and as many of those that were used, up to
`MAX_USED_BYTES` of texts and images.
"""

import itertools
import os
import re
import threading
from collections import OrderedDict
from typing import Any, Protocol

from lang.errors import LangError

MAX_KEPT = 2**16
MAX_USED_BYTES = 2**28
_ORIGIN = str(int.from_bytes(os.urandom(8), "big"))
# `repr` and `ascii` of a text escape its private characters; such marks are found as well. Each
# backslash of a text is read once.
_MARK = re.compile(rf"(?:\ue0f0|(?<!\\)\\++ue0f0)\w+:{_ORIGIN}:([0-9]+)(?:\ue0f1|\\++ue0f1)")


class Marked(Protocol):
    """What this module needs of an expression."""

    @property
    def num_bytes(self) -> int: ...


class _Kept:
    """Expressions by number, in the order in which they were written, and in that of their use.

    No cache of cachetools: two bounds hold for those that were used, and `add` is called for each
    expression in an f-string, where such a cache takes three times as long.
    """

    def __init__(self) -> None:
        self._new: OrderedDict[int, Marked] = OrderedDict()
        self._used: OrderedDict[int, Marked] = OrderedDict()
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def begin_in_child(self) -> None:
        """From now on, marks of this process differ from its parent's."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._numbers = itertools.count(int.from_bytes(os.urandom(8), "big"))

    def add(self, expr: Marked) -> int:
        """Keep an expression that is written into a text; returns its number."""
        with self._lock:
            number = next(self._numbers)
            self._new[number] = expr
            if len(self._new) > MAX_KEPT:
                self._new.popitem(last=False)
            return number

    def use(self, number: int) -> Marked:
        """The expression of a mark. Raises LangError if it is not kept any more."""
        with self._lock:
            expr = self._new.pop(number, None)
            if expr is not None:
                self._used[number] = expr
                self._used_bytes += expr.num_bytes
            elif number not in self._used:
                reason = "too many others were written or used since, or it is another process's"
                raise LangError(f"an expression in a text is not kept: {reason}; write it again")
            self._used.move_to_end(number)
            expr = self._used[number]
            while len(self._used) > MAX_KEPT or self._used_bytes > MAX_USED_BYTES:
                if len(self._used) == 1:
                    break
                self._used_bytes -= self._used.popitem(last=False)[1].num_bytes
            return expr


_kept = _Kept()
os.register_at_fork(after_in_child=lambda: _kept.begin_in_child())


def mark_of(expr: Marked) -> str:
    """The mark that stands for `expr` in a text."""
    return f"\ue0f0{type(expr).__name__}:{_ORIGIN}:{_kept.add(expr)}\ue0f1"


def has_mark(text: str) -> bool:
    """Whether an expression was written into `text`."""
    return str.__contains__(text, _ORIGIN)  # also of a `Mark`, which refuses to be looked at


def refuse(**arguments: object) -> None:
    """Raise TypeError, which names the argument, for an expression as or inside a value."""
    for name, value in arguments.items():
        if has_mark(repr(value)):
            raise TypeError(f"{name} must not have an expression in it")


def split(text: str) -> list[Any]:
    """`text`, with the expressions in place of their marks. Raises LangError for one that is not
    kept any more, and for a part of a mark."""
    pieces: list[str | Marked] = []
    for i, piece in enumerate(_MARK.split(text)):
        if i % 2:
            pieces.append(_kept.use(int(piece)))
        elif has_mark(piece):
            raise LangError("a text has only a part of an expression: it was cut inside one")
        elif piece:
            pieces.append(piece)
    return pieces
