"""The compiled grammars that the front knows: those that are ready, and what they were made from.

A request whose grammar is in the ring's directory does not need the compiler. Grammars may be
removed from there at any time: the scheduler, which reads them, reports it, and then the compiler
is asked for the same constraint again.
"""

import os
from collections import OrderedDict

from msgspec.structs import replace

from srt.ring.places import Ring
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.errors import BAD_REQUEST, ErrorInfo

MAX_KNOWN = 4096
MAX_KNOWN_CHARS = 16 * 2**20


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


class KnownGrammars:
    """The constraints of recently used grammars, by key; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._constraints: OrderedDict[str, Constraint] = OrderedDict()
        self._num_chars = 0

    def __len__(self) -> int:
        return len(self._constraints)

    def get(self, key: str) -> Constraint | None:
        return self._constraints.get(key)

    def add(self, key: str, constraint: Constraint) -> None:
        """Add a grammar, which counts as used now."""
        self._num_chars += len(constraint.source)
        replaced = self._constraints.pop(key, None)
        if replaced is not None:
            self._num_chars -= len(replaced.source)
        self._constraints[key] = constraint
        while len(self._constraints) > MAX_KNOWN or self._num_chars > MAX_KNOWN_CHARS:
            _, forgotten = self._constraints.popitem(last=False)
            self._num_chars -= len(forgotten.source)


def compile_error(error: ErrorInfo, constraint: Constraint) -> ErrorInfo:
    """The compiler's error, naming the field, or the path in it, if it is the constraint that is
    wrong."""
    if error.code != BAD_REQUEST:
        return error
    param = constraint.kind if error.param is None else f"{constraint.kind}.{error.param}"
    return replace(error, reason=f": {error.reason}", param=param, follows_param=True)
