"""What all texts that are not there yet have in common: pure functions of them, and what cannot be
done with them because it would have to wait."""

import contextvars
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar

from lang.errors import TraceError
from lang.run import marks
from lang.run.ir import Expr
from lang.run.source import line_of_caller

OpName = Literal["concat", "format", "strip", "split", "json", "match"]


class Unread(Expr):
    """A text that is not there yet. It may stand in any text and state, and pure functions make
    others of it; `if`, `==`, `in`, `len`, `int`, iteration and its use as a key raise TraceError.
    """

    name: str
    advice: str

    # ---- what is made of it --------------------------------------------------------------------

    def strip(self, chars: str | None = None) -> Self:
        """Without blanks, or these characters, at both ends."""
        return self._made("strip", [self], chars=chars)

    def split(self, separator: str) -> "Pieces[Self]":
        """`ref.split(",")[0]`: one of the pieces between the separators."""
        return Pieces(self, separator)

    def json(self, pointer: str) -> Self:
        """What a JSON pointer (RFC 6901) names in it: a string as its text, all else as JSON."""
        return self._made("json", [self], pointer=pointer)

    def match(self, pattern: str, group: str = "") -> Self:
        """The first match of a pattern, or of its named group, found in linear time."""
        return self._made("match", [self], pattern=pattern, group=group)

    @abstractmethod
    def otherwise(self, text: str) -> Self:
        """The same, or `text` if it has none: because it failed."""

    @abstractmethod
    def _made(self, op: OpName, inputs: "list[Any]", **fields: Any) -> Self:
        """What a function makes of these inputs, which are of this kind, or texts."""

    @abstractmethod
    def _first(self, others: "list[Any]") -> Self:
        """The first of these that has a text."""

    # ---- what cannot be known yet --------------------------------------------------------------

    def refuse(self) -> NoReturn:
        """The program looks at a text that is not there."""
        raise trace_error(
            f"the program looks at {self.name!r}, which need not be there yet", self.advice
        )

    def __str__(self) -> str:
        """A mark, which may be put into texts, but not looked at either."""
        return Mark(marks.mark_of(self), self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        self.refuse()

    def _refuse(self, *args: object) -> NoReturn:
        self.refuse()

    # Unlike `str`: how a text is quoted, as in a list's text, depends on what it says.
    __repr__ = _refuse
    __bool__ = __hash__ = __len__ = __int__ = __float__ = __index__ = _refuse
    __contains__ = __getitem__ = __iter__ = _refuse


class Mark(str):
    """What `str` makes of a text that is not there: what looks at it raises TraceError. It may be
    added to texts, joined with them, and stand in f-strings."""

    ref: Unread

    def __new__(cls, text: str, ref: Unread) -> "Mark":
        made = super().__new__(cls, text)
        made.ref = ref
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in _LOOKS:
            self.ref.refuse()
        return super().__getattribute__(name)


def _refuse(self: Mark, *args: object) -> NoReturn:
    self.ref.refuse()


_LOOKS = frozenset(name for name in dir(str) if not name.startswith("__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "len", "contains", "getitem", "iter", "hash"):
    setattr(Mark, f"__{_name}__", _refuse)

U = TypeVar("U", bound=Unread)

on_trace_error: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "on_trace_error", default=None
)


class Pieces(Generic[U]):
    """What a text was split into."""

    def __init__(self, ref: U, separator: str) -> None:
        self._ref, self._separator = ref, separator

    def __getitem__(self, index: int) -> U:
        return self._ref._made("split", [self._ref], separator=self._separator, index=index)

    def __iter__(self) -> Iterator[U]:
        self._ref.refuse()


def trace_error(what: str, advice: str) -> TraceError:
    """An error with the line of the program that caused it. Who records learns of it even if the
    program catches it."""
    error = TraceError(f"{line_of_caller()}{what}: {advice}")
    if (stop := on_trace_error.get()) is not None:
        stop(str(error))
    return error


# ---- functions of several ------------------------------------------------------------------------


def concat(parts: Iterable[Any], separator: str = "") -> Any:
    """The texts of several references, joined; texts may be among them."""
    inputs, kind = _inputs(parts)
    return kind._made("concat", inputs, separator=separator)


def first(parts: Iterable[Any]) -> Any:
    """The text of the reference that has one first. The states of a run that were to write the
    others are ended."""
    inputs, kind = _inputs(parts)
    if not all(isinstance(each, Unread) for each in inputs):
        raise TypeError("first: a list of references is expected")
    return kind._first(inputs)


def formatted(template: str, **parts: Any) -> Any:
    """`template` with references, or texts, in the places `{name}`."""
    inputs, kind = _inputs(parts.values())
    return kind._made("format", inputs, template=template, names=[*parts])


def _inputs(parts: Iterable[Any]) -> tuple[list[Any], Unread]:
    if isinstance(parts, Unread):
        parts.refuse()
    inputs = list(parts)
    kinds = [each for each in inputs if isinstance(each, Unread)]
    marks.refuse(parts=[each for each in inputs if isinstance(each, str)])
    if not kinds or not all(isinstance(each, str | _kind_of(kinds[0])) for each in inputs):
        raise TypeError("references of one kind, and texts, are expected; at least one reference")
    return inputs, kinds[0]


def _kind_of(each: Unread) -> type[Unread]:
    """Those that it can be combined with: whatever was made of its variables."""
    return next(kind for kind in type(each).__mro__ if Unread in kind.__bases__)
