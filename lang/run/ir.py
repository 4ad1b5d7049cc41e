"""What a program is made of: expressions, each of which knows how it changes a stream.

Expressions are immutable, can be joined with `+` and used in any number of states. Their arguments
are checked when they are made, so that mistakes show in the line that makes them.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

from lang.backends.base import Image
from lang.errors import CancelledError
from lang.run import marks
from lang.run.stream import Stream
from lang.run.variables import Slot

Slots = tuple[Slot, ...]
Rest = Coroutine[Any, Any, None]


class Expr:
    """A state can be extended by it. `names` are the variables that it writes."""

    def perform(self, stream: Stream, slots: Slots) -> Rest | None:
        """Change `stream` and settle `slots`, one for each of `names`. The part that must wait is
        the coroutine that this returns. What either of them raises becomes the stream's error."""

    async def perform_inside(self, stream: Stream, slots: Slots) -> None:
        """`perform`, to its end, for an expression that this one is in."""
        try:
            rest = self.perform(stream, slots)
            if rest is not None:
                await rest
        except Exception as error:
            stream.fail(error)
            raise
        finally:
            self.leave(stream, slots)

    def leave(self, stream: Stream, slots: Slots) -> None:
        """After `perform`, or instead of it if the stream has failed: end all waits for it."""
        for slot in slots:
            if not slot.done.done():
                lost = stream.failure or CancelledError("the value was never written")
                slot.done.set_exception(lost)

    def bound(self, values: "Mapping[int, Part]") -> "Part":
        """With these in the places of a recorded program's placeholders, by their numbers."""
        return self

    @property
    def placeholders(self) -> frozenset[int]:
        """The numbers of the placeholders in it."""
        return frozenset()

    def __add__(self, other: "str | Expr") -> "ExprList":
        return ExprList([self, other])

    def __radd__(self, other: str) -> "ExprList":
        return ExprList([other, self])

    def __str__(self) -> str:
        """For f-strings: a mark, in whose place the expression is put when the text is used."""
        return marks.mark_of(self)

    def __repr__(self) -> str:
        """The same, for `f"{expression!r}"` and for expressions in lists."""
        return marks.mark_of(self)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The variables it writes; None stands for a variable that gets a name of its own."""
        return ()

    @property
    def num_bytes(self) -> int:
        """The approximate size of its texts and images."""
        return 0

    @property
    def num_steps(self) -> int:
        """How many numbers it takes in the order of the source: one for each call of a model."""
        return 0


class Writer(Expr):
    """An expression that writes one variable, `name`."""

    name: str | None

    @property
    def names(self) -> tuple[str | None, ...]:
        return (self.name,)


Part = str | Expr


class ExprList(Expr):
    """Several expressions in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: list[Part] = []
        for part in parts:
            if not isinstance(part, str | Expr):
                raise TypeError(f"a state is extended by text or expressions, not {part!r}")
            for each in marks.split(part) if isinstance(part, str) else [part]:
                self.parts += each.parts if isinstance(each, ExprList) else [each]

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.parts)

    @property
    def num_steps(self) -> int:
        return num_steps_of(self.parts)

    @property
    def names(self) -> tuple[str | None, ...]:
        return tuple(name for each in self.parts if isinstance(each, Expr) for name in each.names)

    def bound(self, values: Mapping[int, Part]) -> Part:
        return ExprList([bound(each, values) for each in self.parts])

    @property
    def placeholders(self) -> frozenset[int]:
        return placeholders_of(self.parts)

    async def perform_each(self, stream: Stream, first: int, by_name: Mapping[str, Slot]) -> None:
        """Perform all parts for an expression that they are in, whose first number is `first`.
        Variables in `by_name` are its own."""
        for part in self.parts:
            each = Constant(part) if isinstance(part, str) else part
            stream.position.at = first
            slots = tuple(
                by_name.get(name or "") or stream.variables.declare(name) for name in each.names
            )
            await each.perform_inside(stream, slots)
            first += each.num_steps


class Constant(Expr):
    """Text that the program itself wrote."""

    def __init__(self, text: str) -> None:
        self.text = text

    def perform(self, stream: Stream, slots: Slots) -> None:
        stream.transcript.text += self.text


class RoleBegin(Expr):
    """Open a turn of the chat, as soon as the back end's template is known."""

    def __init__(self, role: str) -> None:
        self.role = role

    def perform(self, stream: Stream, slots: Slots) -> Rest | None:
        if stream.program.template is None:
            return self._with_template(stream)
        stream.begin_role(self.role)
        return None

    async def _with_template(self, stream: Stream) -> None:
        await stream.program.find_template()
        stream.begin_role(self.role)


class RoleEnd(Expr):
    """Close the turn of `role`."""

    def __init__(self, role: str) -> None:
        self.role = role

    def perform(self, stream: Stream, slots: Slots) -> None:
        stream.end_role(self.role)


class VarScopeBegin(Expr):
    """From here on, text belongs to the variable `name`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, stream: Stream, slots: Slots) -> None:
        stream.scopes[self.name] = len(stream.transcript.text)


class VarScopeEnd(Writer):
    """The variable `name` ends here."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, stream: Stream, slots: Slots) -> None:
        slots[0].settle(stream.transcript.text[stream.scopes.pop(self.name) :])


class Media(Expr):
    """An image or a video."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def perform(self, stream: Stream, slots: Slots) -> None:
        stream.add_image(self.image)

    @property
    def num_bytes(self) -> int:
        return len(self.image.data)


@singledispatch
def known_text(expr: Expr) -> str | None:
    """All that an expression appends, if that is known before it is performed and it neither begins
    nor ends a turn; else None."""
    return None


@known_text.register
def _(expr: Constant) -> str:
    return expr.text


@known_text.register(VarScopeBegin)
@known_text.register(VarScopeEnd)
def _(expr: Expr) -> str:
    return ""


def num_bytes_of(parts: Sequence[Part]) -> int:
    """The approximate size of all of them."""
    return sum(len(part) if isinstance(part, str) else part.num_bytes for part in parts)


def num_steps_of(parts: Sequence[Part]) -> int:
    """The numbers that all of them take."""
    return sum(0 if isinstance(part, str) else part.num_steps for part in parts)


def placeholders_of(parts: Iterable[Part]) -> frozenset[int]:
    """The placeholders in all of them."""
    found = (part.placeholders for part in parts if isinstance(part, Expr))
    return frozenset().union(*found)


def bound(part: Part, values: Mapping[int, Part]) -> Part:
    """`part.bound(values)`, of a text the text itself."""
    return part if isinstance(part, str) else part.bound(values)


def role_text(role: str, expr: Part | None = None) -> Expr:
    """`expr` as a turn of `role`; None only opens the role, as in `user_begin()`."""
    if expr is None:
        return RoleBegin(role)
    return ExprList([RoleBegin(role), expr, RoleEnd(role)])
