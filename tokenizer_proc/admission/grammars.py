"""The compiled grammars that the front knows: those that are ready, and what they were made from.

A request whose grammar is in the ring's directory does not need the compiler. Grammars may be
removed from there at any time: the scheduler, which reads them, reports it, and then the compiler
is asked for the same constraint again.
"""

import os

from cachetools import LRUCache
from msgspec.structs import replace

from srt.ring.places import Ring
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.errors import BAD_REQUEST, ErrorInfo

MAX_KNOWN_CHARS = 16 * 2**20
ENTRY_CHARS = 1024  # what each counts besides its source, about as much as it takes


class GrammarFinder:
    """Finds the grammars of constraints in a ring's directory."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._naming = ring.read_naming()

    def refresh(self) -> None:
        """The compiler has started, perhaps with another naming."""
        self._naming = self._ring.read_naming()

    def __call__(self, constraint: Constraint) -> str:
        """The key of a constraint's grammar if that is ready, which then counts as used now; else
        ""."""
        if not self._naming:
            self.refresh()
        key = artefact_key(constraint, self._naming)
        try:
            os.utime(self._ring.grammars / key)
        except OSError:
            return ""
        return key


def known_grammars() -> LRUCache[str, Constraint]:
    """A store for the constraints of grammars, by key, that forgets the least recently used."""
    return LRUCache(MAX_KNOWN_CHARS, getsizeof=_num_chars)


def _num_chars(constraint: Constraint) -> int:
    return min(len(constraint.source) + ENTRY_CHARS, MAX_KNOWN_CHARS)


def compile_error(error: ErrorInfo, constraint: Constraint) -> ErrorInfo:
    """The compiler's error, naming the field if it is the constraint that is wrong."""
    if error.code != BAD_REQUEST:
        return error
    return replace(error, reason=f": {error.reason}", param=constraint.kind, follows_param=True)
