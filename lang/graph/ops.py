"""What a recorded program consists of: steps on numbered states, in the order of the source.

State 0 is the function's own. Values that only a run has are placeholders: arguments, and the
variables that the program reads, each of which a `Read` gives its number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lang.run.ir import Part
from lang.state.refs import Ref


class Extend(NamedTuple):
    """State `state` is extended, by a part that is no list of others."""

    state: int
    part: Part
    source: str


class Fork(NamedTuple):
    """States continue from `state`."""

    state: int
    children: tuple[int, ...]


class Join(NamedTuple):
    """Forks are joined into `state`."""

    state: int
    children: tuple[int, ...]
    mode: str


class Write(NamedTuple):
    """A variable is set: to a value, or to what has placeholders in it."""

    state: int
    name: str
    value: Any


class Read(NamedTuple):
    """The variable `name` of `state` as it is then becomes placeholder `number`; all text of the
    state if there is no name. As `s[name]` it is the value, as `s.var(name)` the text."""

    state: int
    name: str | None
    number: int
    is_value: bool


class Inner(NamedTuple):
    """`function` runs inside this one, with a state of its own; `steps` are what it does.

    `options` are the arguments of its run that are not the function's.
    """

    state: int
    function: Any
    steps: "tuple[Op, ...]"
    options: Mapping[str, Any]


Op = Extend | Fork | Join | Write | Read | Inner


class Recorded(NamedTuple):
    """A recorded function. `arguments` are its placeholders' numbers, by parameter; `returned` has
    placeholders too. If it looked at what only a run knows, `stopped` says where: the steps are
    those before that."""

    ops: tuple[Op, ...]
    arguments: Mapping[str, int]
    returned: Any
    stopped: str


def flat(ops: Iterable[Op]) -> Iterator[Op]:
    """All steps, those of functions inside too, in order."""
    for op in ops:
        yield op
        if isinstance(op, Inner):
            yield from flat(op.steps)


def replaced(value: Any, of: Callable[[Ref], Any]) -> Any:
    """A value that a function returns, with what `of` gives for the references in it: in lists,
    tuples and dicts."""
    if isinstance(value, Ref):
        return of(value)
    if isinstance(value, list | tuple):
        made = [replaced(each, of) for each in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {key: replaced(each, of) for key, each in value.items()}
    return value


def refs_in(value: Any) -> list[Ref]:
    """The references in a value that a function returns."""
    found: list[Ref] = []
    replaced(value, found.append)
    return found
