"""Where in a program something was written: its file and line, for records and errors; and the
variables around a function."""

import linecache
import sys
from types import FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def caller() -> FrameType | None:
    """The innermost frame that is not the language's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != _PACKAGE and not name.startswith(f"{_PACKAGE}."):
            return frame
        frame = frame.f_back
    return None


def place_of_caller() -> str:
    """`file.py:12`; empty where there is no such frame."""
    frame = caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of_caller() -> str:
    """`line 12: `s += x`: `, for the beginning of an error's text."""
    frame = caller()
    if frame is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"line {frame.f_lineno}: " + (f"`{line}`: " if line else "")


def closed_over(function: Any) -> dict[str, Any]:
    """The variables of enclosing functions that a function uses. Raises ValueError for one that has
    no value yet."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False)}
