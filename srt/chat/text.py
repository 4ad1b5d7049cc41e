"""Text that comes from a model, made safe for a terminal."""

import re

# All that moves the cursor or begins a sequence, but line ends and tabs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Cleaner:
    """Of one answer, which comes in pieces. Each control character becomes U+FFFD, so that a model
    cannot set the title, move the cursor, turn the direction of text or write to the clipboard; the
    end of a line is written in one way."""

    def __init__(self) -> None:
        self._after_return = False

    def of(self, piece: str) -> str:
        """The piece as it may be shown."""
        if self._after_return and piece.startswith("\n"):
            piece = piece[1:]
        if piece:
            self._after_return = piece.endswith("\r")
        lines = piece.replace("\r\n", "\n").replace("\r", "\n")
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", lines)
