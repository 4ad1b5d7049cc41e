"""`beam`: beam search over the runs of a program, its steps being the program's sampled gens."""

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from lang.decoders.decoder import Decoder
from lang.decoders.outcome import Outcome
from lang.decoders.search import Node, Search
from lang.errors import ProgramError
from lang.functions.prepared import Prepared, Runnable
from lang.logs.entries import Entry
from lang.logs.journal import Journal, LogWarning
from lang.logs.log import Log
from lang.run.program import Place
from lang.state.state import ProgramState

Score = Literal["mean_logprob", "logprob"] | Callable[[Node], float]


class _Beam:
    """How many runs go on, and by what they are compared."""

    def __init__(self, search: Search, width: int, score: Score) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        if not callable(score) and score not in ("mean_logprob", "logprob"):
            raise ValueError(f"score must be mean_logprob, logprob or a function, not {score!r}")
        self._search, self._width, self._score = search, width, score

    async def kept(self, prepared: Prepared, source: str) -> list[ProgramState]:
        """The search, or what the log of the run around it has of it."""
        search = self._search
        score = self._score if isinstance(self._score, str) else "a function"
        names = None if search.names is None else sorted(search.names)
        settings = [self._width, search.width, names, score]
        name = f"beam of {search.function.__name__}"
        outcome = Outcome(prepared, name, settings, source)
        logs = await outcome.value(list[list[Entry]])
        if logs is not None:
            found = await asyncio.gather(*(_replayed(prepared, log) for log in logs))
            changes = [each for each in found if isinstance(each, str)]
            if not changes:
                return [each for each in found if not isinstance(each, str)]
            outcome.drop()
            warnings.warn(
                f"{source}: the {name} is searched anew: {changes[0]}", LogWarning, stacklevel=2
            )
        nodes = await self._best(prepared)
        outcome.record([list(node.log) for node in nodes])
        return [node.state for node in nodes if node.state is not None]

    async def _best(self, prepared: Prepared) -> list[Node]:
        beam = [self._search.root_of(prepared)]
        failed: list[BaseException] = []
        while not all(node.is_over for node in beam):
            grown = await asyncio.gather(*(node.aexpand() for node in beam))
            pool: list[Node] = []
            for node, children in zip(beam, grown, strict=True):
                error = None if node.state is None else node.state.error()
                if error is not None:
                    failed.append(error)
                else:
                    pool += children or [node]
            beam = sorted(pool, key=self._value, reverse=True)[: self._width]
        if not beam:
            raise ProgramError(f"all runs have failed: {failed[0]}") from failed[0]
        return beam

    def _value(self, node: Node) -> float:
        if callable(self._score):
            return self._score(node)
        value: float = getattr(node, self._score)
        return value


async def _replayed(prepared: Prepared, entries: Sequence[Entry]) -> ProgramState | str:
    """The state of the run that these entries are of, or why they are not its."""
    log = Log()
    for entry in entries:
        log.add(entry)
    around = prepared.place.journal
    models = None if around is None else around.models
    journal = Journal(log, models=models, is_whole=True)
    run = prepared.run(Place(journal=journal))
    with contextlib.suppress(Exception):  # it had none: so the log does not fit
        await run.perform_beside()
    await run.rest()
    error = run.state.error()
    return journal.change or (run.state if error is None else f"it fails: {error}")


def beam(
    function: Runnable,
    width: int = 4,
    expand: int = 4,
    score: Score = "mean_logprob",
    names: Collection[str] | None = None,
) -> Decoder[list[ProgramState]]:
    """Beam search over a program: `beam(f, width=4)(question=q)` gives states, best first.

    The function runs up to its first sampled gen, which has `expand` answers; the `width` best runs
    go on, each up to its next one, until all have come to their end. `score` is the sum or, by
    default, the mean of the log-probabilities of the sampled answers' tokens, or a function of a
    `Node`. What is sampled: see `Search`. `timeout_s` limits each step of a run. ProgramError if
    all have failed.
    """
    return Decoder(function, _Beam(Search(function, expand, names), width, score).kept)
