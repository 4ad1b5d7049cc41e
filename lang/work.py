"""What an interpreter's queue holds: expressions, and the variables that they will settle."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from lang.ir import Expr, Part

if TYPE_CHECKING:
    from lang.interpreter import Interpreter


class Slot:
    """A variable: settled once, with a value or an error. `text` grows while it streams."""

    __slots__ = ("done", "meta", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.meta: dict[str, Any] | None = None
        self.done: Future[Any] = Future()


class Barrier(Expr):
    """Passes when everything before it has been performed or skipped."""


class Fork(Expr):
    """Open the children, all with this state's text."""

    def __init__(self, children: Sequence["Interpreter"]) -> None:
        self.children = children


class Join(Expr):
    """Wait for the children and gather what they have made: variables, or their texts."""

    def __init__(
        self, children: Sequence["Interpreter"], gathered: Sequence[str], texts: bool
    ) -> None:
        self.children = children
        self.gathered = tuple(gathered)
        self.texts = texts

    @property
    def names(self) -> tuple[str | None, ...]:
        return self.gathered


class Primitive(NamedTuple):
    """A submitted expression and the variables that it settles, by name."""

    expr: Part
    slots: tuple[Slot, ...] = ()
