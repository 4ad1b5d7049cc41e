"""The compile worker: the process that turns constraints into artefacts. Sockets around
`CompileService`, and the forked children that compile.

It does not count for the ring's epoch: when it dies, the front asks again. It parses nothing of a
constraint itself, so only its children meet what users write.
"""

import asyncio
import gc
import logging
import os
import time
from dataclasses import replace

import zmq

from scheduler_proc.grammar.cache import (
    RING_BYTES,
    ArtefactFolder,
    compiler_version,
    naming_of,
    open_cache,
)
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.grammar.worker.children import Children
from scheduler_proc.grammar.worker.job import Limits, Outcome
from scheduler_proc.grammar.worker.maker import ArtefactMaker
from scheduler_proc.grammar.worker.service import CompileService, Counters, Rules
from srt.files.vocab import served_vocab
from srt.ring.actor import Actor
from srt.ring.places import send_now
from srt.wire.constraint import (
    COMPILE_QUEUE_FACTOR,
    COMPILE_WALL_FACTOR,
    Constraint,
    artefact_key,
)
from srt.wire.ring_messages import (
    CompileCancel,
    CompileCounts,
    CompileReply,
    CompilerRequest,
    CompilerStarted,
)
from srt.wire.ring_state import CompilerFacts

log = logging.getLogger(__name__)

MAX_CHILDREN = 2
# Set once the process is up, so that what serves comes first. Not before: requests may wait for
# its start, which would then take half a minute on a busy machine.
NICENESS = 19
COUNT_INTERVAL_S = 1.0
LOG_INTERVAL_S = 10.0
# The part of its time limit that a compilation may take by the clock before new ones go first.
QUANTUM = 0.1


class CompilerActor(Actor):
    """Answers each CompileReq with a CompileReply, unless it is cancelled before."""

    name = "compiler"

    async def start(self) -> None:
        args = self.args
        vocabulary = TokenVocabulary.from_vocab(served_vocab(args))
        compiler = GrammarCompiler(vocabulary, args.grammar_backend)
        self._naming = naming_of(
            backend=args.grammar_backend,
            vocabulary=vocabulary.fingerprint,
            version=compiler_version(),
        )
        self._folder = ArtefactFolder(self.ring.grammars, RING_BYTES)
        self._maker = ArtefactMaker(compiler, vocabulary, self._folder, open_cache(args))
        limit_s, mib = args.grammar_compile_timeout, args.grammar_compile_memory
        limits = Limits(limit_s, mib * 2**20, limit_s * COMPILE_WALL_FACTOR)
        self._children = Children(self._maker, limits, self._folder.remove_temporary)
        rules = Rules(
            workers=min(MAX_CHILDREN, len(os.sched_getaffinity(0))),
            seconds=limit_s,
            wall_s=limits.wall_s,
            mib=mib,
            max_wait_s=limit_s * COMPILE_QUEUE_FACTOR,
            quantum_s=limit_s * QUANTUM,
        )
        self._service = CompileService(
            self._folder, self._key, self._run, self._reply, rules, self.tasks
        )
        self._told: Counters | None = None
        self.facts = CompilerFacts(is_warm=False)
        self._front = self.connect(zmq.PUSH, self.ring.compiled)
        self._inbox = self.bind(zmq.PULL, self.ring.compiler)
        self.receive(self._inbox, CompilerRequest, self._on_request)
        self.background(self._warm_up())
        self.background(self._tell_counters())

    async def stop(self) -> None:
        self._service.close()
        await self._children.close()

    def new_epoch(self) -> None:
        self._service.reset(self.epoch)
        self._told = None  # to a front that may have started anew

    def _on_request(self, req: CompilerRequest) -> None:
        if isinstance(req, CompileCancel):
            self._service.cancel(req)
        elif req.epoch >= self.epoch:  # the front may have heard of a new epoch first
            self._service.ask(req)

    def _reply(self, reply: CompileReply) -> None:
        send_now(self._front, reply)  # a front that is not there has forgotten what it asked

    def _key(self, constraint: Constraint) -> str:
        return artefact_key(constraint, self._naming)

    async def _run(self, key: str, constraint: Constraint) -> Outcome:
        return await self._children.run(self._maker.job(key, constraint))

    # ---- beside it -----------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        """Load what every child would otherwise load again; requests wait meanwhile."""
        await asyncio.sleep(0)  # let the first beat go out first
        self._maker.rehearse()
        gc.collect()
        gc.freeze()  # so that a child's collector does not copy the pages that it inherits
        if self.ring.read_naming() != self._naming:  # a full disk must not end a restart
            self.ring.write_naming(self._naming)
        os.nice(NICENESS)
        self._children.prepare()
        self.facts = CompilerFacts(is_warm=True)
        send_now(self._front, CompilerStarted())

    async def _tell_counters(self) -> None:
        """Send the counters to the front soon after they change, and while it waits, to show that
        this process lives; log them less often."""
        logged, logged_at = Counters(), time.monotonic()
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            now = replace(self._service.counters)
            is_news = now != self._told or self._service.is_busy
            if is_news and send_now(self._front, CompileCounts(now.totals())):
                self._told = now
            if now != logged and time.monotonic() - logged_at >= LOG_INTERVAL_S:
                log.info("%s", _summary(now, self._service.num_queued))
                logged, logged_at = now, time.monotonic()


def _summary(counters: Counters, num_queued: int) -> str:
    return (
        f"grammars: {counters.compiled} compiled in {counters.seconds:.1f} s, "
        f"{counters.reused + counters.cached} found, {counters.invalid} invalid, "
        f"{counters.timed_out + counters.failed} over a limit, {counters.refused} refused, "
        f"{counters.cancelled} cancelled, {num_queued} wait"
    )
