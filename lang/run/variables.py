"""The variables of a state: each is declared when what writes it is submitted, and settled once."""

from concurrent.futures import Future
from typing import Any

from lang.logs.reports.waits import NO_CALLS, Waits
from srt import forked


class Slot:
    """A variable: settled once, with a value or an error. `text` grows while it streams. What made
    it had `waits`, which `after` has of when it was settled."""

    __slots__ = ("_waits", "after", "done", "meta", "name", "text")

    def __init__(self, name: str, waits: Waits | None = None) -> None:
        self.name = name
        self._waits, self.after = waits, NO_CALLS
        self.text = ""
        self.meta: dict[str, Any] | None = None
        self.done: Future[Any] = Future()

    def settle(self, value: Any) -> None:
        """Give the variable its value."""
        self.text = value if isinstance(value, str) else self.text
        if self._waits is not None:
            self.after = self._waits.calls
        self.done.set_result(value)

    def begin_in_child(self, lost: BaseException | None) -> None:
        """In a child of a fork: it can be read there, and raises `lost` if it has no value yet."""
        forked.unlock(self.done)
        if lost is not None and not self.done.done():
            self.done = Future()
            self.done.set_exception(lost)


class Variables(dict[str, Slot]):
    """A state's variables by name, of which the first are its parent's."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits
        self._inherited: frozenset[Slot] = frozenset()
        self._num_unnamed = 0

    def declare(self, name: str | None) -> Slot:
        """A variable that will be written; without a name it gets one that programs cannot use."""
        if name is None:
            self._num_unnamed += 1
            name = f"<{self._num_unnamed}>"
        slot = self[name] = Slot(name, self._waits)
        return slot

    def inherit(self, parent: "Variables") -> None:
        """Begin with the variables that `parent` has declared so far."""
        self.update(parent)
        self._inherited = frozenset(self.values())
        self._num_unnamed = parent._num_unnamed

    def has_inherited(self, slot: Slot) -> bool:
        """Whether the variable is the parent's."""
        return slot in self._inherited

    def new_names(self) -> list[str]:
        """The named variables that were not inherited."""
        return [
            name for name, slot in self.items() if not self.has_inherited(slot) and name[:1] != "<"
        ]
