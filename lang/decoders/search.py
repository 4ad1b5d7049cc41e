"""`Search`: runs of one function that differ in what its sampled gens answered.

Python cannot go back in a function, but it can run it again: a node is a log, and replaying it asks
no model. At the first sampled gen that the log does not answer, several answers are asked for; each
makes a child, whose log has it too. So `if` and `while` work as in any program.
"""

import contextlib
import math
from collections.abc import Collection
from typing import Any

from lang import loop
from lang.functions.prepared import Prepared, Runnable
from lang.logs.entries import Entry
from lang.logs.frontier import Frontier
from lang.logs.journal import Journal, Models
from lang.logs.log import Log
from lang.run.program import Place
from lang.state.state import ProgramState


class Node:
    """A run so far: up to its last sampled answer, `text`, which is the `depth`-th.

    `logprob` is the sum over the tokens of those answers, `num_tokens` their number. `log` has all
    that was asked. A run that has come to its end has `state`, and no children.
    """

    def __init__(
        self,
        search: "Search",
        prepared: Prepared,
        log: Log,
        entry: Entry | None,
        parent: "Node | None",
    ) -> None:
        self.log = log
        self.parent = parent
        self.state: ProgramState | None = None
        self._search, self._prepared = search, prepared
        self._models: Models = Models() if parent is None else parent._models
        completion = None if entry is None else entry.completions[0]
        rows = [] if completion is None else completion.meta.get("output_token_logprobs") or []
        values = [row[0] for row in rows if row[0] is not None]
        self.text = "" if completion is None else completion.text
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.logprob: float = math.fsum(values) + (0.0 if parent is None else parent.logprob)
        self.num_tokens: int = len(values) + (0 if parent is None else parent.num_tokens)

    @property
    def mean_logprob(self) -> float:
        """Of a token of the sampled answers; 0.0 if there is none."""
        return self.logprob / self.num_tokens if self.num_tokens else 0.0

    @property
    def is_over(self) -> bool:
        """Whether the program has come to its end here."""
        return self.state is not None

    def expand(self) -> "list[Node]":
        """Run the program up to its next sampled gen: a child for each of its answers, equal texts
        once. None if the program ends before; then `state` is its state, and `error()` of that
        what failed."""
        return loop.call(self.aexpand())

    async def aexpand(self) -> "list[Node]":
        """`expand` for programs with a loop."""
        if self.state is not None:
            return []
        log = self.log.copy()
        frontier = Frontier(self._search.width, self._search.names)
        run = self._prepared.run(
            Place(journal=Journal(log, frontier=frontier, models=self._models))
        )
        with contextlib.suppress(Exception):  # the run keeps it, and `error()` returns it
            await run.perform_beside()
        await run.rest(with_inner=True)
        if not frontier.entries:
            self.log, self.state = log, run.state
            return []
        return [self._child(log, entry) for entry in frontier.entries]

    def _child(self, log: Log, entry: Entry) -> "Node":
        grown = log.copy()
        grown.add(entry)
        return Node(self._search, self._prepared, grown, entry, self)

    def __repr__(self) -> str:
        over = ", over" if self.is_over else ""
        return f"Node({self.depth}, {self.text!r}, {self.mean_logprob:.3f}{over})"


class Search:
    """The tree of the runs of `function` in which each sampled gen has `width` answers.

    Gens of forks and of runs inside the function have one answer each, and so have those at
    temperature 0, with `n`, and, if there are `names`, those with other names. Effects of a node
    are not repeated below it.
    """

    def __init__(
        self, function: Runnable, width: int = 4, names: Collection[str] | None = None
    ) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        self.function, self.width = function, width
        self.names = None if names is None else frozenset(names)

    def root(
        self, *args: Any, backend: Any = None, timeout_s: float | None = None, **kwargs: Any
    ) -> Node:
        """The node at which nothing has been asked. Arguments are those of the function's `run`;
        `timeout_s` limits each expansion."""
        return self.root_of(self.function.prepared(args, kwargs, backend, timeout_s))

    def root_of(self, prepared: Prepared) -> Node:
        """The same of arguments that are taken apart."""
        return Node(self, prepared, Log(), None, None)
