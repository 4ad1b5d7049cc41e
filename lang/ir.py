"""The primitives of a program as plain data; the interpreter performs them.

Expressions are immutable, may be joined with `+` and used in any number of states. Whatever they
hold has been checked when they were made, so that mistakes show in the line that makes them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lang import marks
from lang.backends.base import Image
from lang.choices import ChoicesSamplingMethod

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""


class Expr:
    """Something that a state can be extended by. `names` are the variables that it writes."""

    def __add__(self, other: "str | Expr") -> "ExprList":
        return ExprList([self, other])

    def __radd__(self, other: str) -> "ExprList":
        return ExprList([other, self])

    def __str__(self) -> str:
        """For f-strings: whatever the text becomes a part of has this expression in its place."""
        return marks.mark_of(self)

    def __repr__(self) -> str:
        """The same, for `f"{expression!r}"` and for expressions in lists."""
        return marks.mark_of(self)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The variables it writes; None stands for one that gets a name of its own."""
        return ()

    @property
    def num_bytes(self) -> int:
        """What its texts and images take, about."""
        return 0


Part = str | Expr


class ExprList(Expr):
    """Several expressions, one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: list[Part] = []
        for part in parts:
            if not isinstance(part, str | Expr):
                raise TypeError(f"a state is extended by text or expressions, not {part!r}")
            for each in marks.split(part) if isinstance(part, str) else [part]:
                self.parts += each.parts if isinstance(each, ExprList) else [each]

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self.parts)


class Gen(Expr):
    """Let the model write. `given` are sampling arguments, `convert` makes the variable's value."""

    def __init__(
        self,
        name: str | None,
        given: dict[str, Any],
        dtype: type | None = None,
        convert: Callable[[str], Any] | None = None,
        named_groups: str | None = None,
    ) -> None:
        self.name = name
        self.given = given
        self.dtype = dtype
        self.convert = convert
        self.named_groups = named_groups

    @property
    def names(self) -> tuple[str | None, ...]:
        return (self.name,)


class Select(Expr):
    """Append the best of `choices`, by `method`; `given` are its temperature and time limit."""

    def __init__(
        self,
        name: str | None,
        choices: Sequence[str],
        given: dict[str, Any],
        method: ChoicesSamplingMethod,
    ) -> None:
        self.name = name
        self.choices = _texts("choices", choices)
        self.given = given
        self.method = method

    @property
    def names(self) -> tuple[str | None, ...]:
        return (self.name,)


class Score(Expr):
    """Write log-probabilities, or a distribution over `texts`, into a variable; append nothing."""

    def __init__(self, name: str | None, texts: Sequence[str], normalised: bool) -> None:
        self.name = name
        self.texts = _texts("choices" if normalised else "continuations", texts)
        self.normalised = normalised

    @property
    def names(self) -> tuple[str | None, ...]:
        return (self.name,)


class RoleBegin(Expr):
    """Open a turn of the chat."""

    def __init__(self, role: str) -> None:
        self.role = role


class RoleEnd(Expr):
    """Close the turn of `role`."""

    def __init__(self, role: str) -> None:
        self.role = role


class VarScopeBegin(Expr):
    """From here on, text belongs to the variable `name`."""

    def __init__(self, name: str) -> None:
        self.name = name


class VarScopeEnd(Expr):
    """The variable `name` ends here."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def names(self) -> tuple[str | None, ...]:
        return (self.name,)


class Media(Expr):
    """An image or a video."""

    def __init__(self, image: Image) -> None:
        self.image = image

    @property
    def num_bytes(self) -> int:
        return len(self.image.data)


class SeparateReasoning(Expr):
    """Perform `parts`; take the reasoning out of their gens, into `NAME_reasoning_content`."""

    def __init__(self, inner: Expr, opened: bool) -> None:
        self.parts = ExprList([inner]).parts
        self.opened = opened
        self.of = [each.name for each in self.parts if isinstance(each, Gen) and each.name]

    @property
    def names(self) -> tuple[str | None, ...]:
        return (*self.of, *(reasoning_name(name) for name in self.of))

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self.parts)


def _num_bytes(parts: Sequence[Part]) -> int:
    return sum(len(part) if isinstance(part, str) else part.num_bytes for part in parts)


def reasoning_name(name: str) -> str:
    """The variable that holds the reasoning of the gen `name`."""
    return f"{name}_reasoning_content"


def role_text(role: str, inner: Part | None) -> Expr:
    """`inner` as a turn of `role`; a role that is only opened if None (`user_begin()`)."""
    if inner is None:
        return RoleBegin(role)
    return ExprList([RoleBegin(role), inner, RoleEnd(role)])


def _texts(param: str, texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{param} must be a list of texts")
    if any(map(marks.has_mark, texts)):
        raise TypeError(f"{param} must be a list of texts without expressions in them")
    if not texts or not all(texts):
        raise ValueError(f"{param} must hold at least one text, and no empty one")
    return tuple(texts)
