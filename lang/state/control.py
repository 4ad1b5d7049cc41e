"""`when`, `repeat` and `unordered`: what a program can leave to those who run it.

`when` and `repeat` decide in the state's own order, without the program's function; pieces that are
`unordered` may be put where most prompts share them.
"""

from collections.abc import Mapping, Sequence

from lang.errors import LangError
from lang.run.ir import Expr, ExprList, Part, Slots, num_bytes_of, placeholders_of
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.state.refs import Condition, Named, Ref


class When(Expr):
    """Performs one of two expressions. Variables of the other one raise when they are read."""

    def __init__(self, condition: Condition, then: Part, otherwise: Part) -> None:
        self.condition = condition
        self.then, self.otherwise = ExprList([then]), ExprList([otherwise])

    @property
    def names(self) -> tuple[str | None, ...]:
        return _named([self.then, self.otherwise])

    @property
    def num_bytes(self) -> int:
        return num_bytes_of([self.then, self.otherwise])

    @property
    def num_steps(self) -> int:
        return self.then.num_steps + self.otherwise.num_steps

    def bound(self, values: Mapping[int, Part]) -> Part:
        condition = _bound(self.condition, values)
        return When(condition, self.then.bound(values), self.otherwise.bound(values))

    @property
    def placeholders(self) -> frozenset[int]:
        return placeholders_of([self.condition.ref, self.then, self.otherwise])

    async def perform(self, stream: Stream, slots: Slots) -> None:
        condition = self.condition.in_state(stream.variables)
        first, is_so = stream.position.at, await condition.holds()
        condition.ref.waited_for_by(stream)
        chosen = self.then if is_so else self.otherwise
        mine = {slot.name: slot for slot in slots if slot.name in chosen.names}
        await chosen.perform_each(stream, first if is_so else first + self.then.num_steps, mine)
        for slot in slots:
            if slot.name not in mine:
                slot.done.set_exception(LangError(f"{slot.name!r} is of a way that was not taken"))


class Repeat(Expr):
    """Performs `part` again and again, until the condition holds after it. A variable in it is the
    last one's."""

    def __init__(self, part: Part, until: Condition, at_most: int) -> None:
        if at_most < 1:
            raise ValueError(f"at_most must be at least 1, not {at_most}")
        self.part, self.until, self.at_most = ExprList([part]), until, at_most

    @property
    def names(self) -> tuple[str | None, ...]:
        return _named([self.part])

    @property
    def num_bytes(self) -> int:
        return self.part.num_bytes

    @property
    def num_steps(self) -> int:
        return self.at_most * self.part.num_steps

    def bound(self, values: Mapping[int, Part]) -> Part:
        return Repeat(self.part.bound(values), _bound(self.until, values), self.at_most)

    @property
    def placeholders(self) -> frozenset[int]:
        return placeholders_of([self.until.ref, self.part])

    async def perform(self, stream: Stream, slots: Slots) -> None:
        first, now = stream.position.at, {}
        for i in range(self.at_most):
            now = {slot.name: Slot(slot.name) for slot in slots}
            await self.part.perform_each(stream, first + i * self.part.num_steps, now)
            if i + 1 < self.at_most:
                until = self.until.in_state({**stream.variables, **now})
                if await until.holds():
                    break
        for slot in slots:
            last = now[slot.name]
            slot.text, slot.meta = last.text, last.meta
            slot.settle(last.done.result())


class Unordered(Expr):
    """Pieces of text that may stand in any order: in that of `order`, else as they are given."""

    def __init__(
        self, pieces: Mapping[str, Part], separator: str, order: Sequence[str] = ()
    ) -> None:
        self.pieces = {name: ExprList([part]) for name, part in pieces.items()}
        self.separator = separator
        self.order = tuple(order) or tuple(pieces)

    @property
    def num_bytes(self) -> int:
        return num_bytes_of([*self.pieces.values()])

    def bound(self, values: Mapping[int, Part]) -> Part:
        pieces = {name: piece.bound(values) for name, piece in self.pieces.items()}
        return Unordered(pieces, self.separator, self.order)

    @property
    def placeholders(self) -> frozenset[int]:
        return placeholders_of(self.pieces.values())

    async def perform(self, stream: Stream, slots: Slots) -> None:
        for i, name in enumerate(self.order):
            stream.transcript.text += self.separator if i else ""
            await self.pieces[name].perform_each(stream, stream.position.at, {})


def var(name: str) -> Ref:
    """The variable of the state that uses it, for conditions: `repeat(..., until=var("x")...)`."""
    return Named(name)


def when(condition: Condition, then: Part, otherwise: Part = "") -> Expr:
    """`s += when(s.var("x").matches("yes"), " A", " B")`: one of the two, once it is known."""
    _check(condition)
    return When(condition, then, otherwise)


def repeat(part: Part, until: Condition, at_most: int) -> Expr:
    """`s += repeat(gen("step"), until=var("step").matches("Answer"), at_most=5)`."""
    _check(until)
    return Repeat(part, until, at_most)


def unordered(separator: str = "\n", **pieces: Part) -> Expr:
    """Pieces of a prompt whose order does not matter. A compiled batch puts those first that have
    the fewest values in it, so that more of the prompts is shared; else they stand as given. Raises
    TypeError for a piece that asks the model."""
    if len(pieces) < 2:
        raise ValueError("unordered: at least two pieces are expected")
    made = Unordered(pieces, separator)
    if any(piece.names or piece.num_steps for piece in made.pieces.values()):
        raise TypeError("unordered: a piece must be a text, without gens")
    return made


def _named(parts: Sequence[ExprList]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part.names if name is not None))


def _bound(condition: Condition, values: Mapping[int, Part]) -> Condition:
    ref = condition.ref.bound(values)
    assert isinstance(ref, Ref)
    return condition.on(ref)


def _check(condition: object) -> None:
    if not isinstance(condition, Condition):
        raise TypeError(f"a condition on a reference is expected, not {condition!r}")
