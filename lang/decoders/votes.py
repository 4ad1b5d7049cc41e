"""`best_of` and `vote`: several runs of a program side by side, of which one decides."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lang import loop
from lang.decoders.decoder import Decoder
from lang.decoders.outcome import Outcome
from lang.errors import ProgramError
from lang.functions.prepared import Prepared, Runnable
from lang.functions.runs import Run
from lang.state.state import ProgramState

StopWhen = Callable[[Mapping[Any, int], int], bool]


def decided(counts: Mapping[Any, int], left: int) -> bool:
    """Whether no other value can reach the first one's count by the `left` votes that are left."""
    first, second = [*sorted(counts.values(), reverse=True), 0, 0][:2]
    return first > second + left


class Vote(NamedTuple):
    """`value` has the most of `counts`; of equal ones it is the first row's. `states` has a state
    for each row, None for one that was ended before it had voted."""

    value: Any
    counts: dict[Any, int]
    states: list[ProgramState | None]


async def _best(prepared: Prepared, n: int, score: Callable[[ProgramState], float]) -> ProgramState:
    async def scored(run: Run) -> float | None:
        await _over(run)
        if run.state.error() is not None:
            return None
        return await asyncio.to_thread(score, run.state)

    runs = [prepared.row(i).run() for i in range(n)]
    scores = await asyncio.gather(*map(scored, runs))
    found = [(value, -i) for i, value in enumerate(scores) if value is not None]
    if not found:
        raise _all_failed(runs)
    return runs[-max(found)[1]].state


class _Rules(NamedTuple):
    """How votes are counted: see `vote`."""

    name: str
    n: int
    key: Callable[[Any], Hashable] | None
    stop_when: StopWhen | None
    at_once: int


async def _voted(what: str, rules: _Rules, prepared: Prepared, source: str) -> Vote:
    """The vote; if the log of the run around it has one that ended early, of the same rows."""
    outcome = Outcome(prepared, what, [rules.name, rules.n], source)
    counted = None if rules.stop_when is None else await outcome.value(list[int])
    votes = _Votes(rules, prepared)
    try:
        await votes.count(range(rules.n) if counted is None else counted, counted is None)
    finally:
        await votes.end()
    if rules.stop_when is not None and counted is None:
        outcome.record(votes.over)
    return votes.result(rules.n)


class _Votes:
    """The runs of one vote. `over` are the rows that count, in the order of their ends."""

    def __init__(self, rules: _Rules, prepared: Prepared) -> None:
        self._rules, self._prepared = rules, prepared
        self._runs: dict[int, Run] = {}
        self._values: dict[int, Any] = {}
        self._waiting: dict[asyncio.Task[None], int] = {}
        self.over: list[int] = []

    async def count(self, rows: Sequence[int], may_stop: bool) -> None:
        """Run these rows, as many side by side as may be, until all are over or it is decided."""
        rules, left = self._rules, deque(rows)
        while left or self._waiting:
            while left and len(self._waiting) < rules.at_once:
                run = self._runs[left[0]] = self._prepared.row(left[0]).run()
                self._waiting[asyncio.ensure_future(_over(run))] = left.popleft()
            done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            for row in sorted(self._waiting.pop(task) for task in done):
                self.over.append(row)
                await self._take(row)
            if may_stop and rules.stop_when is not None:
                if rules.stop_when(self._counts(), len(rows) - len(self.over)):
                    return

    async def _take(self, row: int) -> None:
        state, key = self._runs[row].state, self._rules.key
        if state.error() is None:
            value = await state.get(self._rules.name)
            self._values[row] = value if key is None else key(value)

    def _counts(self) -> Counter[Any]:
        return Counter(self._values[row] for row in sorted(self._values))

    async def end(self) -> None:
        """End the rows that are still at work, and wait until their requests have ended."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for row in self._waiting.values():
            await loop.arrival(self._runs[row].state.program.idle())

    def result(self, n: int) -> Vote:
        """Raises ProgramError if all runs have failed."""
        counts = self._counts()
        if not counts:
            raise _all_failed([self._runs[row] for row in sorted(self.over)])
        most = max(counts.values())
        value = next(
            self._values[i] for i in sorted(self._values) if counts[self._values[i]] == most
        )
        states = [self._runs[i].state if i in self.over else None for i in range(n)]
        return Vote(value, dict(counts), states)


def best_of(
    function: Runnable, n: int, score: Callable[[ProgramState], float]
) -> Decoder[ProgramState]:
    """`best_of(f, n=8, score=lambda s: ...)(q=q)`: the state of the run with the highest score.

    `score` may ask the state, as in `s.score([" correct"])[" correct"]`. Runs have seeds of their
    own, as rows of a batch have. Failed runs are not scored; ProgramError if all have failed.
    """
    times = _positive(n)
    return Decoder(function, lambda prepared, _: _best(prepared, times, score))


def vote(
    function: Runnable,
    name: str,
    n: int,
    key: Callable[[Any], Hashable] | None = None,
    stop_when: StopWhen | None = None,
    at_once: int | None = None,
) -> Decoder[Vote]:
    """`vote(f, "answer", n=16, key=int, stop_when=decided)(q=q)`: the value that most runs have.

    What is counted is `key` of the variable `name`. As soon as `stop_when(counts, left)` is true
    the other runs are ended; `decided` is true when they could change nothing. `at_once` limits how
    many run side by side. Failed runs have no vote. Raises ProgramError if all have failed,
    KeyError if they write no such variable, and what `key` raises.
    """
    most = _positive(n) if at_once is None else _positive(at_once)
    rules = _Rules(name, _positive(n), key, stop_when, most)
    return Decoder(function, partial(_voted, f"vote of {function.__name__}", rules))


async def _over(run: Run) -> None:
    """Run it to its end; being cancelled ends it."""
    with contextlib.suppress(Exception):  # the run keeps it
        await run.perform_beside()
    await run.rest()


def _all_failed(runs: list[Run]) -> ProgramError:
    error = runs[0].state.error()
    made = ProgramError(f"all runs have failed: {error}")
    made.__cause__ = error
    return made


def _positive(n: int) -> int:
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    return n
