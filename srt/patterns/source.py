"""A pattern being read: the parser's cursor, with the escapes and counts that several rules share.

Every rejection goes through `PatternError` with the position of what is wrong.
"""

import unicodedata

from srt.patterns.errors import PatternError
from srt.patterns.ranges import (
    FIRST_SURROGATE,
    LAST_SURROGATE,
    MAX_CODE_POINT,
)

OCTAL_DIGITS = "01234567"
DIGITS = "0123456789"
HEX_DIGITS = "0123456789abcdefABCDEF"
MAX_REPEATS = 4_294_967_294  # Python's `re` takes the next number for "without end"

_SIMPLE_ESCAPES = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


class PatternSource:
    """The text of a pattern and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.pos : self.pos + 1]

    def take(self) -> str:
        """The next character, read; empty at the end."""
        char = self.text[self.pos : self.pos + 1]
        self.pos += 1
        return char

    def skip(self, expected: str) -> bool:
        """Read `expected` if it comes next."""
        if not self.text.startswith(expected, self.pos):
            return False
        self.pos += len(expected)
        return True

    def take_while(self, allowed: str, limit: int) -> str:
        """Up to `limit` characters out of `allowed`."""
        start = self.pos
        end = min(len(self.text), start + limit)
        while self.pos < end and self.text[self.pos] in allowed:
            self.pos += 1
        return self.text[start : self.pos]

    def take_until(self, terminator: str, what: str) -> str:
        """The text before `terminator`, which is read too."""
        start = self.pos
        end = self.text.find(terminator, start)
        if end < 0:
            raise PatternError(f"missing {terminator}, unterminated {what}", start)
        if end == start:
            raise PatternError(f"missing {what}", start)
        self.pos = end + len(terminator)
        return self.text[start:end]

    def skip_comment(self, terminator: str) -> bool:
        """Read up to and including `terminator`, or to the end; whether it was found.

        As in `re`, a backslash makes the character after it part of the comment.
        """
        while char := self.take():
            if char == terminator:
                return True
            if char == "\\" and not self.take():
                raise PatternError("bad escape (end of pattern)", len(self.text) - 1)
        return False

    def take_bounds(self) -> tuple[int, int | None] | None:
        """The rest of a counted repetition whose `{` is read, its `}` included.

        None, with nothing read, if this is not a repetition: then the brace is literal.
        """
        start = self.pos
        low = high = self.take_while(DIGITS, len(self.text))
        second = self.pos
        if self.skip(","):
            second = self.pos
            high = self.take_while(DIGITS, len(self.text))
        if self.pos == start or not self.skip("}"):
            self.pos = start
            return None
        lowest = _count(low, start) if low else 0
        highest = _count(high, second) if high else None
        if highest is not None and highest < lowest:
            raise PatternError("min repeat greater than max repeat", start)
        return lowest, highest

    def escaped_character(self, letter: str, start: int) -> int | None:
        """The code point of an escape that means one character in and outside sets.

        The backslash (at `start`) and `letter` are read. None if it is not such an escape.
        """
        if letter in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[letter]
        if letter in _HEX_LENGTHS:
            return self._hex(letter, start)
        if letter == "N":
            return self._named(start)
        if letter == "":
            raise PatternError("bad escape (end of pattern)", start)
        if letter.isascii() and letter.isalnum():
            return None
        return ord(letter)

    def bad_escape(self, start: int) -> PatternError:
        """The error for the escape from `start` to here."""
        return PatternError(f"bad escape {self.text[start : self.pos]}", start)

    def octal(self, digits: str, start: int) -> int:
        """The code point of an octal escape."""
        value = int(digits, 8)
        if value > 0o377:
            raise PatternError(f"octal escape \\{digits} outside of range 0-0o377", start)
        return value

    def _hex(self, letter: str, start: int) -> int:
        length = _HEX_LENGTHS[letter]
        digits = self.take_while(HEX_DIGITS, length)
        if len(digits) < length:
            raise PatternError(f"incomplete escape \\{letter}{digits}", start)
        if int(digits, 16) > MAX_CODE_POINT:
            raise PatternError(f"bad escape \\{letter}{digits}", start)
        return int(digits, 16)

    def _named(self, start: int) -> int:
        if not self.skip("{"):
            raise PatternError("missing {", self.pos)
        name = self.take_until("}", "character name")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):  # TypeError: the name of a sequence of characters
            raise PatternError(f"undefined character name {name!r}", start) from None


def _count(digits: str, position: int) -> int:
    if len(digits.lstrip("0")) > 10 or int(digits[-10:]) > MAX_REPEATS:
        raise PatternError("the repetition number is too large", position)
    return int(digits[-10:])


def is_surrogate(point: int) -> bool:
    """Whether UTF-8 cannot encode this code point."""
    return FIRST_SURROGATE <= point <= LAST_SURROGATE
