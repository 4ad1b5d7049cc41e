"""Expressions inside of text: what stands for one in an f-string, and is found again there.

`str(expression)` is a mark, which begins with a random number of this process, so that no text from
elsewhere has one. The last `MAX_KEPT` expressions that were written into texts are kept.
"""

import itertools
import os
import re
import threading
from typing import TYPE_CHECKING

from lang.errors import LangError

if TYPE_CHECKING:
    from lang.ir import Expr

MAX_KEPT = 4096
_ORIGIN = int.from_bytes(os.urandom(8), "big")
_MARK = re.compile(f"\ue0f0{_ORIGIN}:([0-9]+)\ue0f1")

_kept: "dict[int, Expr]" = {}
_numbers = itertools.count()
_lock = threading.Lock()


def mark_of(expr: "Expr") -> str:
    """What stands for `expr` in a text."""
    number = next(_numbers)
    with _lock:
        _kept[number] = expr
        if len(_kept) > MAX_KEPT:
            del _kept[next(iter(_kept))]
    return f"\ue0f0{_ORIGIN}:{number}\ue0f1"


def has_mark(text: str) -> bool:
    """Whether an expression was written into `text`."""
    return _MARK.search(text) is not None


def split(text: str) -> "list[str | Expr]":
    """`text`, with the expressions in place of their marks. Raises LangError for one that is not
    kept any more."""
    pieces: list[str | Expr] = []
    for i, piece in enumerate(_MARK.split(text)):
        if i % 2:
            expr = _kept.get(int(piece))
            if expr is None:
                raise LangError("this text has an expression that was written into it long ago")
            pieces.append(expr)
        elif piece:
            pieces.append(piece)
    return pieces
