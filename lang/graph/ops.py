"""What a recorded program consists of: steps on numbered states, in the order of the source.

State 0 is the function's own. Values that only a run has are placeholders: arguments, and the
variables that the program reads, each of which a `Read` gives its number.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lang.run.ir import Part
from lang.state.refs import Ref


class Extend(NamedTuple):
    """State `state` is extended."""

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


def refs_in(value: Any) -> list[Ref]:
    """The references in a value that a function returns: in lists, tuples and dicts."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, list | tuple):
        return [ref for each in value for ref in refs_in(each)]
    if isinstance(value, dict):
        return [ref for each in value.values() for ref in refs_in(each)]
    return []
