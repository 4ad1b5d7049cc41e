"""Notes, for the case that this process crashes, of whose constraint a thread follows: that may
crash outside of any step. Taken only after a loss, since each costs a little.
"""

from collections.abc import Callable

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.wrapped import Arguments, Result, WrappedGrammar
from srt.ring.blame_file import Notes


class NotedGrammar(WrappedGrammar):
    """A `Grammar` that passes every call on to another, with a note of the request `name`."""

    __slots__ = ("_note", "_notes")

    def __init__(self, grammar: Grammar, notes: Notes, note: bytes) -> None:
        super().__init__(grammar)
        self._notes, self._note = notes, note

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        with self._notes.of(self._note):
            return call(*arguments)

    _ask = _call

    def fork(self) -> "NotedGrammar":
        return NotedGrammar(super().fork(), self._notes, self._note)

    def for_drafts(self) -> "NotedGrammar":
        return self.fork()
