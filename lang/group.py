"""The states of a fork, used as one, and their join."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lang.ir import Part
from lang.work import Join

if TYPE_CHECKING:
    from lang.state import ProgramState

GATHER_VARIABLE = "gather_variable"
CONCATE_AND_APPEND = "concate_and_append"


class ProgramStateGroup:
    """The states of a fork. `forks += x` extends all of them; `x` may be a list, or a function of
    the index."""

    def __init__(self, states: "Sequence[ProgramState]", source: "ProgramState") -> None:
        self._states = list(states)
        self._source = source

    def join(self, mode: str = GATHER_VARIABLE) -> None:
        """Bring what the forks made back to where they came from, without waiting for it.

        "gather_variable": every variable that a fork wrote becomes a list, in the forks' order,
        with None where a fork did not write it. "concate_and_append": their texts are appended,
        one after the other. A failed fork fails the state that it joins.
        """
        if mode not in (GATHER_VARIABLE, CONCATE_AND_APPEND):
            raise ValueError(
                f"mode must be {GATHER_VARIABLE} or {CONCATE_AND_APPEND}, not {mode!r}"
            )
        children = [state._interpreter for state in self._states]
        names = [name for child in children for name in child.new_names()]
        gathered = list(dict.fromkeys(names)) if mode == GATHER_VARIABLE else []
        texts = mode == CONCATE_AND_APPEND
        self._source._interpreter.submit(Join(children, gathered, texts))

    def __format__(self, spec: str) -> str:
        raise TypeError("the states of a fork are no text: use text() of each")

    def __getitem__(self, index: int) -> "ProgramState":
        return self._states[index]

    def __setitem__(self, index: int, value: "ProgramState") -> None:
        if self._states[index] is not value:  # `forks[i] += x` assigns what is there already
            raise TypeError("the states of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> "Iterator[ProgramState]":
        return iter(self._states)

    def __iadd__(self, other: Part | Sequence[Part] | Callable[[int], Part]) -> "ProgramStateGroup":
        if isinstance(other, list | tuple):
            if len(other) != len(self._states):
                raise ValueError(f"{len(self._states)} forks are not extended by {len(other)}")
            each: list[Any] = list(other)
        elif callable(other):
            each = [other(i) for i in range(len(self._states))]
        else:
            each = [other] * len(self._states)
        for state, part in zip(self._states, each, strict=True):
            state += part
        return self
