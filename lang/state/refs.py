"""`s.var("x")`: references to variables of running states, and what pure functions make of them.

Python goes on at once; the state that uses a reference waits for it in its own order. A reference
is to something that was submitted before it, so no two can wait for each other.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from lang import loop
from lang.errors import CancelledError, LangError, TraceError
from lang.run import marks
from lang.run.ir import Expr, ExprList, Part, Rest, Slots, known_text
from lang.run.program import Busy
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.state.unread import OpName, Unread, trace_error
from srt.wire.errors import RequestError

Leaf = Callable[["Ref"], "Ref | None"]


class Ref(Unread):
    """A text that a state uses as soon as it is there. What fails to make it fails that state.

    `inputs` are the references, and the texts, that it is made of.
    """

    advice = 's["name"] waits for the text'
    inputs: Sequence["Ref | str"] = ()

    @property
    def _refs(self) -> "list[Ref]":
        return [each for each in self.inputs if isinstance(each, Ref)]

    def is_ready(self) -> bool:
        """Whether `text` need not wait."""
        return all(each.is_ready() for each in self._refs)

    async def arrive(self) -> None:
        """Wait until it is ready."""
        for each in self._refs:
            await each.arrive()

    @abstractmethod
    def text(self) -> str:
        """The text, once it is ready. Raises why there is none."""

    def abandon(self) -> None:
        """Nobody needs it any more."""
        for each in self._refs:
            each.abandon()

    # ---- in a state ----------------------------------------------------------------------------

    def perform(self, stream: Stream, slots: Slots) -> Rest | None:
        if not self.is_ready():
            return self._later(stream)
        self._append_to(stream)
        return None

    async def _later(self, stream: Stream) -> None:
        await self.arrive()
        self._append_to(stream)

    def _append_to(self, stream: Stream) -> None:
        stream.transcript.text += self.text()
        self.waited_for_by(stream)

    def waited_for_by(self, stream: Stream) -> None:
        """The stream has waited for what made it."""
        for each in self._refs:
            each.waited_for_by(stream)

    # ---- replacing its leaves ------------------------------------------------------------------

    def replaced(self, leaf: Leaf) -> "Ref":
        """With what `leaf` gives for the references that it is made of, or is; None: the same."""
        found = leaf(self)
        if found is not None or not self.inputs:
            return self if found is None else found
        made = [each.replaced(leaf) if isinstance(each, Ref) else each for each in self.inputs]
        return self._of(made)

    def _of(self, inputs: "Sequence[Ref | str]") -> "Ref":
        """The same of other inputs."""
        raise NotImplementedError

    def bound(self, values: Mapping[int, Part]) -> Part:
        def leaf(ref: Ref) -> Ref | None:
            return ref_of(values[ref.number]) if isinstance(ref, Placeholder) else None

        return self.replaced(leaf)

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset().union(*(each.placeholders for each in self._refs))

    # ---- what is made of it --------------------------------------------------------------------

    def otherwise(self, text: str) -> "Ref":
        return _Otherwise([self], text)

    def matches(self, pattern: str) -> "Condition":
        """The condition that a pattern is found in it, for `when` and `repeat`."""
        return Condition(self, {"matches": pattern})

    def equals(self, text: str) -> "Condition":
        """The condition that it is this text."""
        return Condition(self, {"equals": text})

    def non_empty(self) -> "Condition":
        """The condition that it is not empty."""
        return Condition(self, {"non_empty": True})

    def _made(self, op: OpName, inputs: "list[Any]", **fields: Any) -> "Ref":
        return _Made(op, inputs, fields)

    def _first(self, others: "list[Any]") -> "Ref":
        return _First(others)

    def __add__(self, other: Part) -> Any:
        if isinstance(other, Ref) or (isinstance(other, str) and not marks.has_mark(other)):
            return _Made("concat", [self, other], {"separator": ""})
        return ExprList([self, other])

    def __radd__(self, other: str) -> Any:
        if marks.has_mark(other):
            return ExprList([other, self])
        return _Made("concat", [other, self], {"separator": ""})


@known_text.register
def _(ref: Ref) -> str | None:
    with suppress(Exception):  # what it raises, it raises when it is performed
        return ref.text() if ref.is_ready() else None
    return None


class Variable(Ref):
    """A variable that `writer`, which nothing else needs if it loses a race, was given to write. As
    a value it stands for what Python would make of that, not for the text that was written."""

    def __init__(self, slot: Slot, writer: Busy | None, *, is_value: bool = False) -> None:
        self.name = slot.name
        self.slot, self._writer, self._is_value = slot, writer, is_value

    def is_ready(self) -> bool:
        return self.slot.done.done()

    async def arrive(self) -> None:
        await loop.arrival(self.slot.done)

    def waited_for_by(self, stream: Stream) -> None:
        stream.waits.also(self.slot.after)

    @property
    def value(self) -> Any:
        """The variable's value, once it is ready. Raises why there is none."""
        return self.slot.done.result()

    def text(self) -> str:
        if self._is_value:  # what an f-string makes of it
            return str(self.value)
        return _text_of_value(self.name, self.value, self.slot.text)

    def abandon(self) -> None:
        writer = self._writer
        if writer is not None and not self.is_ready():
            error = CancelledError(f"another text than {self.name!r} came first")
            loop.soon(lambda: writer.cancel(error))


class Known(Ref):
    """A value that is there, in the place of a reference."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def text(self) -> str:
        return str(self.value)


class Named(Ref):
    """The variable of this name, of the state that uses it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def text(self) -> str:
        raise LangError(f"{self.name!r} is named outside of a condition of when and repeat")


class Placeholder(Ref):
    """Stands in a recorded program for what a run will have: an argument, or a variable."""

    advice = "only a run knows it"

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.number])

    def text(self) -> str:
        raise LangError(f"{self.name!r} is of a recorded program: only its runs have it")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self.refuse()


class _Made(Ref):
    """What a pure function makes of texts: the functions of programs on a server."""

    def __init__(
        self, op: OpName, inputs: Sequence["Ref | str"], fields: dict[str, Any], made: Any = None
    ) -> None:
        from lang.state.text_functions import op_of

        self.inputs = inputs
        self.name = f"{self._refs[0].name}.{op}"
        self._function, self._fields = op, fields
        self._op = made or op_of(op, [str(i) for i in range(len(inputs))], fields)

    def _of(self, inputs: "Sequence[Ref | str]") -> Ref:
        return _Made(self._function, inputs, self._fields, self._op)

    def text(self) -> str:
        from srt.programs.transforms import apply

        texts = [each.text() if isinstance(each, Ref) else each for each in self.inputs]
        try:
            return apply(self._op, {str(i): text for i, text in enumerate(texts)})
        except RequestError as error:
            raise LangError(f"{self.name}: {error}") from error


class _First(Ref):
    """A race of references: those that lose are abandoned, those that fail are not in it."""

    inputs: Sequence[Ref]

    def __init__(self, inputs: Sequence[Ref]) -> None:
        self.name = " or ".join(each.name for each in inputs)
        self.inputs = inputs
        self._text: str | None = None

    def _of(self, inputs: "Sequence[Ref | str]") -> Ref:
        return _First([ref_of(each) for each in inputs])

    def is_ready(self) -> bool:
        return self._won() or super().is_ready()

    async def arrive(self) -> None:
        running = {asyncio.ensure_future(each.arrive()) for each in self.inputs}
        try:
            while running and not self.is_ready():
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in running:
                task.cancel()

    def text(self) -> str:
        if not self._won():
            return self.inputs[0].text()  # which raises
        assert self._text is not None
        return self._text

    def _won(self) -> bool:
        if self._text is None:
            for each in self.inputs:
                self._text = _text_if_there(each)
                if self._text is not None:
                    for other in self.inputs:
                        if other is not each:
                            other.abandon()
                    return True
        return self._text is not None


class _Otherwise(Ref):
    """A reference, and the text in its place if it fails."""

    inputs: Sequence[Ref]

    def __init__(self, inputs: Sequence[Ref], text: str) -> None:
        self.inputs, self._text = inputs, text
        self.name = inputs[0].name

    def _of(self, inputs: "Sequence[Ref | str]") -> Ref:
        return _Otherwise([ref_of(each) for each in inputs], self._text)

    def text(self) -> str:
        text = _text_if_there(self.inputs[0])
        return self._text if text is None else text


class Condition:
    """Whether a text equals another, a pattern is found in it, or it is not empty; `~` makes the
    opposite."""

    def __init__(self, ref: Ref, fields: dict[str, Any], negate: bool = False) -> None:
        from lang.state.text_functions import guard_of

        self.ref = ref
        self._fields, self._negate = fields, negate
        self._guard = guard_of(fields, negate)

    async def holds(self) -> bool:
        """Wait for the text; whether the condition holds. Raises why there is no text."""
        from srt.programs.transforms import holds

        await self.ref.arrive()
        try:
            return holds(self._guard, self.ref.text())
        except RequestError as error:
            raise LangError(f"{self!r}: {error}") from error

    def on(self, ref: Ref) -> "Condition":
        """The same condition on another text."""
        return Condition(ref, self._fields, self._negate)

    def in_state(self, variables: Mapping[str, Slot]) -> "Condition":
        """The same with names as a state's variables. Raises KeyError for one that it lacks."""

        def leaf(ref: Ref) -> Ref | None:
            return Variable(variables[ref.name], None) if isinstance(ref, Named) else None

        return self.on(self.ref.replaced(leaf))

    def __invert__(self) -> "Condition":
        return Condition(self.ref, self._fields, not self._negate)

    def __repr__(self) -> str:
        what = " ".join(f"{key} {value!r}" for key, value in self._fields.items())
        return f"{self.ref.name} {'not ' if self._negate else ''}{what}"

    def __bool__(self) -> NoReturn:
        advice = "use when and repeat, and ~ for the opposite"
        raise trace_error(f"the program decides by {self!r}, which is not known yet", advice)


def ref_of(part: Any) -> Ref:
    """A reference, or a value in the place of one."""
    return part if isinstance(part, Ref) else Known("value", part)


def refuse_unread(*values: object) -> None:
    """Raise TraceError for a reference among these, TypeError for another expression: who gets it
    could not use it."""
    for value in values:
        if isinstance(value, Unread):
            value.refuse()
        if isinstance(value, Expr):
            raise TypeError("an argument is an expression: only states can use it")


def _text_of_value(name: str, value: Any, written: str) -> str:
    if isinstance(value, str):
        return value
    if written:  # by the model, as a value of some type
        return written
    if isinstance(value, int | float):
        return str(value)
    raise TypeError(f"{name!r} is not a text but {type(value).__name__}")


def _text_if_there(ref: Ref) -> str | None:
    if not ref.is_ready():
        return None
    try:
        return ref.text()
    except TraceError:
        raise
    except Exception:
        return None
