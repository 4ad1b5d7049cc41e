"""Forks of a state, performed or recorded: `s.fork(n)`, and the group that it makes."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, Self, TypeVar

from lang.run.ir import Expr, Part
from lang.state.turns import Turns
from lang.state.unread import trace_error

GATHER_VARIABLE = "gather_variable"
CONCATE_AND_APPEND = "concate_and_append"

S = TypeVar("S", bound="Forking")


class Forking(Turns):
    """A state that can be extended and forked."""

    @abstractmethod
    def __getitem__(self, name: str) -> Any:
        """The variable's value, or what stands for it."""

    @abstractmethod
    def __setitem__(self, name: str, value: Any) -> None: ...

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value`."""
        self[name] = value

    @abstractmethod
    def _forked(self, size: int) -> list[Self]:
        """`size` states that continue from here."""

    @abstractmethod
    def _join(self, forks: Sequence[Self], mode: str) -> None:
        """Add what the forks have made; `mode` is one of the two that there are."""

    def fork(
        self, size: int = 1, position_ids_offset: Sequence[int] | None = None
    ) -> "ProgramStateGroup[Self]":
        """`size` states that continue from here at the same time.

        They are used together (`forks += ...`) or one by one (`forks[i]`), and `join`ed.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        if position_ids_offset is not None:
            raise ValueError("position_ids_offset is not supported: positions follow the text")
        return ProgramStateGroup(self._forked(size), self)

    @contextmanager
    def copy(self, position_ids_offset: Sequence[int] | None = None) -> Iterator[Self]:
        """`with s.copy() as t: ...`: a fork of one, joined at the end of the block.

        Its new variables come back as lists of one element.
        """
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()


class RecordedForking(Forking):
    """Stands for a state while its function is recorded; `advice` is for those that look at what
    only a run knows."""

    advice: str

    @abstractmethod
    def _extend(self, part: Part) -> None:
        """Record the text or expression."""

    def __iadd__(self, other: Part) -> Self:
        if not isinstance(other, str | Expr):
            raise TypeError(f"a state is extended by text or expressions, not {other!r}")
        self._extend(other)
        return self

    def __contains__(self, name: str) -> bool:
        raise trace_error(f"the program asks whether {name!r} is there already", self.advice)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise trace_error(f"the program uses {name!r} of its state", self.advice)


class ProgramStateGroup(Generic[S]):
    """The states of a fork. `forks += x` extends all of them; `x` may be a list, or a function of
    the index."""

    def __init__(self, states: Sequence[S], source: S) -> None:
        self._states = list(states)
        self._source = source

    def join(self, mode: str = GATHER_VARIABLE) -> None:
        """Add what the forks have made to the state they came from, without waiting for it.

        "gather_variable": every variable that a fork wrote becomes a list, in the forks' order,
        with None where a fork did not write it. "concate_and_append": their texts are appended,
        one after the other. A failed fork fails the state that it joins.
        """
        if mode not in (GATHER_VARIABLE, CONCATE_AND_APPEND):
            raise ValueError(
                f"mode must be {GATHER_VARIABLE} or {CONCATE_AND_APPEND}, not {mode!r}"
            )
        self._source._join(self._states, mode)

    def __format__(self, spec: str) -> str:
        raise TypeError("the states of a fork are not text: use text() of each")

    def __getitem__(self, index: int) -> S:
        return self._states[index]

    def __setitem__(self, index: int, value: S) -> None:
        if self._states[index] is not value:  # `forks[i] += x` assigns the state already there
            raise TypeError("the states of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    def __iadd__(self, other: Part | Sequence[Part] | Callable[[int], Part]) -> Self:
        for state, part in zip(self._states, self._for_each(other), strict=True):
            state += part
        return self

    def _for_each(self, other: Part | Sequence[Part] | Callable[[int], Part]) -> list[Any]:
        """What each is extended by. ValueError for a list of another length."""
        count = len(self._states)
        if isinstance(other, list | tuple):
            if len(other) != count:
                raise ValueError(f"{count} forks cannot be extended by {len(other)}")
            return list(other)
        return [other(i) for i in range(count)] if callable(other) else [other] * count
