"""Follows JSON through text that arrives in pieces: where a value ends, and what is in a string.

Looks at quotes and brackets only; whether the text is valid JSON is left to a decoder.
"""

import re
from typing import NamedTuple

import msgspec

_MARK = re.compile(r'["\\{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_QUOTE = re.compile(r'\\.|\\|"|\n', re.S)


class Taken(NamedTuple):
    """What was read of a text: `length` characters, which stand for `json`, a piece of the
    arguments' JSON. `is_over`: the arguments end there."""

    length: int
    json: str
    is_over: bool


class ObjectEnd:
    """Finds the end of an object or array; fed from its first bracket on."""

    def __init__(self) -> None:
        self._in_string = False
        self._escaped = False
        self._depth = 0

    def feed(self, text: str) -> int:
        """The number of characters up to and including the end of the value; -1 if `text` does
        not reach it."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            mark = (_IN_STRING if self._in_string else _MARK).search(text, at)
            if mark is None:
                return -1
            at = mark.end()
            if self._closes(mark[0]):
                return at
        return -1

    def take(self, text: str) -> Taken:
        """The same, as the arguments of a call."""
        length = self.feed(text)
        taken = text if length < 0 else text[:length]
        return Taken(len(taken), taken, length >= 0)

    def _closes(self, mark: str) -> bool:
        """Read one mark; returns whether the value ends with it."""
        if mark == '"':
            self._in_string = not self._in_string
        elif mark == "\\":
            self._escaped = self._in_string
        else:
            self._depth += 1 if mark in "{[" else -1
            return self._depth <= 0
        return False


def is_object(text: str) -> bool:
    """Whether it is the JSON of an object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError):
        return False


class StringEnd:
    """Knows whether JSON text, fed from its start on, ends inside a string.

    No JSON string spans lines, so text that is not JSON is outside strings again after a line end.
    """

    def __init__(self) -> None:
        self.in_string = False
        self._escaped = False

    def feed(self, text: str) -> None:
        """Go on by `text`."""
        if not text:
            return
        start, self._escaped = int(self._escaped), False
        for match in _QUOTE.finditer(text, start):
            self.in_string = match[0] != "\n" and self.in_string ^ (match[0] == '"')
            self._escaped = match[0] == "\\"
