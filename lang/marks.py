"""Expressions inside of text: what stands for one in an f-string, and is found again there.

`str(expression)` is a mark, which holds a random number of this process, so that no text from
elsewhere has one. Of the expressions that were written into texts, the `MAX_KEPT` that were written
or used last are kept: a text cannot own its expressions, as joining texts makes plain ones.
"""

import itertools
import os
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from lang.errors import LangError

if TYPE_CHECKING:
    from lang.ir import Expr

MAX_KEPT = 2**16
_ORIGIN = int.from_bytes(os.urandom(8), "big")
# `repr` and `ascii` of a text escape its private characters; such a mark is found as well.
_MARK = re.compile(rf"(?:\ue0f0|\\+ue0f0)\w+:{_ORIGIN}:([0-9]+)(?:\ue0f1|\\+ue0f1)")

_kept: "OrderedDict[int, Expr]" = OrderedDict()
_numbers = itertools.count()
_lock = threading.Lock()


def mark_of(expr: "Expr") -> str:
    """What stands for `expr` in a text."""
    number = next(_numbers)
    with _lock:
        _kept[number] = expr
        if len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return f"\ue0f0{type(expr).__name__}:{_ORIGIN}:{number}\ue0f1"


def has_mark(text: str) -> bool:
    """Whether an expression was written into `text`."""
    return _MARK.search(text) is not None


def refuse(**arguments: object) -> None:
    """Raise TypeError, which names the argument, for an expression in or in place of a value."""
    for name, value in arguments.items():
        if has_mark(repr(value)):
            raise TypeError(f"{name} must not have an expression in it")


def split(text: str) -> "list[str | Expr]":
    """`text`, with the expressions in place of their marks. Raises LangError for one that is not
    kept any more."""
    pieces: list[str | Expr] = []
    for i, piece in enumerate(_MARK.split(text)):
        if i % 2:
            pieces.append(_used(int(piece)))
        elif piece:
            pieces.append(piece)
    return pieces


def _used(number: int) -> "Expr":
    with _lock:
        expr = _kept.get(number)
        if expr is None:
            reason = f"{MAX_KEPT} others were written or used since; write the text again"
            raise LangError(f"this text has an expression that was written long ago: {reason}")
        _kept.move_to_end(number)
        return expr
