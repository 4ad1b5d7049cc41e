"""Requests with a grammar, on their way into the core: they wait here while it is loaded.

The scheduler's actor owns it. A grammar that is here already, which is the rule, delays nothing,
unless it has to read what an earlier scheduler has reported: a slice at a time, between messages.
One whose file is missing or damaged is recalled: the front has it made again.
Invariant: each request that is added leaves once: into the core or by `take`; after `clear`, not at
all.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from scheduler_proc.core.requests.resume import reading, reported_ids
from scheduler_proc.crash.journal import Blame
from scheduler_proc.grammar.allowance import MeteredGrammar
from scheduler_proc.grammar.artefact import ArtefactError
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.closing.chain import ClosingGrammar
from scheduler_proc.grammar.store import GrammarStore
from scheduler_proc.grammar.wrapped import Arguments, Result, WrappedGrammar
from scheduler_proc.process.entry import CoreEntry
from srt.ring.crash_file import Notes, packed
from srt.tasks import TaskSet
from srt.wire.errors import BAD_REQUEST, INTERNAL, TIMED_OUT_EARLY, UNAVAILABLE, ErrorInfo
from srt.wire.messages import unpack_ids
from srt.wire.ring_messages import Abort, GrammarMade, TokenizedReq

log = logging.getLogger(__name__)

MAX_RECALLS = 2  # of one grammar for one request


@dataclass(eq=False)
class _Waiting:
    """One request, the task that waits for its grammar, and its time limit."""

    req: TokenizedReq
    task: "asyncio.Task[None] | None" = None
    limit: asyncio.Timeout | None = None


class NotedGrammar(WrappedGrammar):
    """A `Grammar` that passes every call on to another, and notes meanwhile whose constraint the
    thread follows: that may crash outside of any step. Used only after a loss, since each note
    costs a little."""

    __slots__ = ("_note", "_notes")

    def __init__(self, grammar: Grammar, notes: Notes, note: bytes) -> None:
        super().__init__(grammar)
        self._notes, self._note = notes, note

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        with self._notes.of(self._note):
            return call(*arguments)

    _ask = _call

    def fork(self) -> "NotedGrammar":
        return NotedGrammar(super().fork(), self._notes, self._note)

    def for_drafts(self) -> "NotedGrammar":
        return self.fork()


class GrammarIntake:
    """Loads grammars from `store`, and brings the requests into the core by `entry`: what that
    raises is a failure of `tasks`. `recall(key)` asks the front for a grammar, which answers by
    `made`. While `blame` takes notes, they say whose grammar is followed."""

    def __init__(
        self,
        store: GrammarStore,
        entry: CoreEntry,
        recall: Callable[[str], None],
        tasks: TaskSet,
        blame: Blame,
    ) -> None:
        self._store, self._entry, self._recall = store, entry, recall
        self._tasks, self._blame = tasks, blame
        self._recalled: dict[str, asyncio.Future[ErrorInfo | None]] = {}
        self._waiting: list[_Waiting] = []
        self._one_reads = asyncio.Lock()  # a slice of each would add up to a long one

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, req: TokenizedReq) -> None:
        """Take a request with a grammar."""
        if req.reported is not None and req.reported.aborted:
            self._entry.add(req)  # it ends there before its first step
            return
        compiled = self._store.get(req.grammar)
        if compiled is not None and self._is_ready(req, compiled) and not reported_ids(req):
            try:
                if (refusal := _refusal(req, compiled)) is not None:
                    self._entry.fail(req, refusal)
                else:
                    self._entry.add(req, self._started(req, compiled), self._store.retokeniser)
            except GrammarError as error:
                self._entry.fail(req, ErrorInfo(INTERNAL, str(error)))
            return
        waiting = _Waiting(req)
        self._waiting.append(waiting)
        waiting.task = self._tasks.start(self._load(waiting))

    def take(self, message: Abort) -> list[TokenizedReq]:
        """Remove the request that a message ends, if it is here."""
        name = message.client, message.rid
        taken = [one for one in self._waiting if (one.req.client, one.req.rid) == name]
        for waiting in taken:
            self._remove(waiting)
        return [waiting.req for waiting in taken]

    def may_give_way(self, client: bytes, rids: Sequence[str]) -> bool:
        """Whether all these requests of a client are here, and no scheduler has had them before."""
        waiting = {(one.req.client, one.req.rid): one.req for one in self._waiting}
        found = [waiting.get((client, rid)) for rid in rids]
        return all(req is not None and req.reported is None for req in found)

    def made(self, message: GrammarMade) -> None:
        """A recalled grammar lies ready, or cannot be had."""
        recalled = self._recalled.pop(message.key, None)
        if recalled is not None:
            recalled.set_result(message.error)

    def rearm(self) -> None:
        """A pause has begun or ended: time limits stand still, or run again."""
        now = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            if waiting.limit is not None and not waiting.limit.expired():
                left_s = self._entry.left_s(waiting.req)
                waiting.limit.reschedule(None if left_s is None else now + left_s)

    def clear(self) -> None:
        """A new incarnation: forget every request."""
        self._recalled.clear()
        for waiting in list(self._waiting):
            self._remove(waiting)

    def _remove(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if waiting.task is not None:
            waiting.task.cancel()

    async def _load(self, waiting: _Waiting) -> None:
        grammar: Grammar | ErrorInfo
        ids = reported_ids(waiting.req)
        try:
            async with asyncio.timeout(self._entry.left_s(waiting.req)) as waiting.limit:
                loaded = await self._loaded(waiting.req.grammar)
                if not (isinstance(loaded, ErrorInfo) or self._is_ready(waiting.req, loaded)):
                    await self._store.look_ahead(loaded)
                if isinstance(loaded, ErrorInfo):
                    grammar = loaded
                elif (refusal := _refusal(waiting.req, loaded)) is not None:
                    grammar = refusal
                else:
                    grammar = self._started(waiting.req, loaded)
                    await self._read(grammar, ids)
        except TimeoutError:
            grammar = TIMED_OUT_EARLY
        except GrammarError as error:
            is_resumed = waiting.req.reported is not None  # and may be sent again
            code = UNAVAILABLE if is_resumed else INTERNAL
            grammar = ErrorInfo(code, str(error), retryable=is_resumed)
        except (OSError, MemoryError) as error:  # such as no file left: later there may be one
            log.warning("a compiled grammar could not be loaded: %s", error)
            why = (isinstance(error, OSError) and error.strerror) or "out of memory"
            reason = (
                f"the server is at its limit: the compiled grammar cannot be loaded now ({why})"
            )
            grammar = ErrorInfo(UNAVAILABLE, reason, retryable=True)
        except Exception:  # a back end's defect, which must not harm other requests
            log.exception("a compiled grammar could not be loaded")
            grammar = ErrorInfo(INTERNAL, "the compiled grammar cannot be loaded")
        self._waiting.remove(waiting)
        if grammar is TIMED_OUT_EARLY and ids:
            # The loop's timer may be early, and the core must not run it without its grammar.
            self._entry.add(replace(waiting.req, deadline_s=-math.inf))
        elif isinstance(grammar, ErrorInfo):
            self._entry.fail(waiting.req, grammar)
        else:
            self._entry.add(waiting.req, grammar, self._store.retokeniser)

    async def _read(self, grammar: Grammar, ids: list[int]) -> None:
        """Have a grammar read an output, at most a slice in a round of the loop."""
        async with self._one_reads:
            await asyncio.sleep(0)
            for _ in reading(grammar, ids):
                await asyncio.sleep(0)

    async def _loaded(self, key: str) -> CompiledGrammar | ErrorInfo:
        """A grammar, or why it could not be made again. Raises what loading raises."""
        for _ in range(MAX_RECALLS):
            try:
                return await self._store.load(key)
            except ArtefactError as error:
                log.warning("%s; it is made again", error)
            failure = await self._made_again(key)
            if failure is not None:
                return failure
        return await self._store.load(key)

    async def _made_again(self, key: str) -> ErrorInfo | None:
        """Wait until the front has answered, which it does in bounded time; many may wait."""
        recalled = self._recalled.get(key)
        if recalled is None:
            recalled = self._recalled[key] = asyncio.get_running_loop().create_future()
            self._recall(key)
        return await asyncio.shield(recalled)

    def _is_ready(self, req: TokenizedReq, compiled: CompiledGrammar) -> bool:
        """Whether the request can start with this grammar."""
        return not req.sampling.close or self._store.can_close(compiled)

    def _started(self, req: TokenizedReq, compiled: CompiledGrammar) -> Grammar:
        """The request's own grammar, before its output."""
        grammar: Grammar = MeteredGrammar(self._unmetered(req, compiled))
        if req.sampling.close and not compiled.narrows:
            # Its own, since what closing costs has a limit of its own.
            limit = req.sampling.max_new_tokens
            assert limit is not None
            closing = self._store.closing(compiled, self._unmetered(req, compiled), limit)
            grammar = ClosingGrammar(grammar, closing)
        return grammar

    def _unmetered(self, req: TokenizedReq, compiled: CompiledGrammar) -> Grammar:
        grammar, notes = compiled.start(), self._blame.notes
        if notes is not None:
            grammar = NotedGrammar(grammar, notes, packed((req.client, req.rid)))
        if req.healed_ids:
            grammar = self._store.healed(grammar, unpack_ids(req.healed_ids).tolist())
        return grammar


def _refusal(req: TokenizedReq, compiled: CompiledGrammar) -> ErrorInfo | None:
    """Why no output of the request can be whole: its limit is below what any takes."""
    limit = req.sampling.max_new_tokens
    if not req.sampling.close or not limit or req.reported is not None:
        return None  # nothing is generated, or it has been looked at before
    fewest = compiled.fewest_tokens
    if limit >= fewest:
        return None
    reason = (
        f" ({limit}) is less than the {fewest} tokens that every text within the constraint takes"
    )
    return ErrorInfo(BAD_REQUEST, reason, "max_new_tokens", follows_param=True)
